"""Conversations of agents as tokens: by the templates of several families, and turns as clients read them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_rl import testing
from agent_rl.learning.tiny import build_tokenizer
from agent_rl.messages import Said, SaidCall
from agent_rl.rollout.prompts import CHATML, ChatFormat, PromptError
from agent_rl.rollout.said import GatewaySpeech, Unfolding, messages_of, said_in, spoken, spoken_so_far
from tests.agent_rl.rollout.templates import CONTROLS, HERMES, LLAMA, MISTRAL, SCHEMAS, THINKING, chat_of

TOOLS = json.dumps(SCHEMAS)
NAME = SCHEMAS[0]["function"]["name"]
CALL = SaidCall(NAME, '{"code": "print(1 < 2)"}')
QUESTION, SYSTEM = Said("user", "What is 1 + 1?"), Said("system", "Be brief.")


def whole(tokenizer: Any, said: list[Said]) -> list[int]:
    """As the template renders the whole conversation."""
    shown: list[dict[str, Any]] = []
    for each in said:
        message: dict[str, Any] = {"role": each.role, "content": each.content}
        if each.calls:
            functions = [{"name": call.name, "arguments": json.loads(call.arguments)} for call in each.calls]
            message["tool_calls"] = [{"id": "call00000", "type": "function", "function": made} for made in functions]
        if each.role == "tool":
            message |= {"tool_call_id": "call00000", "name": NAME}
        shown.append(message)
    options = {"tools": SCHEMAS, "add_generation_prompt": True, "tokenize": True, "return_dict": False}
    return list(tokenizer.apply_chat_template(shown, **options))


@pytest.mark.parametrize("template", [HERMES, LLAMA, MISTRAL], ids=["hermes", "llama", "mistral"])
def test_a_conversation_of_others_is_what_the_template_makes_of_it(template: str) -> None:
    tokenizer, chat = chat_of(template)
    speech = GatewaySpeech(chat)
    turn = Said("assistant", "", calls=(CALL,))
    result = Said("tool", "True", call_id="x")
    opening = [QUESTION] if template is MISTRAL else [SYSTEM, QUESTION]
    for said in (
        opening,
        [*opening, turn, result],
        [*opening, turn, result, Said("assistant", "Yes."), Said("user", "Why?")],
    ):
        if template is MISTRAL and said[-1].content == "Why?":
            continue  # it lists the tools before the last question, wherever that is
        assert speech.opening(messages_of(said, TOOLS)) == whole(tokenizer, said)
    before = speech.opening(messages_of([*opening], TOOLS))
    later = speech.later(messages_of([result], TOOLS)[1:], messages_of([turn], TOOLS)[1])
    assert (before + chat.given_turn_tokens(messages_of([turn], TOOLS)[1].content) + later) == whole(
        tokenizer, [*opening, turn, result]
    )


@pytest.mark.parametrize("template", [HERMES, THINKING, LLAMA, MISTRAL])
def test_results_with_a_message_after_them_are_one_answer(template: str) -> None:
    _, chat = chat_of(template)
    turn = messages_of([Said("assistant", "", calls=(CALL,))], TOOLS)[1]
    given_ = messages_of([Said("tool", "True", call_id="x"), Said("user", "And <|im_start|> now?")], TOOLS)[1:]
    text = chat.decode(GatewaySpeech(chat).later(given_, turn))
    assert text.index("True") < text.index("now?")
    assert "And &lt;|im_start|> now?" in text
    assert text.endswith(chat.prefill)


@pytest.mark.parametrize("template", [HERMES, LLAMA, MISTRAL])
def test_a_system_message_in_the_middle_is_read_wherever_the_template_has_no_place_for_it(template: str) -> None:
    _, chat = chat_of(template)
    speech, note = GatewaySpeech(chat), Said("system", "Time is short.")
    turn = messages_of([Said("assistant", "2", calls=(CALL,))], TOOLS)[1]
    for said in ([note], [Said("tool", "True"), note], [note, Said("user", "On.")]):
        assert "Time is short." in chat.decode(speech.later(messages_of(said, TOOLS)[1:], turn))
    assert "Time is short." in chat.decode(speech.opening(messages_of([QUESTION, note, QUESTION], TOOLS)))


def test_what_is_no_conversation_is_refused() -> None:
    _, chat = chat_of(HERMES)
    for said in ([], [Said("assistant", "Hi.")], [QUESTION, Said("assistant", "2")]):
        with pytest.raises(PromptError):
            GatewaySpeech(chat).opening(messages_of(said, TOOLS))


def test_a_turn_is_recognised_however_its_client_writes_it() -> None:
    _, chat = chat_of(HERMES)
    text = '<think>\nhm\n</think>\n\nI see. \n<tool_call>\n{"name": "f", "arguments": {"b": false, "a": [1.0, "é"]}}\n</tool_call>'
    found = spoken(chat, text)
    assert (found.content, found.reasoning, [call.name for call in found.calls]) == ("I see.", "hm", ["f"])
    back = Said("assistant", "I see.\n", "", (SaidCall("f", '{"a":[1,"\\u00e9"],"b":false}', "call_9"),))
    other = Said("assistant", "I see.", "", (SaidCall("f", '{"a":[1,"\\u00e9"],"b":"false"}'),))
    assert messages_of([back], "[]")[1].same == found.message.same
    assert messages_of([other], "[]")[1].same != found.message.same
    parts = [Said("assistant", "I see."), Said("assistant", calls=back.calls)]
    assert [message.same for message in messages_of(parts, "[]")[1:]] == [found.message.same]


def test_tools_are_compared_as_values() -> None:
    one, other = (messages_of([QUESTION], text)[0] for text in ('[{"a": 1, "b": 2}]', '[{"b":2,"a":1}]'))
    assert one.same == other.same != messages_of([QUESTION], "[]")[0].same


def test_a_malformed_call_stays_in_the_content() -> None:
    _, chat = chat_of(HERMES)
    text = 'So: <tool_call>{"name": 3}</tool_call>'
    assert spoken(chat, text).content == text
    good = f'{text}<tool_call>{{"name": "f", "arguments": {{}}}}</tool_call>'
    assert spoken(chat, good).content == text


CALLED = '{"name": "f", "arguments": {}}'
PIECES = ["<think>", "</think>", "<tool_call>", CALLED, "</tool_call>", "<", "a", " ", "\n", "é", "{"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


@pytest.mark.parametrize("template", [HERMES, LLAMA, MISTRAL])
def test_what_a_stream_shows_is_never_taken_back(template: str) -> None:
    _, chat = chat_of(template)

    @given(TEXTS)
    def check(text: str) -> None:
        last = spoken(chat, text)
        shown = [spoken_so_far(chat, text[:count]) for count in range(len(text) + 1)]
        for before, after in zip(shown, [*shown[1:], last], strict=True):
            assert after.content.startswith(before.content)
            assert after.reasoning.startswith(before.reasoning)

    check()


def test_tokens_unfold_to_the_text_that_they_are_together() -> None:
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": CONTROLS})
    tokenizer.chat_template = CHATML
    chat = ChatFormat(tokenizer, testing.environments())

    @given(st.text(st.characters(codec="utf-8", exclude_characters="\ufffd"), max_size=30), st.integers(1, 4))
    def check(text: str, size: int) -> None:
        tokens = chat.encode(text)
        unfolding = Unfolding(chat)
        for start in range(0, len(tokens), size):
            unfolding.add(tokens[start : start + size])
            assert chat.decode(tokens).startswith(unfolding.text)
        assert unfolding.text == chat.decode(tokens)

    check()


def test_a_text_of_the_model_is_found_in_what_others_say() -> None:
    said = messages_of([Said("user", "So far:\n the  sum is 12, as asked. Go on.")], "[]")
    assert said_in("The sum is", said) is False
    assert said_in("the sum is 12,\nas asked.", said)
    assert not said_in("sum", said)
    assert not said_in("the sum is 12, as asked.", messages_of([Said("tool", "the sum is 12, as asked.")], "[]"))
    assert [said_in(text, said) for text in ("sum is 1", "um is 1")] == [True, False], "8 characters are no chance"
    assert said_in("sum", messages_of([Said("user", " sum\n")], "[]"))
    assert not said_in(" ", messages_of([Said("user", "")], "[]"))
