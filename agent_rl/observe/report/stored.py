"""Chooses trajectories of the journal for people to read, by fixed rules.

The rules: held-out problems in the order of asking, a few for each outcome (wrong before and right after, ...), with
the counts of all outcomes; and the groups of the first and last RL step that the journal kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from agent_rl.messages import GroupOpened, Problem
from agent_rl.observe.report.records import WAYS, Records
from agent_rl.records.journal import Decode, Journal
from agent_rl.records.reading import Rollout, rollouts_of

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


@dataclass(frozen=True, slots=True)
class Comparison:
    """One or two evaluations of the same held-out problems. ``counts`` are of all problems, by outcome.

    ``pairs`` are the problems to show, each with its outcome and the rollout of each evaluation; None where no
    trajectory is stored.
    """

    names: tuple[str, ...]
    way: str
    counts: dict[tuple[bool, ...], int]
    pairs: list[tuple[Problem, tuple[bool, ...], tuple[Rollout | None, ...]]]


@dataclass(slots=True)
class Samples:
    """The trajectories to show."""

    comparison: Comparison | None = None
    ends: list[Rollout] = field(default_factory=list)
    """Those of the first and of the last RL step, as far as the journal keeps them as samples."""


def choose_samples(journal: Journal, records: Records, decode: Decode, *, ends: bool) -> Samples:
    """The samples. ``ends``: also groups of the first and last step. Raises JournalError and ValueError."""
    samples = Samples(_compare(journal, records, decode))
    if ends:
        samples.ends = list(_ends(journal, decode))
    return samples


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
                rollouts = (list(rollouts_of(journal, group.group, decode)) for group in groups)
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


def _ends(journal: Journal, decode: Decode) -> Iterator[Rollout]:
    rows = [row for name in journal.samples() if (row := journal.group(name)) is not None and row.step is not None]
    steps = [row.step for row in rows if row.step is not None]
    for row in sorted(rows, key=lambda row: row.step or 0):
        if row.step in {min(steps), max(steps)}:
            yield from islice(rollouts_of(journal, row.id, decode), SAMPLES_PER_GROUP)
