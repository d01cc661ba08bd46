"""Compare two runs: the settings that differ, success with intervals, and whether the difference is one.

Where both runs answered the same problems, the difference is tested problem by problem: the exact sign-flip test,
which for one answer a problem is McNemar's exact test. Else the intervals of the two shares decide (Newcombe 1998,
method 10).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from agent_rl.evaluation.measures import compare
from agent_rl.groups.measures import wilson_interval
from agent_rl.records.run_data import Evaluation, Run, Step

LAST_STEPS = 10
"""Steps of which training success is the mean."""
SIGNIFICANT = 0.05
NUMBERS = (
    *("steps", "steps_updated", "groups_trained", "groups_dropped", "rollouts_sampled"),
    *("tokens_sampled", "tokens_trained", "tokens_per_second_rl", "mean_staleness", "minutes", "minutes_rl"),
)
"""Figures of the summary that are shown as they are: a run has each once, so that nothing is known of its spread."""
PLACES = frozenset({"run.directory", "run.name"})
"""Settings that say where a run is, and not what it does."""


@dataclass(frozen=True, slots=True)
class Share:
    """A share with its 95 % interval."""

    value: float
    low: float
    high: float
    trials: int


@dataclass(frozen=True, slots=True)
class Difference:
    """A share of both runs. ``difference`` is b - a with its 95 % interval.

    ``problems``: how many are in both, where these were paired; then ``p`` is of the test, and b was right more often
    at ``better`` of them, less often at ``worse``. None where shares were compared as a whole.
    """

    figure: str
    a: Share
    b: Share
    difference: float
    low: float
    high: float
    problems: int | None = None
    p: float | None = None
    better: int | None = None
    worse: int | None = None

    @property
    def verdict(self) -> str:
        """In words."""
        real = self.p < SIGNIFICANT if self.p is not None else self.low > 0 or self.high < 0
        if not real:
            return "not distinguishable"
        return "B is higher" if self.difference > 0 else "B is lower"


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Run B against run A. Settings and numbers are pairs; None stands for one that is not there."""

    a: str
    b: str
    settings: dict[str, tuple[Any, Any]]
    shares: tuple[Difference, ...]
    numbers: dict[str, tuple[float | None, float | None]]

    def json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self) | {"shares": [asdict(each) | {"verdict": each.verdict} for each in self.shares]}


def compare_runs(a: Run, b: Run) -> RunComparison:
    """Compare two runs, each running, ended or stopped. Raises JournalError."""
    summaries = a.summary, b.summary
    numbers = {name: (summaries[0].get(name), summaries[1].get(name)) for name in NUMBERS}
    shares = [_evaluated(a, b, *pair) for pair in pairs(list(a.evaluations), list(b.evaluations))]
    return RunComparison(
        str(a.directory),
        str(b.directory),
        differing(a.settings, b.settings),
        (*shares, *_trained(list(a.steps), list(b.steps))),
        {name: both for name, both in numbers.items() if both != (None, None)},
    )


def differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The settings that differ, in the order of their files."""
    keys = [key for key in {**a, **b} if key not in PLACES]
    return {key: (a.get(key), b.get(key)) for key in keys if a.get(key) != b.get(key)}


def pairs(a: Sequence[Evaluation], b: Sequence[Evaluation]) -> Iterator[tuple[Evaluation, Evaluation]]:
    """The evaluations to compare: of each name and way in both, the last after equally many steps.

    Where no name is in both, the last evaluation of each.
    """
    of_a, of_b = (_named(of) for of in (a, b))
    if a and b and not {name for name, *_ in of_a} & {name for name, *_ in of_b}:
        of_a, of_b = (_last(of) for of in (a, b))
    last: dict[tuple[str, str], tuple[Evaluation, Evaluation]] = {}
    for (name, at_step, way), each in of_a.items():
        if other := of_b.get((name, at_step, way)):
            last[name, way] = each, other
    yield from last.values()


def _named(evaluations: Sequence[Evaluation]) -> dict[tuple[str, int | None, str], Evaluation]:
    return {(each.name, each.at_step, each.way): each for each in evaluations}


def _last(evaluations: Sequence[Evaluation]) -> dict[tuple[str, int | None, str], Evaluation]:
    """The last evaluation, without its name."""
    return {("", None, each.way): each for each in evaluations if each.name == evaluations[-1].name}


def _evaluated(a: Run, b: Run, of_a: Evaluation, of_b: Evaluation) -> Difference:
    names = dict.fromkeys(
        f"{each.name}" + ("" if each.at_step is None else f" after {each.at_step} steps") for each in (of_a, of_b)
    )
    figure = f"success, {' and '.join(names)}, {of_a.way}"
    share_a, share_b = (Share(x.success, x.low, x.high, x.problems) for x in (of_a.answers, of_b.answers))
    solved_a, solved_b = a.solved(of_a), b.solved(of_b)
    both = [key for key in solved_a if key in solved_b]
    if 2 * len(both) < max(1, len(solved_a), len(solved_b)):  # too few to speak for the rest
        return unpaired(figure, share_a, share_b)
    found = compare([solved_a[key] for key in both], [solved_b[key] for key in both])
    interval = found.difference, found.low, found.high
    return Difference(figure, share_a, share_b, *interval, found.problems, found.p, found.better, found.worse)


def _trained(a: Sequence[Step], b: Sequence[Step]) -> Iterator[Difference]:
    """Training success of the last steps, as many of both. Answers to one problem count as one trial."""
    count = min(len(a), len(b), LAST_STEPS)
    shares = []
    for steps in (a[len(a) - count :], b[len(b) - count :]):
        rollouts = sum(step.figures.sampled.rollouts for step in steps)
        right = math.fsum(step.figures.sampled.success * step.figures.sampled.rollouts for step in steps)
        groups = sum(step.figures.groups_decided for step in steps)
        if rollouts:
            shares.append(Share(right / rollouts, *wilson_interval(right / rollouts * groups, groups), groups))
    if len(shares) == 2:
        yield unpaired(f"success in training, last {count} steps", *shares)


def unpaired(figure: str, a: Share, b: Share) -> Difference:
    """The difference of two independent shares, with Newcombe's interval of their own intervals."""
    difference = b.value - a.value
    low = difference - math.hypot(b.value - b.low, a.high - a.value)
    high = difference + math.hypot(b.high - b.value, a.value - a.low)
    return Difference(figure, a, b, difference, low, high)
