"""What a run has lost, repeated and left at its end, from its journal and records. Pure."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_rl.config.topology import Topology
from agent_rl.environments.load import Environments
from agent_rl.groups.instructions import TOO_FEW_ROLLOUTS
from agent_rl.records.audit import audit_journal
from agent_rl.records.journal import Journal
from benchmarks.chaos.doing import Done
from benchmarks.chaos.plan import ENDS_RUN, Kind
from benchmarks.chaos.recording import Turns

SHARES = ("success_before_sampled", "success_before_greedy", "success_after_sampled", "success_after_greedy")
STATES = ("open", "ready", "trained", "evaluated", "dropped")


@dataclass(frozen=True)
class Accounts:
    """What a finished run's journal says. Both lists are empty when nothing went wrong."""

    lost: tuple[str, ...]
    """Groups and problems that were never used, in words."""
    repeated: tuple[str, ...]
    """Groups that count more than once, in words."""
    balanced: bool


@dataclass(frozen=True)
class Ended:
    """A run that ended: its faults, and what is known of it."""

    done: Sequence[Done]
    accounts: Accounts
    turns: Turns
    left: Sequence[str]
    summary: Mapping[str, Any]
    seconds: float
    twin: Mapping[str, Any] | None = None
    """The summary of the same run left alone."""


def read_accounts(journal: Journal, stages: int) -> Accounts:
    """The accounts of a finished run with so many stages.

    A group is lost when it is still open, when it was dropped since too many of its rollouts failed, or when its
    number is missing: the numbers of a stage's groups, and of an evaluation's problems, count from 0.
    """
    lost: list[str] = []
    numbers: defaultdict[tuple[int, int | None, str], list[int]] = defaultdict(list)
    for stage in range(stages):
        for group in journal.groups(stage=stage, states=STATES):
            numbers[stage, group.at_step, "train" if group.purpose == "train" else "evaluate"].append(group.number)
            if group.state in {"open", "ready"}:
                lost.append(f"{group.id} is {group.state}")
            if group.reason == TOO_FEW_ROLLOUTS:
                lost.append(f"{group.id} was dropped: {group.reason}")
    repeated: list[str] = []
    for (stage, at_step, purpose), found in numbers.items():
        where = f"stage {stage}" + ("" if at_step is None else f" at step {at_step}")
        lost += [f"{where}: no group {number} to {purpose}" for number in set(range(max(found) + 1)) - set(found)]
        if purpose == "train":
            repeated += [f"{where}: two groups {number}" for number in _twice(found)]
    for stage, figures in journal.evaluations().items():
        for way, answers in figures.ways().items():
            lost += [f"stage {stage}: {answers.lost} answers, {way}"] if answers.lost else []
    repeated += [f"{group} was trained twice" for group in _twice(g for step in journal.steps() for g in step.groups)]
    return Accounts(tuple(lost), tuple(repeated), audit_journal(journal).balanced)


def wrong_prompts(journal: Journal, topology: Topology, base: Path, decode: Callable[[bytes], Any]) -> list[str]:
    """Groups whose prompt is not that of their number: a prompt that is lost, or trained twice, moves all others.

    ``base``: the directory of the topology file. ``decode`` reads what the journal holds of a group.
    """
    tasks = Environments(topology, base).tasks()
    wrong = []
    for at, stage in enumerate(topology.stages):
        for group in journal.groups(stage=at, states=STATES):
            if group.purpose == "train":
                right = tasks.problem(at, group.number)
            else:
                right = tasks.evaluation(group.number % (stage.problems if stage.kind == "evaluate" else 1 << 62))
            if decode(group.opened).problem.id != right.id:
                wrong.append(f"{group.id} asks {decode(group.opened).problem.id}, and its number is that of {right.id}")
    return wrong


def wrongly_trained(journal: Journal, trained: Sequence[str]) -> tuple[list[str], list[str]]:
    """Groups of the journal's steps that the model was not trained on, and those that it was trained on again.

    ``trained``: all groups that a scripted model was trained on, as its last checkpoint has them.
    """
    times, recorded = Counter(trained), {group for step in journal.steps() for group in step.groups}
    lost = [f"the model was not trained on {group}" for group in sorted(recorded - times.keys())]
    again = [f"the model was trained {count} times on {group}" for group, count in times.items() if count > 1]
    return lost, again + [f"the model was trained on {group} of no step" for group in sorted(times.keys() - recorded)]


def _twice(found: Iterable[Any]) -> list[Any]:
    seen: set[Any] = set()
    return [each for each in found if each in seen or seen.add(each)]  # type: ignore[func-returns-value]


def intervals_meet(one: Mapping[str, Any], other: Mapping[str, Any], share: str) -> bool:
    """Whether the 95 % intervals of two runs' success meet."""
    return bool(one[f"{share}_low"] <= other[f"{share}_high"] and other[f"{share}_low"] <= one[f"{share}_high"])


def within_noise(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> bool | None:
    """Whether runs with faults succeed as their twins do; None without twins.

    One pair: the intervals of all four shares meet. Several: for each share the 95 % interval of the mean difference
    (by Student's t, over pairs) holds 0. Noise of the training is in the second, not in the first.
    """
    if not pairs:
        return None
    if len(pairs) == 1:
        return all(intervals_meet(*pairs[0], share) for share in SHARES)
    return all(_holds_zero([one[share] - other[share] for one, other in pairs]) for share in SHARES)


T_95 = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5th percentiles of Student's t with 1, 2, ... degrees of freedom."""


def _holds_zero(differences: Sequence[float]) -> bool:
    t = T_95[min(len(differences) - 1, len(T_95)) - 1]
    half = t * statistics.stdev(differences) / math.sqrt(len(differences))
    return abs(statistics.fmean(differences)) <= half + 1e-12


def is_heavy(done: Done) -> bool:
    """Whether the fault ended the run or its learner: these may take longer."""
    return done.fault.kind in ENDS_RUN or (
        done.fault.kind in {Kind.KILL, Kind.DOUBLE} and any(v.startswith("learner.") for v in done.fault.victims)
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that ``share`` of the values do not exceed; NaN without values."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else math.nan


def _besides_engine(done: Done) -> float:
    """The seconds lost, without those until the next process of a killed generator ran."""
    engine = any(victim.startswith("rollout_generator.") for victim in done.fault.victims)
    return done.lost - (done.starting if engine and done.starting is not None else 0.0)


def seconds_lost(done: Sequence[Done]) -> list[tuple[str, int, float, float, float, float]]:
    """By kind, and for single kills by role: how many faults; median, 95th percentile and most seconds lost; and the
    median of the seconds from the end of a process until its successor ran (NaN where that is not known).
    """
    by_kind: defaultdict[str, list[Done]] = defaultdict(list)
    for each in done:
        role = each.fault.victims[0].rpartition(".")[0]
        by_kind[each.fault.kind.value + (f" {role}" if each.fault.kind is Kind.KILL else "")].append(each)
    rows = []
    for kind, found in sorted(by_kind.items()):
        lost, starting = [each.lost for each in found], [each.starting for each in found if each.starting is not None]
        began = statistics.median(starting) if starting else math.nan
        rows.append((kind, len(lost), statistics.median(lost), percentile(lost, 0.95), max(lost), began))
    return rows


def _ratio(again: int, in_flight: int) -> float:
    return again / in_flight if in_flight else float(again > 0)


def figures_of(runs: Sequence[Ended]) -> dict[str, float | None]:
    """All figures by name."""
    done = [each for run in runs for each in run.done]
    again = sum((run.turns.again for run in runs), Counter[str]())
    in_flight = sum((run.turns.in_flight for run in runs), Counter[str]())
    agree = within_noise([(run.summary, run.twin) for run in runs if run.twin is not None])
    figures: dict[str, float | None] = {
        "chaos.faults": len(done),
        "chaos.runs": len(runs),
        "chaos.lost": sum(len(run.accounts.lost) for run in runs),
        "chaos.repeated": sum(len(run.accounts.repeated) for run in runs),
        "chaos.balanced": int(all(run.accounts.balanced for run in runs)),
        "chaos.regenerated_turns": again.total(),
        "chaos.turns_in_flight": in_flight.total(),
        "chaos.regenerated_turns_over_in_flight": _ratio(again.total(), in_flight.total()),
        "chaos.p95_s": percentile([each.lost for each in done if not is_heavy(each)], 0.95),
        "chaos.p95_heavy_s": percentile([each.lost for each in done if is_heavy(each)], 0.95),
        "chaos.p95_besides_engine_s": percentile([_besides_engine(each) for each in done if not is_heavy(each)], 0.95),
        "chaos.left_behind": sum(len(run.left) for run in runs),
        "chaos.seconds": sum(run.seconds for run in runs),
        "chaos.success_within_noise": None if agree is None else int(agree),
    }
    for kind, _, _, p95, _, _ in seconds_lost(done):
        figures[f"chaos.p95_s_{kind.replace(' ', '_')}"] = p95
    for kind in sorted(again.keys() | in_flight.keys()):
        figures[f"chaos.regenerated_turns_over_in_flight_{kind}"] = _ratio(again[kind], in_flight[kind])
    for share in SHARES:
        figures[f"chaos.{share}"] = statistics.fmean(run.summary[share] for run in runs)
        twins = [run.twin[share] for run in runs if run.twin is not None]
        figures[f"chaos.{share}_twin"] = statistics.fmean(twins) if twins else None
    return figures
