"""A rollout goes on from its completed turns as if it had never moved, and from nothing but its own turns."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_rl import messages
from agent_rl.learning.tiny import build_tokenizer
from agent_rl.messages import (
    CompletedTurn,
    EnvironmentMessage,
    PolicyVersion,
    Sampling,
    Tokens,
    ToolCallRecord,
    Trajectory,
    TurnObserved,
    TurnsCompleted,
)
from agent_rl.rollout.completed import runs_of, token_by_token, turn_check
from agent_rl.rollout.episode import Episode
from agent_rl.rollout.prompts import ChatFormat
from agent_rl_contract import builders
from tests.agent_rl.rollout.templates import turn
from tests.agent_rl.rollout.test_prompts_and_episode import CALL
from transport import Registry
from transport.codec import decode, encode

CHAT = ChatFormat(build_tokenizer(), builders.environments())
POLICIES = st.tuples(st.integers(1, 3), st.integers(0, 9))


@st.composite
def turns(draw: st.DrawFn) -> dict[str, Any]:
    """A turn as an engine may return it, and how it is answered: by tools, or by the environment."""
    called = draw(st.booleans())
    text = CALL * draw(st.integers(1, 2)) if called else draw(st.text("4 +a", max_size=6))
    tokens = np.array([*CHAT.encode(text), CHAT.end_of_turn], dtype=np.int32)
    count = len(tokens)
    bits = draw(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5))
    logprobs = -np.resize(np.array(bits, dtype=np.uint32), count).astype(np.float32) / np.float32(2**31)
    swaps = draw(st.lists(POLICIES, min_size=1, max_size=3))
    policies = np.array([swaps[i * len(swaps) // count] for i in range(count)], dtype=np.int32)
    return {
        "turn": {"tokens": tokens, "logprobs": logprobs, "policies": policies, "stopped": True},
        "answers": draw(st.lists(st.text("4 \n", max_size=6), min_size=1, max_size=2)),
        "states": draw(st.dictionaries(st.sampled_from(("a", "b")), st.binary(max_size=3))),
        "state": draw(st.binary(max_size=3)),
        "policy": draw(POLICIES),
    }


def episode(**sampling: Any) -> Episode:
    return Episode(
        builders.request(
            sampling=Sampling(**{"temperature": 1.0, "max_response_tokens": 9000, "max_turns": 9, **sampling})
        ),
        CHAT,
        observes=True,
    )


def play(into: Episode, each: dict[str, Any]) -> None:
    """One turn, with its answer."""
    calls = into.begin_calls(into.append_turn(**each["turn"]))
    policy = PolicyVersion(*each["policy"])
    if calls:
        answers = (each["answers"] * 2)[: len(calls)]
        records = [
            ToolCallRecord(into.turns, "t", "success", 0.1, 0.2, arguments={"a": [1]}, response=a) for a in answers
        ]
        into.tool_states.update(each["states"])
        into.append_tool_results(answers, records, policy)
    else:
        answered = tuple(EnvironmentMessage(into.turns, "user", answer) for answer in each["answers"])
        into.append_observation(TurnObserved(answered, each["state"]), policy)


def same(one: Trajectory, other: Trajectory) -> bool:
    for name, first, second in zip(Tokens._fields, one.unpack(), other.unpack(), strict=True):
        assert np.array_equal(first, second), name
    return one == other


def over_the_wire(*given: CompletedTurn) -> tuple[CompletedTurn, ...]:
    message = TurnsCompleted("r", "g", given)
    return decode(encode(message), Registry.of(messages)).turns


@given(st.lists(turns(), max_size=5), st.integers(0, 5), st.lists(turns(), max_size=2))
def test_an_episode_that_takes_turns_in_is_the_episode_that_completed_them(
    played: list[dict[str, Any]], moves_after: int, later: list[dict[str, Any]]
) -> None:
    stayed, moved = episode(), episode()
    for number, each in enumerate(played):
        if number == moves_after:
            moved, before = episode(), moved
            assert moved.resume(over_the_wire(*before.completed)) == ""
        for one in (stayed, moved):
            play(one, each)
            one.complete(float(number))
    last = episode()
    assert last.resume(over_the_wire(*moved.completed)) == ""
    assert [turn.after for turn in last.completed] == [turn.after for turn in stayed.completed]
    for number, each in enumerate((None, *later)):
        for one in (stayed, last):
            if each is not None:
                play(one, each)
                one.complete(float(number))
        assert (last.tokens, last.budget, last.turns, last.ended) == (stayed.tokens, stayed.budget, stayed.turns, None)
        assert (last.state, last.tool_states, last.transcript) == (stayed.state, stayed.tool_states, stayed.transcript)
        ends = {"generator": "g", "failure": ("failed", "stopped")}
        assert same(last.trajectory(seconds=0.0 - last.seconds, **ends), stayed.trajectory(seconds=0.0, **ends))


@given(st.lists(POLICIES, min_size=1, max_size=30))
def test_runs_of_policies_and_policies_token_by_token_are_inverse(policies: list[tuple[int, int]]) -> None:
    given = np.array(policies, dtype=np.int32)
    runs = runs_of(given)
    assert runs.dtype == np.int32
    assert np.array_equal(token_by_token(runs), given)
    assert len(runs) == 1 + sum(one != other for one, other in pairwise(policies))


def completed(count: int, **sampling: Any) -> Episode:
    made = episode(**sampling)
    for number in range(count):
        wrote = turn(CHAT, CALL, version=1)
        wrote["logprobs"] -= number
        play(made, {"turn": wrote, "answers": ["4"], "states": {"a": b"%d" % number}, "policy": (1, 1)})
        made.complete(1.0)
    return made


def test_a_turn_holds_the_snapshots_it_changed_and_the_time_since_the_rollout_began() -> None:
    made = completed(2)
    made.tool_states["b"] = b"new"
    play(made, {"turn": turn(CHAT, "", version=1), "answers": ["?"], "state": b"", "policy": (1, 1)})
    assert made.complete(3.0).tool_states == {"b": b"new"}
    moved = episode()
    moved.resume(made.completed)
    assert moved.seconds == 3.0
    assert moved.trajectory(generator="g", seconds=2.0).seconds == 5.0
    assert [record.turn for turn in moved.completed for record in turn.calls] == [1, 2]


def signed(turn: CompletedTurn) -> CompletedTurn:
    """With the checksum that a turn of these tokens has."""
    return replace(turn, after=turn_check(turn))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda first, second: (second,), "turn 1 is missing"),
        (lambda first, second: (first, replace(second, before=first.before)), "turn 2 continues another turn"),
        (lambda first, second: (replace(first, before=7), second), "they continue another prompt"),
        (lambda first, second: (replace(first, logprobs=first.logprobs * 2), second), "turn 1 is damaged"),
        (lambda first, second: (first, replace(second, number=3)), "turn 2 is missing"),
        *[
            (lambda first, second, changes=changes: (first, replace(second, **changes)), "turn 2 is damaged")
            for changes in (
                {"tool_states": {}},
                {"tool_states": {"b": b"1"}},
                {"tool_states": {"a": b"2"}},
                {"state": b"x"},
            )
        ],
        *[
            (lambda first, second, spoil=spoil: (first, signed(spoil(second))), "turn 2 is damaged")
            for spoil in (
                lambda turn: replace(turn, policies=turn.policies[:, :2]),
                lambda turn: replace(turn, policies=turn.policies - np.array([0, 0, 1], np.int32)),
                lambda turn: replace(turn, policies=turn.policies + np.array([0, 0, 1], np.int32)),
                lambda turn: replace(turn, policies=np.array([[1, 1, 0], *turn.policies], np.int32)),
                lambda turn: replace(turn, logprobs=turn.logprobs[1:]),
                lambda turn: replace(
                    turn, **{name: getattr(turn, name)[:0] for name in ("written", "logprobs", "policies")}
                ),
            )
        ],
    ],
)
def test_turns_that_do_not_continue_the_prompt_or_each_other_are_refused(spoil: Any, said: str) -> None:
    assert episode().resume(spoil(*completed(2).completed)) == said


def test_turns_that_leave_no_room_for_another_are_refused() -> None:
    made = completed(2)
    length = len(made.tokens) - len(episode().tokens)
    for limits in ({"max_turns": 2}, {"max_response_tokens": length}):
        assert "no room" in episode(**limits).resume(made.completed)
    assert episode(max_response_tokens=length + 1).resume(made.completed) == ""
