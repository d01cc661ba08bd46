"""Conversations of agents as tokens: by the templates of several families, and turns as clients read them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_rl.learning.tiny import build_tokenizer
from agent_rl.messages import Said, SaidCall
from agent_rl.rollout.prompts import CHATML, ChatFormat, PromptError
from agent_rl.rollout.said import GatewaySpeech, Unfolding, messages_of, said_by_others, said_in, spoken, spoken_so_far
from agent_rl_contract import builders
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
    conversations = [opening, [*opening, turn, result]]
    if template is not MISTRAL:  # it lists the tools before the last question, wherever that is
        conversations.append([*opening, turn, result, Said("assistant", "Yes."), Said("user", "Why?")])
    for said in conversations:
        assert speech.opening(messages_of(said, TOOLS)) == whole(tokenizer, said)
    before = speech.opening(messages_of([*opening], TOOLS))
    _, _, given_turn, *rest = messages_of([QUESTION, turn, result], TOOLS)
    assert (before + chat.given_turn_tokens(given_turn.content) + speech.later(rest, given_turn)) == whole(
        tokenizer, [*opening, turn, result]
    )


@pytest.mark.parametrize("template", [HERMES, MISTRAL])
def test_results_stand_beside_the_calls_that_they_name(template: str) -> None:
    _, chat = chat_of(template)
    speech = GatewaySpeech(chat)
    calls = tuple(SaidCall(NAME, json.dumps({"code": each}), each) for each in "abc")
    results = {each: Said("tool", f"value of {each}", call_id=each) for each in "abc"}
    turn, ordered = Said("assistant", calls=calls), [results[each] for each in "abc"]
    whole = speech.opening(messages_of([QUESTION, turn, *ordered], TOOLS))
    for order in ("bca", "cba"):
        assert speech.opening(messages_of([QUESTION, turn, *(results[each] for each in order)], TOOLS)) == whole
    parted = [results["b"], Said("user", "Wait."), results["c"], results["a"]]
    text = chat.decode(speech.opening(messages_of([QUESTION, turn, *parted], TOOLS)))
    assert text.index("value of a") < text.index("value of b") < text.index("value of c")
    twice = Said("assistant", calls=(*calls[:2], SaidCall(NAME, "{}", "a")))
    again = [Said("tool", "one", call_id="a"), results["b"], Said("tool", "three", call_id="a")]
    text = chat.decode(speech.opening(messages_of([QUESTION, twice, *again], TOOLS)))
    assert text.index("one") < text.index("value of b") < text.index("three")
    unnamed = [results["c"], results["a"], Said("tool", "value of b")]
    assert speech.opening(messages_of([QUESTION, turn, *unnamed], TOOLS)) == whole, "the only call that is left"
    if template is MISTRAL:
        some = chat.decode(speech.opening(messages_of([QUESTION, turn, results["b"]], TOOLS)))
        assert re.search(r'value of b.*?"call_id": "call00001"', some, re.DOTALL)
        own = f'[TOOL_CALLS] [{{"name": "{NAME}", "arguments": {{}}, "id": "abcdefgh1"}}]'
        text = chat.decode(speech.later(messages_of([turn, results["a"]], TOOLS)[2:], spoken(chat, own).message))
        assert '"call_id": "abcdefgh1"' in text
    for wrong in (Said("tool", "x", call_id="d"), Said("tool", "x")):
        with pytest.raises(PromptError, match="name the call that it answers: the turn before has 'a', 'b', 'c'"):
            messages_of([QUESTION, turn, wrong], TOOLS)


@pytest.mark.parametrize("template", [HERMES, LLAMA, MISTRAL])
@pytest.mark.parametrize("broken", ['{"code": "1', "[1]", "", '{"n": 12345678901234567890123}', "</tool_call>"])
def test_arguments_that_are_no_object_are_shown_as_text(template: str, broken: str) -> None:
    _, chat = chat_of(template)
    turn, result = Said("assistant", calls=(SaidCall(NAME, broken, "x"),)), Said("tool", "Bad.", call_id="x")
    text = chat.decode(GatewaySpeech(chat).opening(messages_of([QUESTION, turn, result], TOOLS)))
    shown = json.loads(re.search(r'"arguments": ("(?:[^"\\]|\\.)*")', text)[1])  # type: ignore[index]
    assert shown.replace("&lt;", "<") == broken
    assert "Bad." in text


@pytest.mark.parametrize("template", [HERMES, THINKING, LLAMA, MISTRAL])
def test_results_with_a_message_after_them_are_one_answer(template: str) -> None:
    _, chat = chat_of(template)
    result, question = Said("tool", "True"), Said("user", "And <|im_start|> now?")
    _, turn, *given_ = messages_of([Said("assistant", "", calls=(CALL,)), result, question], TOOLS)
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
    large, larger = (Said("assistant", calls=(SaidCall("f", f'{{"id": {10**18 + more}}}'),)) for more in (0, 1))
    assert messages_of([large], "[]")[1].same != messages_of([larger], "[]")[1].same
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
    chat = ChatFormat(tokenizer, builders.environments())

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
    def others(said: Said) -> list[str]:
        return said_by_others(messages_of([said], "[]"))

    said = others(Said("user", "So far:\n the  sum is 12, as asked. Go on."))
    assert said_in("The sum is", said) is False
    assert said_in("the sum is 12,\nas asked.", said)
    assert not said_in("sum", said)
    assert not said_in("the sum is 12, as asked.", others(Said("tool", "the sum is 12, as asked.")))
    assert [said_in(text, said) for text in ("sum is 1", "um is 1")] == [True, False], "8 characters are no chance"
    assert said_in("sum", others(Said("user", " sum\n")))
    assert not said_in(" ", others(Said("user", "")))
