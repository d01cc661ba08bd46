"""The step assembler: stories of what closes and what is dropped, and its rule over random runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agent_rl.scheduling.staleness import Step, StepAssembler

PLAIN = {"version": 0, "groups_per_step": 2, "max_staleness": 1, "on_stale": "wait"}
DROP, CORRECT = {"on_stale": "drop"}, {"on_stale": "train_corrected", "max_corrected_staleness": 4}
REFILL = {"refill": True, "max_refill": 2}

# Words: `a@3` group a is opened at version 3. `a+3` it is decided, with tokens from version 3 on; `a-3`: without signal.
# `a!` it is forgotten. `.` no step closes. `[ab|c]` a step trains a and b, and drops c. `?ab` the next step waits for a
# and b alone. `=2` two groups are not counted.
STORIES = {
    "equal rewards count towards a step": ({}, "a@0 b@0 a+0 . ? b-0 [a|] . =0"),
    "a step without signal is empty": ({}, "a@0 b@0 a-0 b-0 [|] =0"),
    "what was decided first is trained first": ({}, "a@0 b@0 c@0 b+0 c+0 a+0 [bc|] . =0"),
    "refill replaces groups": (REFILL, "a@0 b@0 c@0 a-0 b+0 . =1 c+0 [bc|] =1"),
    "refill ends with a short step": (REFILL, "a@0 b@0 c@0 d@0 a-0 b+0 c-0 . =2 d-0 [b|] =2"),
    "what is too old is no refill": (REFILL | {"version": 1}, "a@1 b@1 c@1 d@0 d+-1 a-1 b+1 c-1 . =3 e@1 e-1 [b|d] =3"),
    "what refill replaces takes no place": (REFILL | {"groups_per_step": 1}, "a@0 b@0 c@0 a+0 b-0 [a|] =1 c+0 [c|] ."),
    "what takes no place leaves with its step": (REFILL, "a@0 b@0 c@0 a-0 b+0 c+0 [bc|] d@1 e@1 d+1 . e+1 [de|] =1"),
    "a straggler is waited for, and goes first": ({"version": 1}, "o@0 a@1 b@1 a+1 ? b+1 . ?o o+0 [oa|] ."),
    "groups without signal have places too": ({"version": 1}, "o@0 a@1 b@1 a-1 b-1 . ?o o-0 [|]"),
    "stragglers are waited for oldest first": ({"version": 2}, "n@1 z@0 c@2 a@2 b@2 a+2 b+2 . ?zn"),
    "what fits later has its place, and no more": (
        {"version": 1, "max_staleness": 2}, "a@0 c@1 d@1 e@1 f@1 b@1 g@1 b+1 g+1 . ?f",
    ),
    "with refill, what is left has its place": (REFILL | {"groups_per_step": 1}, "a@0 b@0 c@0 a+0 . ?c b+0 . ?c"),
    "all that is due later keeps its place": ({"groups_per_step": 1, "max_staleness": 3}, "a@0 b@0 c@0 d@0 a+0 [a|] n@1 n+1 . ?d b+0 [b|] ."),
    "budget 0 is synchronous": ({"max_staleness": 0}, "a@0 b@0 c@0 a+0 b+0 . ?c c+0 [ab|]"),
    "a straggler is dropped, and replaced once": (DROP | {"version": 1}, "o@0 a@1 b@1 a+1 b+1 ? [ab|o] =1 o! =1"),
    "a straggler is trained late": (CORRECT | {"version": 3}, "o@0 a@3 b@3 a+3 b+3 ? [ab|] o+0 c@4 c+4 [oc|] ."),
    "a straggler is dropped at its cap": (CORRECT | {"version": 4}, "o@0 p@0 q@0 a@4 b@4 a+4 b+4 [ab|opq] =3"),
    "the cap is no tighter than the budget": (CORRECT | {"version": 5, "max_staleness": 5}, "o@0 a@5 o+0 a+5 [oa|]"),
    "a group is forgotten once": ({}, "a@0 a! a! =1"),
    "of an old group without signal is known that it is counted": ({"version": 3}, "a@3 b@3 a-0 b+3 [b|] =0"),
    "tokens older than the opening promised": ({"version": 8}, "o@8 a@8 b@8 o+6 a+7 b+8 =1 [ab|o] =1"),
    "tokens older than the opening promised, dropped": (DROP | {"version": 8}, "o@8 a@8 o+6 a+7 . =1 b@8 b+8 [ab|o] =1"),
    "tokens older than the cap": (CORRECT | {"version": 8}, "o@8 p@8 a@8 o+3 p+4 . =1 a+7 [pa|o] =1"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "story"), STORIES.values(), ids=STORIES)
def test_story(changes, story):
    steps = StepAssembler(**{**PLAIN, **changes})
    for count, word in enumerate(story.split(), 1):
        told = " ".join(story.split()[:count])
        if word == "." or word[0] == "[":
            step, limit = steps.close(), steps.limit
            assert ((step and "[{}|{}]".format(*map("".join, (step.trained, step.dropped)))) or ".") == word, told
            assert step is None or (step.limit, len(step.staleness)) == (limit, len(step.trained)), told
        elif word[0] == "?":
            assert "".join(steps.waits_for()) == word[1:], told
        elif word[0] == "=":
            assert steps.uncounted == int(word[1:]), told
        elif word[1] == "@":
            steps.opened(word[0], int(word[2:]))
        elif word[1] == "!":
            steps.forgotten(word[0])
        else:
            steps.decided(word[0], int(word[2:]), signal=word[1] == "+")


class Run(RuleBasedStateMachine):
    """Groups are opened within the budget and decided in any order. Engines lag behind, and processes restart."""

    @initialize(
        size=st.integers(1, 3), budget=st.integers(0, 3), cap=st.integers(0, 4), refill=st.booleans(),
        on_stale=st.sampled_from(["wait", "drop", "train_corrected"]),
    )  # fmt: skip
    def begin(self, size: int, budget: int, cap: int, on_stale: str, *, refill: bool) -> None:
        given = {"max_staleness": budget, "max_corrected_staleness": cap, "on_stale": on_stale, "refill": refill}
        self.steps = StepAssembler(**{**PLAIN, "groups_per_step": size, "max_refill": 2, **given})
        self.size, self.refill, self.budget, self.served, self.number = size, refill, budget, 0, 0
        self.limit = max(budget, cap) if on_stale == "train_corrected" else budget
        self.open: dict[str, int] = {}
        self.decided: dict[str, tuple[int, bool]] = {}

    @rule(count=st.integers(1, 9))
    def opens(self, count: int) -> None:
        for _ in range(count):
            if self.number - self.steps.uncounted < (self.budget + self.served + 1) * self.size:
                name, self.number = f"g{self.number:03}", self.number + 1
                self.open[name] = self.served
                self.steps.opened(name, self.served)

    @rule(picks=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.booleans()), min_size=1, max_size=6))
    def decides(self, picks: list[tuple[int, int, bool]]) -> None:
        for at, newer, signal in picks[: len(self.open)]:
            name = sorted(self.open)[at % len(self.open)]
            self.decided[name] = min(self.open.pop(name) + newer, self.served), signal
            self.steps.decided(name, self.decided[name][0], signal=signal)
            self.closes_by_the_rule()

    @precondition(lambda self: self.open)
    @rule()
    def forgets(self) -> None:
        self.steps.forgotten(self.open.popitem()[0])

    @rule()
    def serves(self) -> None:
        self.served = min(self.served + 1, self.steps.version)

    @rule(back=st.integers(0, 3))
    def restarts(self, back: int) -> None:
        self.served = max(0, self.served - back)
        self.steps = replace(self.steps, _open={}, _waiting=[])
        for name, (oldest, signal) in self.decided.items():
            self.steps.decided(name, oldest, signal=signal)
        for name, oldest in self.open.items():
            self.steps.opened(name, oldest)

    @invariant()
    def closes_by_the_rule(self) -> None:
        while hasattr(self, "steps"):
            timely = {name: it for name, it in self.decided.items() if not it[1] or self.age(it[0]) <= self.limit}
            counted = sum(signal or not self.refill for _, signal in timely.values())
            assert self.steps.uncounted == self.number - self.steps.version * self.size - len(self.open) - counted
            ranked = sorted(timely, key=lambda name: timely[name][0])  # stable: in the order in which they were decided
            kept = [name for name in ranked if timely[name][1] or not self.refill][: self.size]
            taken = [name for name in ranked if name in kept or (not timely[name][1] and self.refill)]
            complete = len(kept) == self.size or (self.refill and len(timely) >= 2 * self.size)
            left = [timely[name][0] for name in ranked if name not in taken]
            fits = self.fits([*left, *self.open.values()])
            step = self.steps.close()
            assert (step is not None) == (complete and (fits or self.steps.on_stale != "wait"))
            if step is None:
                return
            overdue = [name for name in step.dropped if name in self.open]
            rest = [*left, *(oldest for name, oldest in self.open.items() if name not in overdue)]
            assert not any(self.fits([*rest, self.open[name]], after=0) for name in overdue), "dropped in vain"
            assert self.fits(rest, after=0)
            late = [name for name in self.decided if name not in timely]
            trained = [name for name in taken if timely[name][1]]
            old = tuple(self.age(timely[name][0], after=-1) for name in trained)
            expected = Step(self.steps.version - 1, tuple(trained), tuple(taken), (*overdue, *late), old, self.limit)
            assert step == expected
            self.open = {name: oldest for name, oldest in self.open.items() if name not in overdue}
            self.decided = {name: it for name, it in self.decided.items() if name not in {*taken, *late}}

    def age(self, oldest: int, after: int = 0) -> int:
        return self.steps.version + after - oldest

    def fits(self, groups: list[int], after: int = 1) -> bool:
        """The rule, ``after`` further steps: at most (d - v + 1) g of these groups are due by d, for each d."""
        dues = [self.limit - self.age(oldest, after) for oldest in groups]
        return all(sum(due <= by for due in dues) <= max(0, by + 1) * self.size for by in dues)

    def teardown(self) -> None:
        for _ in range(40 if hasattr(self, "steps") else 0):
            self.serves()
            self.opens(4)
            for name in sorted(self.open):
                self.steps.decided(name, self.open[name], signal=True)
                self.decided[name] = self.open.pop(name), True
            before = self.steps.version
            self.closes_by_the_rule()
        assert not hasattr(self, "steps") or self.steps.version > before, "the run does not end"


TestRun = Run.TestCase
TestRun.settings = settings(max_examples=50, stateful_step_count=25)
