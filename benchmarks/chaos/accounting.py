"""Lost, repeated and left behind: the accounts of a run under faults or changes, by its journal and its machine."""

from __future__ import annotations

import json
import math
import shutil
import statistics
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from actors.cli.records import decode_stored
from agent_rl.config.topology import Topology
from agent_rl.environments.harness import outcome_of
from agent_rl.environments.load import Environments
from agent_rl.groups.instructions import TOO_FEW_ROLLOUTS
from agent_rl.records.audit import audit_journal
from agent_rl.records.journal import Journal, read_journal
from benchmarks.chaos.actors import is_right, read_trained
from benchmarks.chaos.doing import Done
from benchmarks.chaos.plan import ENDS_RUN
from benchmarks.reporting import percentile
from benchmarks.runs import RunFailed

SHARES = ("success_before_sampled", "success_before_greedy", "success_after_sampled", "success_after_greedy")
STATES = ("open", "ready", "trained", "evaluated", "dropped")
MUST_BE_0 = ("lost", "repeated", "stale", "left_behind")
MUST_NOT_BE_0 = ("balanced", "success_within_noise")
"""Figures that decide the exit code. Success is None without twins."""


@dataclass(frozen=True)
class Accounts:
    """The accounts of a finished run's journal. All lists are empty when nothing went wrong."""

    lost: tuple[str, ...]
    """Groups and problems that were never used, in words."""
    repeated: tuple[str, ...]
    """Groups that count more than once, in words."""
    balanced: bool
    stale: tuple[str, ...] = ()
    """Groups that were trained with more staleness than the topology permits, in words."""
    programs: int = 0
    """Rollouts that programs have written."""
    unbalanced: tuple[str, ...] = ()
    """What the audit says where it does not balance."""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A run that ended, and what is known of it."""

    accounts: Accounts
    left: Sequence[str]
    """Processes, files and control groups that are still there, in words."""
    summary: Mapping[str, Any]
    seconds: float
    twin: Mapping[str, Any] | None = None
    """The summary of the same run left alone."""


def accounts_of(directory: Path, topology: Topology, base: Path, *, scripted: bool, programs: bool = False) -> Accounts:
    """The accounts of the finished run in ``directory``. ``base``: the directory of the topology file.

    ``programs``: scripted programs write the rollouts.
    """
    journal = read_journal(directory)
    try:
        accounts = read_accounts(journal, len(topology.stages))
        wrong = wrong_prompts(journal, topology, base, decode_stored)
        stale = trained_too_late(journal, topology, decode_stored)
        lost, again = wrongly_trained(journal, read_trained(directory)) if scripted else ([], [])
        ended = ends_of_programs(journal, len(topology.stages), decode_stored) if programs else []
    finally:
        journal.close()
    lost += filter(None, ended)
    return replace(
        accounts,
        lost=(*accounts.lost, *wrong, *lost),
        repeated=(*accounts.repeated, *again),
        stale=tuple(stale),
        programs=len(ended),
    )


def summary_in(directory: Path) -> dict[str, Any]:
    """The summary of the finished run in ``directory``."""
    summary: dict[str, Any] = json.loads((directory / "summary.json").read_text())
    return summary


def kept(error: RunFailed, directory: Path) -> RunFailed:
    """The same error, with the place of a copy of the run directory, where there is one."""
    if not directory.is_dir():
        return error
    copy = Path(tempfile.mkdtemp(prefix="chaos-kept-")) / "run"
    shutil.copytree(directory, copy, ignore=shutil.ignore_patterns("filler"))
    return type(error)(f"{error}\nthe main host's run directory is kept in {copy}")


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
    audit = audit_journal(journal)
    unbalanced = () if audit.balanced else tuple(audit.lines())
    return Accounts(tuple(lost), tuple(repeated), audit.balanced, unbalanced=unbalanced)


def wrong_prompts(journal: Journal, topology: Topology, base: Path, decode: Callable[[bytes], Any]) -> list[str]:
    """Groups whose prompt is not that of their number: a prompt that is lost, or trained twice, moves all others.

    ``decode`` reads what the journal holds of a group.
    """
    tasks = Environments(topology, base).tasks()
    wrong = []
    for at, stage in enumerate(topology.stages):
        for group in journal.groups(stage=at, states=STATES):
            if group.purpose == "train":
                right = tasks.problem(at, group.number)
            else:
                right = tasks.evaluation(group.number % (stage.problems if stage.kind == "evaluate" else 1 << 62))
            if (asked := decode(group.opened).problem.id) != right.id:
                wrong.append(f"{group.id} asks {asked}, and its number is that of {right.id}")
    return wrong


def trained_too_late(journal: Journal, topology: Topology, decode: Callable[[bytes], Any]) -> list[str]:
    """Groups whose oldest token is further behind their step than the topology permits.

    The versions are those of the trajectories, which ``decode`` reads, where the journal still has them.
    """
    late = []
    for at, _, algorithm in topology.rl_algorithms:
        corrected = algorithm.max_corrected_staleness if algorithm.on_stale == "train_corrected" else 0
        limit = max(algorithm.max_staleness, corrected)
        for group in journal.groups(stage=at, states=("trained",)):
            stored = {(each.sample, each.attempt): each.payload for each in journal.trajectories(group.id)}
            versions = [decode(stored[key]).oldest for key in group.kept if key in stored]
            oldest = min([group.oldest, *(version for version in versions if version is not None)])
            if group.step is not None and group.step - oldest > limit:
                late.append(f"{group.id} was trained with staleness {group.step - oldest}; {limit} is permitted")
    return late


def wrongly_trained(journal: Journal, trained: Sequence[str]) -> tuple[list[str], list[str]]:
    """Groups of the journal's steps that the model was not trained on, and those that it was trained on again.

    ``trained``: all groups that a scripted model was trained on, as its last checkpoint has them.
    """
    times, recorded = Counter(trained), {group for step in journal.steps() for group in step.groups}
    lost = [f"the model was not trained on {group}" for group in sorted(recorded - times.keys())]
    again = [f"the model was trained {count} times on {group}" for group, count in times.items() if count > 1]
    return lost, again + [f"the model was trained on {group} of no step" for group in sorted(times.keys() - recorded)]


def ends_of_programs(journal: Journal, stages: int, decode: Callable[[bytes], Any]) -> list[str]:
    """For each rollout in the journal "", or what is wrong: its program did not end well, or its result is not the one
    that its scripted turns lead to.
    """
    found = []
    for stage in range(stages):
        for group in journal.groups(stage=stage, states=STATES):
            for stored in journal.trajectories(group.id):
                rollout = decode(stored.payload)
                outcome = outcome_of(rollout.transcript)
                ended = outcome is not None and outcome.status == "status 0"
                right = stored.status == "cancelled" or (ended and stored.reward == is_right(rollout.rollout))
                told = f"{stored.status} with the reward {stored.reward}: {outcome}"
                found.append("" if right else f"{rollout.rollout} ended as {told}")
    return found


def _twice(found: Iterable[Any]) -> list[Any]:
    seen: set[Any] = set()
    return [each for each in found if each in seen or seen.add(each)]  # type: ignore[func-returns-value]


# Success beside twins ------------------------------------------------------------------------------------------------

T_95 = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5th percentiles of Student's t with 1, 2, ... degrees of freedom."""


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


def _holds_zero(differences: Sequence[float]) -> bool:
    t = T_95[min(len(differences) - 1, len(T_95)) - 1]
    half = t * statistics.stdev(differences) / math.sqrt(len(differences))
    return abs(statistics.fmean(differences)) <= half + 1e-12


# Figures and verdict -------------------------------------------------------------------------------------------------


@dataclass
class Verdict:
    """The figures that runs under faults and runs under changes have in common, by name without their prefix."""

    runs: Sequence[Finished]
    figures: dict[str, float | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        runs = self.runs
        agree = within_noise([(run.summary, run.twin) for run in runs if run.twin is not None])
        self.figures = {
            "runs": len(runs),
            "lost": sum(len(run.accounts.lost) for run in runs),
            "repeated": sum(len(run.accounts.repeated) for run in runs),
            "stale": sum(len(run.accounts.stale) for run in runs),
            "balanced": int(all(run.accounts.balanced for run in runs)),
            "left_behind": sum(len(run.left) for run in runs),
            "seconds": sum(run.seconds for run in runs),
            "success_within_noise": None if agree is None else int(agree),
        }
        for share in SHARES:
            self.figures[share] = statistics.fmean(run.summary[share] for run in runs)
            twins = [run.twin[share] for run in runs if run.twin is not None]
            self.figures[f"{share}_twin"] = statistics.fmean(twins) if twins else None

    @property
    def exit_code(self) -> int:
        """1 when anything is lost, repeated, stale or left, an audit does not balance, or twins succeed otherwise."""
        good = not any(self.figures[name] for name in MUST_BE_0)
        return 0 if good and all(self.figures[name] != 0 for name in MUST_NOT_BE_0) else 1

    def print_faults(self) -> None:
        """A line for everything that is lost, repeated, stale or left."""
        for run in self.runs:
            accounts = run.accounts
            for line in (*accounts.lost, *accounts.repeated, *accounts.stale, *accounts.unbalanced, *run.left):
                print(f"FAULT {line}")


# Recovery -------------------------------------------------------------------------------------------------------------


def is_heavy(done: Done) -> bool:
    """Whether the fault ended the run or its learner: these may take longer."""
    killed = done.fault.kind in {"kill", "double_kill"}
    return done.fault.kind in ENDS_RUN or (killed and any(v.startswith("learner.") for v in done.fault.victims))


def besides_engine(done: Done) -> float:
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
        by_kind[each.fault.kind + (f" {role}" if each.fault.kind == "kill" else "")].append(each)
    rows = []
    for kind, found in sorted(by_kind.items()):
        lost, starting = [each.lost for each in found], [each.starting for each in found if each.starting is not None]
        began = statistics.median(starting) if starting else math.nan
        rows.append((kind, len(lost), statistics.median(lost), percentile(lost, 0.95), max(lost), began))
    return rows
