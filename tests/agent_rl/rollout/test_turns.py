"""Turns that an environment answers, and the conversation of a user's own loop: what is appended, what is refused."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent_rl.config.plugins import ContractError
from agent_rl.environments.base import SNAPSHOT_BYTES, Observation
from agent_rl.environments.judging import observation
from agent_rl.messages import EnvironmentMessage, PolicyVersion, Sampling, TurnObserved
from agent_rl.rollout.conversation import Conversation, LoopSpeech, Message, sound_messages
from agent_rl.rollout.episode import Episode, Strand
from agent_rl.rollout.prompts import ChatFormat, PromptError
from agent_rl_contract import builders
from tests.agent_rl.rollout.templates import chat_with, turn
from tests.agent_rl.rollout.test_prompts_and_episode import CHATML

POLICY = PolicyVersion(1, 4)
SAMPLING = Sampling(1.0, 200, 3)
START = [{"role": "user", "content": "What is 2 + 2?"}]
STRICT = (
    "{% for m in messages %}{% if m['role'] not in ['user', 'assistant'] or (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def chatml() -> tuple[Any, ChatFormat]:
    return chat_with(CHATML)


@pytest.fixture(scope="module")
def chat(chatml: tuple[Any, ChatFormat]) -> ChatFormat:
    return chatml[1]


def answered(*texts: str, state: bytes = b"", done: bool = False) -> TurnObserved:
    return TurnObserved(tuple(EnvironmentMessage(1, "user", text) for text in texts), state, done)


# An environment's answers ---------------------------------------------------------------------------------------------


def test_an_episode_ends_where_the_environment_ends_it_or_at_its_limits(chat: ChatFormat) -> None:
    for answer, limit, status in (
        (answered("found", done=True), 3, "finished"),
        (answered("found", done=True), 1, "finished"),
        (answered(done=True), 3, "finished"),
        (answered("higher"), 1, "turn_limit"),
        (answered("x" * 300), 3, "truncated"),
        (answered("higher"), 3, None),
    ):
        episode = Episode(builders.request(sampling=Sampling(1.0, 100, limit)), chat, observes=True)
        episode.begin_calls(episode.append_turn(**turn(chat, "10")))
        length = len(episode.tokens)
        episode.append_observation(answer, POLICY)
        assert episode.ended == status
        assert (len(episode.tokens) == length) is (status is not None)  # what no turn follows is not appended
        assert len(episode.transcript.replies) == len(answer.messages)


@given(
    st.lists(
        st.tuples(st.sampled_from(("user", "system")), st.text("ab <|>im_end\n", max_size=20)), min_size=1, max_size=3
    )
)
@example([("user", "<|end|>")])
def test_any_messages_are_appended_as_the_template_writes_them(messages: list[tuple[str, str]]) -> None:
    tokenizer, chat = chat_with(CHATML)
    said = [*START, {"role": "assistant", "content": "10"}]
    spelt = [{"role": role, "content": re.sub(r"<(?=\|(im_)?end\|>)", "&lt;", text)} for role, text in messages]
    whole = tokenizer.apply_chat_template([*said, *spelt], add_generation_prompt=True, tokenize=True, return_dict=False)
    built = [*chat.encode(chat.render(START, generate=True)), *chat.encode("10"), chat.end_of_turn]
    assert [*built, *chat.message_tokens(messages)] == list(whole)


def test_a_template_that_refuses_the_roles_of_messages_is_told_of() -> None:
    _, chat = chat_with(STRICT)
    assert chat.message_tokens([("user", "go on")])
    with pytest.raises(PromptError, match="roles system: roles must alternate"):
        chat.message_tokens([("system", "go on")])
    with pytest.raises(PromptError, match="does not take these messages"):
        chat.opening_tokens([("user", "a"), ("user", "b")], builders.problem())


def test_what_an_environment_answers_is_looked_at() -> None:
    def refused(answer: object) -> str:
        with pytest.raises(ContractError) as raised:
            observation(answer, 1, b"old")
        return str(raised.value)

    said = [{"role": "user", "content": "higher"}]
    assert observation(None, 1, b"old") == TurnObserved(state=b"old", done=True)
    assert observation(Observation(said), 2, b"old") == TurnObserved((EnvironmentMessage(2, "user", "higher"),), b"old")
    assert observation(Observation(said, b""), 2, b"old").state == b""
    assert observation(Observation(done=True), 2, b"").done
    assert "return an Observation" in refused("higher")
    assert "give at least one" in refused(Observation())
    assert "give at least one" in refused(Observation(3))  # type: ignore[arg-type]
    assert "message 1 is {'role': 'tool'" in refused(Observation([{"role": "tool", "content": "x"}]))
    assert "message 2 is 'higher'" in refused(Observation([*said, "higher"]))  # type: ignore[list-item]
    assert "unpaired surrogate" in refused(Observation([{"role": "user", "content": "\ud800"}]))
    assert f"at most {SNAPSHOT_BYTES}" in refused(Observation(said, b"x" * (SNAPSHOT_BYTES + 1)))
    assert "must be bytes" in refused(Observation(said, "x"))  # type: ignore[arg-type]


# A user's own loop ----------------------------------------------------------------------------------------------------


def begun(chat: ChatFormat, **changes: Any) -> tuple[Episode, Conversation]:
    episode = Episode(builders.request(sampling=SAMPLING, **changes), chat, begun=False)
    return episode, Conversation(episode, LoopSpeech(chat, episode.request.problem))


def opened(conversation: Conversation, messages: Any) -> Strand:
    return conversation.open(conversation.plan(sound_messages(messages)), POLICY)


def write(
    episode: Episode, conversation: Conversation, chat: ChatFormat, messages: list[dict[str, str]], text: str
) -> dict[str, str]:
    strand = opened(conversation, messages)
    said = episode.append_turn(**turn(chat, text), strand=strand)
    conversation.wrote(strand, Message("assistant", said), stopped=True)
    return {"role": "assistant", "content": said}


def test_messages_that_are_none_are_refused_and_leave_the_episode_as_it_was(chat: ChatFormat) -> None:
    def refused(messages: Any) -> str:
        episode, conversation = begun(chat)
        write(episode, conversation, chat, START, "4 ")
        before = episode.tokens
        with pytest.raises(ContractError) as raised:
            opened(conversation, messages)
        assert (episode.tokens, len(episode.strands)) == (before, 1)
        return str(raised.value)

    assert "there are no messages" in refused([])
    assert "give a list" in refused("Go on.")
    assert "message 1 is None" in refused([None])


def test_of_two_turns_with_the_same_words_each_is_continued_once(chat: ChatFormat) -> None:
    episode, conversation = begun(chat)
    said = {"role": "assistant", "content": "4"}
    for text, more in (("4", []), ("4", []), ("5", ["Go on."]), ("6", ["Stop."])):
        asked = [said, *({"role": "user", "content": each} for each in more)]
        write(episode, conversation, chat, [*START, *(asked if more else [])], text)
    assert [strand.turns for strand in episode.strands] == [[1, 3], [2, 4]]


def test_a_loop_may_go_on_without_a_message_and_begin_with_a_dialogue(chatml: tuple[Any, ChatFormat]) -> None:
    _, chat = chatml
    shown = [*START, {"role": "assistant", "content": "4"}, {"role": "user", "content": "And 3 + 3?"}]
    episode, conversation = begun(chat)
    prompt = len(chat.opening_tokens([(each["role"], each["content"]) for each in shown], builders.problem()))
    again = write(episode, conversation, chat, shown, "6")
    opened(conversation, [*shown, again])
    text = chat.decode(episode.tokens)
    assert text.endswith("<|im_start|>assistant\n6<|im_end|>\n<|im_start|>assistant\n")
    made = episode.trajectory(generator="g", seconds=0.0)
    assert made.prompt_length == prompt
    assert made.unpack().loss_mask.sum() == 2


def test_a_prompt_of_a_loop_is_told_of_tools_and_may_be_too_long(chatml: tuple[Any, ChatFormat]) -> None:
    tokenizer, _ = chatml
    chat = ChatFormat(copy.deepcopy(tokenizer), builders.environments("rstar2"))
    tokens = chat.opening_tokens([("user", "What is 2 + 2?")], builders.problem())
    assert "<tools>" in chat.decode(tokens)
    episode = Episode(builders.request(), chat, len(tokens), begun=False)
    opened(Conversation(episode, LoopSpeech(chat, episode.request.problem)), START)
    assert episode.ended == "prompt_too_long"
