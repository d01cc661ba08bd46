"""The step assembler: counting, refilling, and the staleness budget under random schedules."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent_rl.scheduling.staleness import Step, StepAssembler


def assembler(**changes: object) -> StepAssembler:
    return StepAssembler(**{"version": 0, "groups_per_step": 2, "max_staleness": 1, "on_stale": "wait", **changes})  # type: ignore[arg-type]


def test_a_step_is_groups_per_step_decided_groups_equal_rewards_included() -> None:
    steps = assembler()
    for name in "ab":
        steps.opened(name, 0)
    steps.decided("a", 0, signal=True)
    assert steps.close() is None
    steps.decided("b", 0, signal=False)
    step = steps.close()
    assert step == Step(0, ("a",), ("a", "b"), (), (0,), 1)
    assert steps.close() is None
    assert steps.uncounted == 0


def test_a_step_without_any_signal_is_empty_and_counted() -> None:
    steps = assembler()
    for name in "ab":
        steps.opened(name, 0)
        steps.decided(name, 0, signal=False)
    step = steps.close()
    assert step is not None
    assert step.trained == ()
    assert steps.version == 1


def test_refill_replaces_groups_without_signal_up_to_its_limit() -> None:
    steps = assembler(refill=True, max_refill=2)
    for name in "abcd":
        steps.opened(name, 0)
    steps.decided("a", 0, signal=False)
    steps.decided("b", 0, signal=True)
    assert steps.close() is None
    assert steps.uncounted == 1
    steps.decided("c", 0, signal=False)
    assert steps.close() is None
    assert steps.uncounted == 2
    steps.decided("d", 0, signal=False)  # 2 * 2 decided: the step closes short
    step = steps.close()
    assert step is not None
    assert step.trained == ("b",)
    assert steps.uncounted == 2  # four opened, two counted: the step forgave the missing one


def test_waiting_holds_the_step_back_until_the_straggler_is_decided() -> None:
    steps = assembler(version=1)
    steps.opened("old", 0)
    for name in "ab":
        steps.opened(name, 1)
        steps.decided(name, 1, signal=True)
    assert steps.close() is None
    assert steps.waits_for() == ("old",)
    steps.decided("old", 0, signal=True)
    step = steps.close()
    assert step is not None
    assert step.trained == ("old", "a")  # the oldest first
    assert step.staleness == (1, 0)


def test_dropping_closes_the_step_and_drops_the_straggler() -> None:
    steps = assembler(version=1, on_stale="drop")
    steps.opened("old", 0)
    for name in "ab":
        steps.opened(name, 1)
        steps.decided(name, 1, signal=True)
    step = steps.close()
    assert step is not None
    assert step.dropped == ("old",)
    assert steps.uncounted == 1  # it may be replaced
    steps.forgotten("old")  # known no more
    assert steps.uncounted == 1


def test_training_corrected_takes_the_straggler_whenever_it_is_ready() -> None:
    steps = assembler(version=3, on_stale="train_corrected")
    steps.opened("old", 0)
    for name in "ab":
        steps.opened(name, 3)
        steps.decided(name, 3, signal=True)
    assert steps.close() is not None
    steps.decided("old", 0, signal=True)
    steps.opened("c", 4)
    steps.decided("c", 4, signal=True)
    step = steps.close()
    assert step is not None
    assert step.staleness == (4, 0)


def test_training_corrected_drops_a_straggler_that_would_grow_older_than_its_cap() -> None:
    steps = assembler(version=3, on_stale="train_corrected", max_corrected_staleness=4)
    steps.opened("old", 0)
    dropped = []
    for version in (3, 4):
        for name in "ab":
            steps.opened(name, version)
            steps.decided(name, version, signal=True)
        step = steps.close()
        assert step is not None
        dropped.append(step.dropped)
    assert dropped == [(), ("old",)]  # trained at version 5 it would be 5 behind


def test_waiting_leaves_room_for_all_that_is_due_later() -> None:
    steps = assembler(groups_per_step=1, max_staleness=3)
    for name in "abcd":  # all that may be opened at version 0: due by version 3
        steps.opened(name, 0)
    steps.decided("a", 0, signal=True)
    assert steps.close() is not None
    steps.opened("new", 1)
    steps.decided("new", 1, signal=True)
    # Three are due by version 3. If the new one were trained at version 1, only steps 2 and 3 would be left for them.
    assert steps.close() is None
    assert len(steps.waits_for()) == 1
    steps.decided("b", 0, signal=True)
    step = steps.close()
    assert step is not None
    assert (step.version, step.trained) == (1, ("b",))


@pytest.mark.parametrize(("on_stale", "dropped"), [("wait", "old"), ("drop", "old"), ("train_corrected", "older")])
def test_a_decided_group_whose_tokens_are_too_old_is_dropped_and_replaced(on_stale: str, dropped: str) -> None:
    """The versions of its tokens count, whatever its opening promised: its engine served a restored policy."""
    steps = assembler(version=38, on_stale=on_stale, max_corrected_staleness=4)
    for name, oldest in (("older", 33), ("old", 36), ("a", 37), ("b", 38)):
        steps.opened(name, 38)
        if name in {dropped, "a", "b"}:
            steps.decided(name, oldest, signal=True)
    assert steps.uncounted == 1  # another group may be opened before the step closes
    for name in {"old", "older"} - {dropped}:
        steps.forgotten(name)
    step = steps.close()
    assert step is not None
    assert (step.trained, step.dropped, steps.waiting) == (("a", "b"), (dropped,), 0)
    assert max(step.staleness) <= step.limit
    assert steps.uncounted == 2  # with the one that was forgotten


def again(steps: StepAssembler, decided: dict[str, tuple[int, bool]], open_groups: dict[str, int]) -> StepAssembler:
    """A new process's assembler, from what the journal holds."""
    new = replace(steps, _open={}, _waiting=[], surplus=steps.surplus)
    for name, (oldest, signal) in decided.items():
        new.decided(name, oldest, signal=signal)
    for name, oldest in open_groups.items():
        new.opened(name, oldest)
    return new


@settings(max_examples=300)
@example(seed=14837, budget=3, groups_per_step=1, on_stale="wait", refill=False, lag=0, restarts=0.0)
@given(
    seed=st.integers(0, 10**6),
    budget=st.integers(0, 5),
    groups_per_step=st.integers(1, 4),
    on_stale=st.sampled_from(["wait", "drop", "train_corrected"]),
    refill=st.booleans(),
    lag=st.integers(0, 2),
    restarts=st.sampled_from([0.0, 0.0, 0.05, 0.2]),
)
def test_no_group_is_trained_beyond_the_budget_and_the_run_ends(
    seed: int,
    budget: int,
    groups_per_step: int,
    on_stale: str,
    refill: bool,
    lag: int,
    restarts: float,
) -> None:
    """A random run: groups open within the bound, are decided in random order, and engines lag behind the learner.

    Restarts bring all engines back to any older policy, as a learner does that publishes while it trains steps again.
    """
    rng = random.Random(seed)
    steps = assembler(
        groups_per_step=groups_per_step,
        max_staleness=budget,
        on_stale=on_stale,
        refill=refill,
        max_refill=2,
        max_corrected_staleness=3,
    )
    most = max(budget, 3) if on_stale == "train_corrected" else budget
    served = opened = 0
    open_groups: dict[str, int] = {}
    decided: dict[str, tuple[int, bool]] = {}
    seen: list[str] = []
    for _ in range(4000):
        if steps.version >= 12:
            break
        if rng.random() < restarts:
            served = rng.randint(0, steps.version)
            steps = again(steps, decided, open_groups)
        if served < steps.version and (lag == 0 or rng.random() < 1 / lag):
            served += 1
        if opened - steps.uncounted < (budget + served + 1) * groups_per_step:
            name = f"g{opened}"
            opened += 1
            open_groups[name] = served
            steps.opened(name, served)
        if open_groups and rng.random() < 0.6:
            name = rng.choice(list(open_groups))
            # Its tokens may be newer than its opening, never older.
            oldest = rng.randint(min(open_groups.pop(name), served), served)
            decided[name] = oldest, rng.random() < 0.7
            steps.decided(name, oldest, signal=decided[name][1])
        while (step := steps.close()) is not None:
            assert all(staleness <= most for staleness in step.staleness)
            seen.extend(step.decided)
            for name in step.decided:
                del decided[name]
            for name in step.dropped:
                assert (name in open_groups) != (name in decided)
                open_groups.pop(name, None)
                decided.pop(name, None)
    assert steps.version >= 12
    assert len(seen) == len(set(seen))


def test_groups_not_open_are_not_forgotten_twice() -> None:
    steps = assembler()
    steps.opened("a", 0)
    steps.forgotten("a")
    steps.forgotten("a")
    assert steps.uncounted == 1


@pytest.mark.parametrize("budget", [0, 1, 2])
def test_synchronous_mode_is_the_budget_zero(budget: int) -> None:
    steps = assembler(max_staleness=budget)
    for name in "ab":
        steps.opened(name, 0)
    steps.opened("c", 0)
    for name in "ab":
        steps.decided(name, 0, signal=True)
    assert (steps.close() is None) == (budget == 0)
