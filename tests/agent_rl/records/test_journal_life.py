"""The journal against plain lists: groups live and die, steps close and are replayed, the process and the power go."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from agent_rl.figures import EvaluationFigures, StepFigures, TrainingFigures
from agent_rl.messages import Evaluation, Judgement
from agent_rl.records.audit import audit_journal
from agent_rl.records.journal import GroupRow, Journal, StepRow
from agent_rl.records.journal_rows import SampledRow, TrajectoryRow
from agent_rl.scheduling.ids import group_id
from agent_rl_contract.builders import evaluated

KINDS = ((0, None, "train"), (0, None, "train"), (0, 5, "evaluate_sampled"), (1, None, "select"), (2, None, "train"))
WHICH = st.integers(0, 99)
RESULTS = (Evaluation(0), Evaluation(0, 5), Evaluation(0, 9), Evaluation(1))


def judged(reward: float) -> Judgement:
    return Judgement(reward, success=reward > 0, parts={"tests": reward}, format_penalty=0.25, note="half")


class Life(RuleBasedStateMachine):
    """What is in ``HELD`` is what the journal must hold."""

    HELD = ("groups", "rollouts", "steps", "sampled", "results", "rows", "stage", "order")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.groups: dict[str, GroupRow] = {}
        self.rollouts: dict[str, dict[tuple[int, int], tuple[bytes, Judgement | None]]] = {}
        self.steps: dict[int, StepRow] = {}
        self.sampled: dict[int, SampledRow] = {}
        self.results: dict[Evaluation, EvaluationFigures] = {}
        self.rows: list[str] = []
        self.stage = self.order = 0
        self.open()
        self.run = self.journal.fact("run")
        for number, kind in enumerate(KINDS * 2):
            self.opens(kind=kind)
            self.ends(which=number, sample=0, attempt=0, reward=1.0)
        for of in RESULTS[:2]:
            self.has_a_result(of=of, success=0.5)
        self.commits()

    def open(self) -> None:
        self.journal = Journal(self.folder / "journal.sqlite")
        self.journal.counts(), self.journal.step_counts()  # from here on they are counted along

    def pick(self, which: int, *states: str, train: bool | None = None) -> str | None:
        found = [
            name
            for name, row in sorted(self.groups.items())
            if row.state in states and (train is None or (row.purpose == "train") == train) and row.step is None
        ]
        return found[which % len(found)] if found else None

    def change(self, name: str, **changes: Any) -> None:
        self.groups[name] = replace(self.groups[name], **changes)

    @rule(kind=st.sampled_from(KINDS))
    def opens(self, kind: tuple[int, int | None, str]) -> None:
        stage, at_step, purpose = kind
        number = sum((row.stage, row.at_step) == (stage, at_step) for row in self.groups.values())
        name = group_id(stage, number, at_step)
        for opened in (b"first", b"again"):
            self.journal.open_group(name, stage, number, purpose, opened, at_step)
        self.groups[name] = GroupRow(name, stage, at_step, number, purpose, b"first", 0)
        self.rollouts[name] = {}
        assert self.journal.dirty

    @rule(which=WHICH, sample=st.integers(0, 1), attempt=st.integers(0, 1), reward=st.sampled_from([None, 0.0, 1.0]))
    def ends(self, which: int, sample: int, attempt: int, reward: float | None) -> None:
        if name := self.pick(which, "open"):
            judgement = None if reward is None else judged(reward)
            self.journal.add_trajectory(name, sample, attempt, "finished", payload := bytes([which]) * 9, judgement)
            self.rollouts[name].setdefault((sample, attempt), (payload, judgement))

    @rule(which=WHICH, reward=st.sampled_from([0.0, 1.0]))
    def is_judged(self, which: int, reward: float) -> None:
        name = self.pick(which, "open", "ready")
        self.journal.judge(name or "none", 0, 0, judgement := judged(reward))
        if name and (0, 0) in self.rollouts[name]:
            self.rollouts[name][0, 0] = self.rollouts[name][0, 0][0], judgement

    @rule(which=WHICH, oldest=st.integers(0, 3))
    def is_ready(self, which: int, oldest: int) -> None:
        if name := self.pick(which, "open", train=True):
            self.order += 1
            self.journal.ready(name, [(0, 0)], [1], oldest, self.order)
            self.change(name, state="ready", kept=((0, 0),), rewards=(1.0,), oldest=oldest, decided_order=self.order)

    @rule(which=WHICH, counted=st.booleans(), success=st.sampled_from([0.0, 0.25, 1.0]))
    def is_dropped(self, which: int, counted: bool, success: float) -> None:
        if name := self.pick(which, "open", "ready", train=True):
            self.order += counted
            order = self.order if counted else 0
            self.journal.drop(name, "stale", success, 2, order)
            self.change(name, state="dropped", reason="stale", right=success > 0, oldest=2, decided_order=order)

    @rule(which=WHICH)
    def is_evaluated(self, which: int) -> None:
        if name := self.pick(which, "open", train=False):
            row = self.groups[name]
            if row.purpose == "select":
                self.sampled[row.number] = SampledRow(1, row.number, "maths", f"p{row.number}", 1, 2, 0, 9)
                self.journal.add_sampled(name, self.sampled[row.number])
            else:
                self.journal.evaluated(name)
            self.change(name, state="evaluated")

    @rule(which=WHICH)
    def is_asked_again(self, which: int) -> None:
        name = self.pick(which, "evaluated")
        self.journal.ask_again([name] if name else [each for each, row in self.groups.items() if row.state == "open"])
        if name:
            self.reset(name, rollouts={})

    def reset(self, name: str, rollouts: dict[Any, Any]) -> None:
        row = self.groups[name]
        self.groups[name] = GroupRow(name, row.stage, row.at_step, row.number, row.purpose, row.opened, 0)
        self.rollouts[name] = rollouts
        if row.purpose == "select":
            self.sampled.pop(row.number, None)

    @rule()
    def closes(self) -> None:
        decided = [
            name
            for name, row in self.groups.items()
            if (row.stage, row.purpose, row.step) == (self.stage, "train", None) and row.decided_order
        ]
        ready = [name for name in decided if self.groups[name].state == "ready"]
        version, figures = max(self.steps, default=-1) + 1, StepFigures(groups_trained=len(ready))
        self.journal.close_step(version, self.stage, ready, decided, figures)
        step = StepRow(version, self.stage, False, False, tuple(ready), tuple(decided), figures)
        self.steps[version] = step
        for name in decided:
            self.change(name, step=version)

    @rule(which=WHICH, replayed=st.booleans(), skipped=st.booleans())
    def is_trained(self, which: int, replayed: bool, skipped: bool) -> None:
        versions = sorted(v for v, step in self.steps.items() if step.trained == replayed)
        if not versions:
            return
        version = versions[which % len(versions)] if replayed else versions[0]
        step, figures = self.steps[version], TrainingFigures(loss=float(which))
        fresh = self.journal.step_trained(version, figures, dropped_for="not_finite" if skipped else "")
        assert fresh == (not step.trained)
        if not step.skipped:
            self.steps[version] = replace(step, trained=True, skipped=skipped, learner_figures=figures)
            for name in step.groups:
                self.change(name, state="dropped" if skipped else "trained", reason="not_finite" if skipped else "")

    @rule()
    def leaves_the_stage(self) -> None:
        self.stage = 2
        left = [name for name, row in self.groups.items() if row.stage < 2 and row.state in {"open", "ready"}]
        self.undo(lambda step: step.stage < 2)
        assert self.journal.leave_stages(but=2, reason="stage_boundary") == len(left)
        for name in left:
            self.change(name, state="dropped", reason="stage_boundary")

    def undo(self, which: Any) -> None:
        for version, step in list(self.steps.items()):
            if not step.trained and which(step):
                del self.steps[version]
                for name in step.decided:
                    self.change(name, step=None)

    @rule(of=st.sampled_from(RESULTS), success=st.floats(0, 1))
    def has_a_result(self, of: Evaluation, success: float) -> None:
        figures = evaluated(success)
        assert self.journal.add_evaluation(of, figures) == (of not in self.results)
        self.results.setdefault(of, figures)  # the first result counts
        self.rows.append(f"row {len(self.rows)}")
        self.journal.add_record(self.rows[-1])
        self.journal.set_fact("newest", self.rows[-1])

    @rule()
    def commits(self) -> None:
        self.journal.commit(flush=True)
        assert not self.journal.dirty
        self.saved = copy.deepcopy({name: getattr(self, name) for name in self.HELD})

    @rule()
    def is_killed(self) -> None:
        self.journal.abandon()
        vars(self).update(copy.deepcopy(self.saved))
        self.open()

    @rule(part=st.floats(0, 1))
    def loses_power(self, part: float) -> None:
        """The disk keeps all bytes of what is trained, and a part of those behind."""
        self.commits()
        self.is_killed()  # rows are undone as a journal is opened
        places = self.journal._select(TrajectoryRow)
        segments = {each.group_id: getattr(self.journal.group(each.group_id), "segment", -1) for each in places}
        ends = dict.fromkeys(segments.values(), 0)
        for trained in (True, False):
            for each in places:
                if (self.groups[each.group_id].state == "trained") == trained:
                    segment, end = segments[each.group_id], each.offset + each.size
                    ends[segment] = max(ends[segment], end if trained else int(end * part))
        self.journal.forget_lost(ends)
        lost: dict[str, set[tuple[int, int]]] = {}
        for each in places:
            if each.offset + each.size > ends[segments[each.group_id]]:
                lost.setdefault(each.group_id, set()).add((each.sample, each.attempt))
        again = {name for name in lost if self.groups[name].state in {"ready", "evaluated"}}
        first = min((v for v, s in self.steps.items() if not s.trained and again & {*s.decided}), default=None)
        self.undo(lambda step: first is not None and step.version >= first)
        for name, gone in lost.items():
            left = {place: of for place, of in self.rollouts[name].items() if place not in gone}
            if name in again:
                self.reset(name, left)
            self.rollouts[name] = left

    @invariant()
    def agrees(self) -> None:
        journal = self.journal
        for name, row in self.groups.items():
            there = journal.group(name)
            assert there is not None
            assert replace(there, segment=0) == row
            stored = journal.trajectories(name)
            assert {(each.sample, each.attempt): (each.payload, each.judgement) for each in stored} == self.rollouts[
                name
            ]
        rows, steps = self.groups.values(), [self.steps[version] for version in sorted(self.steps)]
        assert journal.steps() == steps
        assert journal.closed_versions() == [step.version for step in steps]
        assert {*journal.group_states()} == {(row.id, row.state, row.step) for row in rows}
        assert journal.group_ids() == [row.id for row in sorted(rows, key=lambda row: (row.stage, row.number, row.id))]
        done = [row for row in rows if (row.stage, row.state) == (0, "evaluated")]
        assert [row.id for row in journal.groups(stage=0, states=("evaluated",))] == sorted(row.id for row in done)
        right = {row.id: [judged.success for _, judged in self.rollouts[row.id].values() if judged] for row in done}
        assert journal.judged(0) == {name: sum(each) for name, each in right.items()}
        whole = {of.stage: figures for of, figures in self.results.items() if of.at_step is None}
        within = {of.at_step: figures for of, figures in self.results.items() if of.at_step is not None}
        assert (journal.evaluations(), journal.interim_evaluations(0)) == (whole, within)
        assert (journal.records(), journal.record_count()) == (self.rows, len(self.rows))
        assert (journal.fact("run"), journal.fact("newest")) == (self.run, self.rows[-1] if self.rows else None)
        assert journal.counts() == Counter((row.purpose, row.state, row.reason) for row in rows)
        trained = [step for step in steps if step.trained]
        empty, skipped = sum(not step.groups for step in trained), sum(step.skipped for step in trained)
        assert journal.step_counts() == (len(trained), empty, skipped)
        assert journal.last_step() == max((step.version for step in trained), default=-1)
        assert journal.sampled(1) == [self.sampled[number] for number in sorted(self.sampled)]
        uncounted = [row for row in rows if (row.stage, row.reason, row.decided_order) == (0, "stale", 0)]
        assert journal.uncounted(0, "stale") == len(uncounted)
        assert journal.opened_counts(0) == Counter(row.at_step for row in rows if row.stage == 0)
        gone = [row for row in rows if not self.rollouts[row.id]]
        assert journal.left() == sum(bool(row.decided_order) or row.state in {"trained", "evaluated"} for row in gone)
        balance = audit_journal(journal)
        assert balance.balanced, balance.faults
        fates = Counter(row.state for row in rows if row.purpose == "train")
        assert (balance.opened, balance.trained, sum(balance.dropped.values())) == (
            fates.total(), fates["trained"], fates["dropped"],
        )  # fmt: skip
        ages = [step.version - self.groups[name].oldest for step in steps if not step.skipped for name in step.groups]
        assert balance.staleness == max(ages, default=None)
        assert balance.evaluated == sum(row.state == "evaluated" for row in rows)
        assert journal.lost_steps() == []

    def teardown(self) -> None:
        self.journal.abandon()
        shutil.rmtree(self.folder)


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)


@pytest.mark.parametrize("then", ["is_trained", "leaves_the_stage", "loses_power"])
@pytest.mark.parametrize("trained", [0, 1, 2])
@pytest.mark.parametrize("behind", [False, True])
def test_two_steps_of_which_some_are_trained(behind: bool, trained: int, then: str) -> None:
    """Each counts a group that was dropped; one ``behind`` it on disk is ready. The first may be trained twice."""
    life = Life()
    for which in range(len(life.groups)):
        life.ends(which=which, sample=1, attempt=0, reward=1.0)
    for _ in range(2):
        life.is_ready(which=0, oldest=0)
        life.is_dropped(which=0, counted=True, success=0.0)
        if behind:
            life.is_ready(which=0, oldest=0)
        life.closes()
    for again in range(trained):
        life.is_trained(which=0, replayed=bool(again), skipped=False)
    given = {"is_trained": {"which": 0, "replayed": False, "skipped": True}, "loses_power": {"part": 0.0}}
    getattr(life, then)(**given.get(then, {}))
    life.agrees()
    life.teardown()
