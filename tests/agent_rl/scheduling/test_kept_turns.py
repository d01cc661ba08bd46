"""The turns that a scheduler keeps: one history of a rollout, within a bound, until the rollout is done."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_rl.messages import CompletedTurn, PolicyVersion, TurnsCompleted
from agent_rl.rollout.completed import chain_fault, turn_check
from agent_rl.scheduling.kept_turns import KeptTurns, size_of
from tests.agent_rl.scheduling.world import World

PROMPT = 7
ROLLOUT = "s0-g000000/0/0"


def turn(before: int, number: int, token: int) -> CompletedTurn:
    made = CompletedTurn(
        number=number,
        before=before,
        after=0,
        written=np.array([token], dtype=np.int32),
        logprobs=np.zeros(1, dtype=np.float32),
        policies=np.array([[1, 0, 1]], dtype=np.int32),
        answer=np.zeros(2, dtype=np.int32),
        policy=PolicyVersion(1, 0),
        calls=(),
        replies=(),
        state=b"",
        tool_states={},
        seconds=0.0,
    )
    return replace(made, after=turn_check(made))


def history(*tokens: int) -> list[CompletedTurn]:
    """A run of the rollout that wrote these tokens, one a turn."""
    turns: list[CompletedTurn] = []
    for number, token in enumerate(tokens, 1):
        turns.append(turn(turns[-1].after if turns else PROMPT, number, token))
    return turns


def of(*turns: CompletedTurn, generator: str = "rollout_generator.0") -> TurnsCompleted:
    return TurnsCompleted(ROLLOUT, generator, turns)


@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 4)), max_size=12),
    st.integers(0, 6),
)
def test_what_is_kept_is_always_a_beginning_of_one_history(runs, arrivals, room):
    """Messages of several runs of a rollout may come in any order, some of them twice or never."""
    histories = [history(*tokens) for tokens in runs]
    limit = room * size_of(histories[0][0])
    kept = KeptTurns(limit)
    for which, first, count in arrivals:
        own = histories[which % len(histories)]
        if turns := own[first : first + count]:
            kept.add(of(*turns))
        found = kept.of(ROLLOUT)
        assert chain_fault(PROMPT, found) == ""
        assert any([each.after for each in found] == [each.after for each in own[: len(found)]] for own in histories)
        assert kept.bytes == sum(map(size_of, found)) <= limit
    kept.forget(ROLLOUT)
    assert (kept.of(ROLLOUT), kept.bytes) == ((), 0)


# Messages, each with a run of the rollout and the numbers of its turns. The runs part after turn 1. What is kept then.
@pytest.mark.parametrize(
    ("messages", "kept"),
    [
        ("a1 a2 a1 a3", "a123"),  # a turn that comes twice changes nothing
        ("a123 b3", "a123"),  # it continues a turn 2 that is not kept
        ("a123 b2", "b12"),  # it goes on from an earlier turn, and replaces the later ones
    ],
)
def test_turns_continue_what_is_kept(messages, kept):
    runs = {"a": history(1, 2, 3), "b": history(1, 5, 6)}
    held = KeptTurns(1 << 20)
    for run, *numbers in messages.split():
        held.add(of(*(runs[run][int(number) - 1] for number in numbers)))
    run, *numbers = kept
    assert [each.after for each in held.of(ROLLOUT)] == [runs[run][int(number) - 1].after for number in numbers]


def test_what_finds_no_room_is_left_out_and_counted_and_what_is_there_stays():
    turns = history(1, 2, 3)
    kept = KeptTurns(size_of(turns[0]))
    kept.add(of(*turns))
    assert (kept.of(ROLLOUT), kept.left_out) == ((turns[0],), 1)


def test_turns_of_a_policy_that_the_run_has_not_had_are_forgotten():
    first, newest = history(1, 2)
    for at, newer in enumerate([(1, 1), (2, 0), (2, 1)]):
        kept = KeptTurns(1 << 20, recorded=True)
        turns = [replace(turn, policies=np.array([[1, 0, 1]] * 2, dtype=np.int32)) for turn in (first, newest)]
        turns[at % 2].policies[0, :2] = newer
        kept.add(of(*turns))
        for policy in (PolicyVersion(3, 0), PolicyVersion(*newer), PolicyVersion(newer[0], newer[1] + 1)):
            kept.forget_newer(policy)
        assert len(kept.of(ROLLOUT)) == 2
        kept.forget_newer(PolicyVersion(1, 0))
        assert (kept.of(ROLLOUT), kept.bytes, [len(each.turns) for each in kept.changes()]) == ((), 0, [2, 0])


def test_a_scheduler_keeps_the_turns_of_the_generator_that_has_the_rollout_until_it_is_done():
    kept = KeptTurns(1 << 20)
    world = World(kept=kept).begin()
    made, request = world.scheduler, world.place(ROLLOUT).request
    assert made.with_turns(request) is request
    made.turns_completed(of(*history(9), generator="rollout_generator.7"))
    made.turns_completed(replace(of(*history(9)), rollout="s9-g000000/0/0"))
    assert kept.bytes == 0
    made.turns_completed(of(*history(1, 2)))
    assert [each.number for each in made.with_turns(request).turns] == [1, 2]
    assert replace(made.with_turns(request), turns=()) == request
    made.rollout_done(ROLLOUT)
    assert (made.with_turns(request), kept.bytes) == (request, 0)
    made.turns_completed(of(*history(1)))
    assert kept.bytes == 0
