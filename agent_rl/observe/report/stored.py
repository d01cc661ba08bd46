"""Reads the journal for the report: the fates of groups, and trajectories for people to read, chosen by fixed rules.

The rules: held-out problems in the order of asking, a few for each outcome (wrong before and right after, ...), with
the counts of all outcomes; and the groups of the first and last RL step that the journal kept. No other file of the
report knows the journal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from agent_rl.messages import GroupOpened, Judgement, Problem, Trajectory
from agent_rl.observe.report.records import METRICS, WAYS, Records
from agent_rl.records.audit import audit_journal
from agent_rl.records.journal import JOURNAL, Journal, JournalError, read_journal

Decode = Callable[[bytes], Any]
"""Decodes a message as the journal stores it. Raises ValueError for an invalid one."""

PAIRS_PER_OUTCOME = 2
SAMPLES_PER_GROUP = 32

OUTCOMES: dict[int, dict[tuple[bool, ...], str]] = {
    1: {(True,): "right", (False,): "wrong"},
    2: {
        (False, True): "wrong before, right after",
        (True, True): "right both times",
        (False, False): "wrong both times",
        (True, False): "right before, wrong after",
    },
}
"""The outcomes of a held-out problem, by whether it was right in each evaluation."""


class StoredRollout(NamedTuple):
    """A trajectory with its judgement, None where there is none. ``kept`` is None where nothing was selected."""

    trajectory: Trajectory
    judgement: Judgement | None
    kept: bool | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One or two evaluations of the same held-out problems. ``counts`` are of all problems, by outcome.

    ``pairs`` are the problems to show, each with its outcome and the rollout of each evaluation; None where no
    trajectory is stored.
    """

    names: tuple[str, ...]
    way: str
    counts: dict[tuple[bool, ...], int]
    pairs: list[tuple[Problem, tuple[bool, ...], tuple[StoredRollout | None, ...]]]


class SampleGroup(NamedTuple):
    """A training group with its rollouts. ``step`` counts the run's trained RL steps from 1."""

    stage: str
    step: int
    problem: Problem
    fate: str
    rollouts: tuple[StoredRollout, ...]


@dataclass(slots=True)
class Samples:
    """The trajectories to show."""

    comparison: Comparison | None = None
    first: list[SampleGroup] = field(default_factory=list)
    last: list[SampleGroup] = field(default_factory=list)


def read_stored(directory: Path, records: Records, decode: Decode) -> Samples:
    """Add the journal's facts to the records, and choose the samples. Unreadable content is noted."""
    samples = Samples()
    if not (directory / JOURNAL).is_file():
        records.notes.append(f"There is no {JOURNAL}: what became of the groups, and trajectories, cannot be shown.")
        return samples
    try:
        journal = read_journal(directory)
        try:
            _read_facts(journal, records)
            samples.comparison = _compare(journal, records, decode)
            samples.first, samples.last = _ends(journal, records, decode)
        finally:
            journal.close()
    except JournalError as error:
        records.journal_fault = str(error)
        records.notes.append(f"The journal cannot be read: {error}")
    except ValueError as error:
        records.notes.append(f"Trajectories cannot be read from the journal: {error}")
    return samples


def _read_facts(journal: Journal, records: Records) -> None:
    stage = journal.fact("stage")
    records.stage = int(stage) if stage is not None and stage.isdigit() else None
    records.audit = audit_journal(journal)
    records.fates = [(step, _fate(state, reason, right=right), n) for step, state, reason, right, n in journal.fates()]
    records.kept_rewards = journal.kept_rewards()
    if left := records.audit.left:
        records.notes.append(f"The trajectories of {left} groups have left the journal, as run.keep_trajectories says.")
    written = len(records.steps)
    if records.audit.steps != written:
        records.notes.append(
            f"The journal holds {records.audit.steps} trained steps, {METRICS} {written}: the curves show the latter."
        )
    if not records.audit.balanced:
        faults: Sequence[str] = records.audit.faults[:5] or ["groups opened are not groups accounted for"]
        records.notes.append(f"The journal does not balance: {'; '.join(faults)}. Run agent-rl audit.")


def _fate(state: str, reason: str, *, right: bool) -> str:
    if state == "dropped" and reason == "equal_rewards":
        return "all_right" if right else "all_wrong"
    if state == "dropped":
        return reason or "dropped"
    return state if state == "trained" else "open"


def _compare(journal: Journal, records: Records, decode: Decode) -> Comparison | None:
    """The first and the last complete evaluation, greedy if both have it. A single one is shown alone."""
    done = sorted(stage for stage in journal.evaluations() if stage < len(records.stages))
    ends = sorted({done[0], done[-1]}) if done else []
    for way in reversed(WAYS):
        sides = [_asked(journal, stage, way, decode) for stage in ends]
        common = [asked for asked in sides[0] if all(asked in side for side in sides)] if sides else []
        if not common:
            continue
        verdicts = [journal.judged(stage) for stage in ends]
        found = Comparison(
            tuple(records.stages[stage].name for stage in ends), way, dict.fromkeys(OUTCOMES[len(ends)], 0), []
        )
        for asked in common:
            groups = [side[asked] for side in sides]
            outcome = tuple(verdict[group.group] > 0 for verdict, group in zip(verdicts, groups, strict=True))
            found.counts[outcome] += 1
            if found.counts[outcome] <= PAIRS_PER_OUTCOME:
                rollouts = (_rollouts(journal, group.group, decode) for group in groups)
                found.pairs.append((groups[0].problem, outcome, tuple(each[-1] if each else None for each in rollouts)))
        order = list(found.counts)
        found.pairs.sort(key=lambda pair: order.index(pair[1]))
        return found
    return None


def _asked(journal: Journal, stage: int, way: str, decode: Decode) -> dict[tuple[str, int], GroupOpened]:
    """The evaluation's groups by problem, in the order of asking. A problem may occur several times."""
    found: dict[tuple[str, int], GroupOpened] = {}
    times: Counter[str] = Counter()
    for row in journal.groups(stage=stage, states=("evaluated",)):
        if row.purpose == f"evaluate_{way}":
            group: GroupOpened = decode(row.opened)
            found[group.problem.id, times[group.problem.id]] = group
            times[group.problem.id] += 1
    return found


def _ends(journal: Journal, records: Records, decode: Decode) -> tuple[list[SampleGroup], list[SampleGroup]]:
    """The groups of the first and of the last RL step among those that the journal keeps as samples."""
    rows = [row for name in journal.samples() if (row := journal.group(name)) is not None and row.step is not None]
    steps = [row.step for row in rows if row.step is not None]
    trained = [step.version for step in journal.steps() if step.trained]
    ends: dict[int, list[SampleGroup]] = {}
    for row in sorted(rows, key=lambda row: row.step or 0):
        if row.step not in {min(steps), max(steps)}:
            continue
        groups = ends.setdefault(row.step, [])
        if rollouts := _rollouts(journal, row.id, decode, frozenset(row.kept)):
            stage = records.stages[row.stage].name if row.stage < len(records.stages) else ""
            problem = decode(row.opened).problem
            groups.append(
                SampleGroup(stage, trained.index(row.step) + 1, problem, row.reason or row.state, tuple(rollouts))
            )
    first, *later = ends.values() or [[]]
    return first, later[-1] if later else []


def _rollouts(
    journal: Journal, group: str, decode: Decode, kept: frozenset[tuple[int, int]] = frozenset()
) -> list[StoredRollout]:
    """A group's stored rollouts. ``kept``: those selected for training, as (sample, attempt)."""
    return [
        StoredRollout(decode(each.payload), each.judgement, (each.sample, each.attempt) in kept if kept else None)
        for each in journal.trajectories(group)[:SAMPLES_PER_GROUP]
    ]
