"""Fits a profile to a run: engines and learner from its timeline and steps, tools and lengths from its trajectories.

::

    timeline.jsonl, a row a second --> `agent_rl.simulation.engine_fit` --> [engine]
    metrics.jsonl, timeline.jsonl  --> trained tokens / seconds, update_seconds --> [learner]
    trajectories of the journal    --> turns, tool results, seconds of calls --> [tools], [rollouts], a trace
    processor seconds of all       --> [cores], if engines and learner compute on the cores of one host

**Learner.** A step trains `LearnerModel.kept` of its groups' tokens, so the speed is that of these tokens.

**Seconds** are those in which engine or learner were busy. On a host whose cores they share (``device = "cpu"``) they
are processor seconds: being busy there includes waiting for a core. A tool call then takes its processor seconds, and
of the seconds that it ran, those that are left. `agent_rl.simulation.contention` then says how many cores there were,
or, where they are not shared, what passes between the last rollout of a step and its training.

A run tells what it has done: at loads that it never had, the fit is a guess.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_rl.config.load import load_topology
from agent_rl.config.source import TopologyError
from agent_rl.config.topology import Topology
from agent_rl.messages import Trajectory
from agent_rl.records.history import METRICS
from agent_rl.records.journal import JournalError, read_journal
from agent_rl.records.timeline import FILE, read_timeline
from agent_rl.simulation.contention import MOST_STEPS, pace_seen, settled
from agent_rl.simulation.engine_fit import ENGINE_CPU, load_of
from agent_rl.simulation.plan import DEFAULT_POLICY, VLLM
from agent_rl.simulation.profile import Cores, Engine, Learner, Profile, Rollouts, Tools
from agent_rl.simulation.trace import EngineLife, EngineModel, LearnerModel, Shape, SharedCores, Trace

GENERATOR, SCHEDULER, LEARNER, EXECUTOR = "rollout_generator.", "kv_scheduler.", "learner.", "tool_executor."
LEAST_ROWS = 8
"""Rows of a timeline in which engines were busy, without which nothing is fitted."""
TINY_S = 1e-9
TAIL_S = 1.5
"""The row that holds the end of the last step ends within so many seconds."""


class CalibrationError(ValueError):
    """A run from which no profile can be fitted, and why."""


def shape_of(trajectory: Trajectory, *, queued: bool = True) -> Shape:
    """The turns of a trajectory: tokens written, tokens of the answers, and seconds until tools had answered.

    ``queued``: with the seconds until the call began and until its result came back.
    """
    written: list[int] = []
    answers: list[int] = []
    for own, tokens in itertools.groupby(trajectory.unpack().loss_mask.tolist()):
        (written if own else answers).append(len(list(tokens)))
    calls = trajectory.transcript.calls
    seconds = [
        max((call.total_seconds if queued else call.run_seconds for call in calls if call.turn == turn), default=0.0)
        for turn in range(1, len(written) + 1)
    ]
    between = max(0, len(written) - 1)
    return Shape(
        trajectory.prompt_length, tuple(written), tuple(map(_second, seconds[:between])), tuple(answers[:between])
    )


def _second(value: float) -> float:
    return round(value, 6)


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """What is used of a run: complete groups of rollouts, rows of its timeline, and rows of its steps."""

    where: str
    groups: tuple[tuple[Shape, ...], ...]
    timeline: tuple[Mapping[str, Any], ...]
    steps: tuple[Mapping[str, Any], ...]
    kept: float
    """The share of a group's rollouts that is trained."""
    topology: Topology | None = None
    """The run's topology, if it had a single host."""
    cores: int | None = None
    """Of the only host, if engines and learner compute on its cores. ``tool_s`` are then the seconds that calls ran."""

    @property
    def shapes(self) -> list[Shape]:
        """All rollouts."""
        return [shape for group in self.groups for shape in group]


def fit(run: RecordedRun) -> Profile:
    """The profile of the run. Raises CalibrationError, which names the file that says too little."""
    if not run.groups:
        raise CalibrationError(
            f"{run.where}: the journal holds no complete training group; run with run.keep_trajectories = all"
        )
    cores = None if run.cores is None else _cores(run, run.cores)
    groups = _waits(run, cores)
    profile = Profile(
        about=f"fitted to {run.where}",
        measured=True,
        engine=_engine(run, cores),
        learner=_learner(run, cores),
        tools=_tools(shape for group in groups for shape in group),
        rollouts=_rollouts(run),
        cores=cores,
    )
    return profile if run.topology is None else _settled(run, run.topology, profile, groups)


def _settled(run: RecordedRun, topology: Topology, profile: Profile, groups: Sequence[tuple[Shape, ...]]) -> Profile:
    """The profile with what the run as a whole says, if it has a single rl stage and enough steps."""
    algorithm, steps = topology.algorithm, run.steps[:MOST_STEPS]
    totals = [
        (row["wall"], sum(each["figures"].get("engine_steps", 0) for each in engines))
        for row in run.timeline
        if (engines := [each for name, each in row["actors"].items() if name.startswith(GENERATOR)])
    ]
    seen = pace_seen(steps, totals)
    wanted = len(steps) * algorithm.groups_per_step
    whole = [group for group in groups[:wanted] if len(group) == algorithm.samples]
    if seen is None or seen.engine_steps <= 0 or len(topology.rl_algorithms) != 1 or len(whole) < wanted:
        return profile
    return settled(profile, topology, whole, seen, run.where)


def _cores(run: RecordedRun, count: int) -> Cores:
    """What the others leave of the cores, how many cores engine and learner ask for, and what a tool call takes."""
    rows = _warm(run)
    seconds = sum(row["seconds"] for row in rows[1:])
    used = {role: _spent(rows, role, "cpu") for role in (GENERATOR, LEARNER, EXECUTOR)}
    computed = _grown(rows, GENERATOR, ENGINE_CPU)
    if computed > 0:  # an engine need not say so; after a restart it counts from 0
        used[GENERATOR] = min(used[GENERATOR], computed)
    others = sum(_spent(rows, name, "cpu") for name in {each for row in rows for each in row["actors"]}) - sum(
        used.values()
    )
    calls = _grown(rows, EXECUTOR, "calls")
    return Cores(
        cores=max(0.5, count - others / seconds),
        engine=max(1.0, used[GENERATOR] / max(TINY_S, _spent(rows, GENERATOR, "busy"))),
        learner=max(1.0, used[LEARNER] / max(TINY_S, _spent(rows, LEARNER, "busy"))),
        call_s=used[EXECUTOR] / calls if calls else 0.0,
    )


def _warm(run: RecordedRun) -> Sequence[Mapping[str, Any]]:
    """The rows from the end of the first step to that of the last; all rows when steps have no times.

    Before, engine and interpreters warm up: their first steps and calls take many times what later ones take.
    """
    walls = [row["wall"] for row in run.steps if "wall" in row]
    return [row for row in run.timeline if not walls or walls[0] <= row["wall"] <= walls[-1] + TAIL_S]


def _spent(rows: Sequence[Mapping[str, Any]], role: str, what: str) -> float:
    """Seconds that the actors whose names begin so spent after the first row: ``busy``, or of processors (``cpu``)."""
    return math.fsum(
        each[what] * row["seconds"] for row in rows[1:] for name, each in row["actors"].items() if name.startswith(role)
    )


def _grown(rows: Sequence[Mapping[str, Any]], role: str, total: str) -> float:
    """What a total of the role's actors grew by in these rows."""
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    for row in rows:
        for name, each in row["actors"].items():
            if name.startswith(role) and total in each["figures"]:
                last[name] = each["figures"][total]
                first.setdefault(name, last[name])
    return sum(last.values()) - sum(first.values())


def _waits(run: RecordedRun, cores: Cores | None) -> tuple[tuple[Shape, ...], ...]:
    """The groups; of tools' seconds those without a core, if cores are shared."""
    if cores is None:
        return run.groups
    call = cores.call_s
    return tuple(
        tuple(shape._replace(tool_s=tuple(max(0.0, _second(s - call)) for s in shape.tool_s)) for shape in group)
        for group in run.groups
    )


def _engine(run: RecordedRun, cores: Cores | None) -> Engine:
    """The engine; on shared cores, what it takes of them."""
    warm = _warm(run)
    load = load_of(warm, GENERATOR, None if cores is None else cores.engine)
    if len(load.seconds) < LEAST_ROWS:
        raise CalibrationError(
            f"{run.where}/timeline.jsonl: engines were busy in {len(load.seconds)} rows; {LEAST_ROWS} are needed, so "
            "let the run take longer"
        )
    step, token, context, prefilled = load.fitted()
    return Engine(
        step_s=max(TINY_S, step), row_s=token, context_s=context, prefill_s=prefilled, kv_tokens=load.kv_tokens or None
    )


def _learner(run: RecordedRun, cores: Cores | None) -> Learner:
    trained = [row for row in run.steps if row.get("train_seconds") and row.get("groups_trained")]
    if not trained:
        raise CalibrationError(f"{run.where}/metrics.jsonl: no step was trained")
    per_group = statistics.fmean(sum(shape.context for shape in group) for group in run.groups) * run.kept
    seconds = sum(row["train_seconds"] for row in trained)
    if cores is not None:
        rows = _warm(run)
        seconds *= min(1.0, _spent(rows, LEARNER, "cpu") / max(TINY_S, _spent(rows, LEARNER, "busy"))) / cores.learner
    updates = [row["update_seconds"] for row in trained if row.get("update_seconds") is not None]
    return Learner(
        tokens_per_s=sum(row["groups_trained"] for row in trained) * per_group / seconds,
        publish_s=statistics.median(updates) if updates else 0.0,
    )


def _tools(shapes: Iterable[Shape]) -> Tools:
    seconds = [max(1e-4, s) for shape in shapes for s in shape.tool_s]
    tokens = [max(1, count) for shape in shapes for count in shape.tool_tokens]
    middle, spread = _log_normal(seconds or [1e-4])
    middle_tokens, tokens_spread = _log_normal(tokens or [1])
    return Tools(
        median_s=middle,
        spread=spread,
        longest_s=max(seconds, default=1e-4),
        median_tokens=middle_tokens,
        tokens_spread=tokens_spread,
        longest_tokens=max(tokens, default=1),
    )


def _log_normal(values: Sequence[float]) -> tuple[float, float]:
    """The median and the standard deviation of the logarithm."""
    logs = [math.log(value) for value in values]
    return math.exp(statistics.fmean(logs)), statistics.pstdev(logs)


def _rollouts(run: RecordedRun) -> Rollouts:
    logs = [[math.log(sum(shape.written)) for shape in group] for group in run.groups]
    calls = [len(shape.tool_s) for shape in run.shapes]
    prompts = [shape.prompt for shape in run.shapes]
    return Rollouts(
        mean_tokens=statistics.fmean(sum(shape.written) for shape in run.shapes),
        spread_between=statistics.pstdev([statistics.fmean(group) for group in logs]),
        spread_within=math.sqrt(statistics.fmean(statistics.pvariance(group) for group in logs)),
        prompt_tokens=(min(prompts), max(prompts)),
        calls=statistics.fmean(calls),
        most_calls=max(1, *calls),
        reserved_tokens=_reserved(run),
        signal=_signal(run),
    )


def _reserved(run: RecordedRun) -> int | None:
    """What was reserved for a prompt where the policy reserves the longest response; None when it is not known."""
    settings = run.topology and run.topology.actors[SCHEDULER.rstrip(".")].settings
    if run.topology is None or (settings or {}).get("policy", DEFAULT_POLICY) != "worst_case":
        return None
    response = max((stage.max_response_tokens for _, stage, _ in run.topology.rl_algorithms), default=0)
    scheduler = [
        each["figures"] for row in run.timeline for name, each in row["actors"].items() if name.startswith(SCHEDULER)
    ]
    limits = [each["kv_promised"] / each["rollouts_in_flight"] for each in scheduler if each.get("rollouts_in_flight")]
    return max(1, round(statistics.median(limits) - response)) if limits else None


def _signal(run: RecordedRun) -> float:
    """The share of decided groups that were trained."""
    decided = sum(row.get("groups_decided", 0) for row in run.steps)
    return sum(row.get("groups_trained", 0) for row in run.steps) / decided if decided else 1.0


def trace_of(run: RecordedRun, profile: Profile) -> Trace:
    """The run's groups as a trace of one step, for ``agent-rl simulate --traces``: those of the usual size.

    Its engine and its learner are the profile's; whoever reads the trace for its groups ignores them.
    """
    assert profile.engine is not None
    samples = statistics.mode(len(group) for group in run.groups)
    groups = tuple(group for group in _waits(run, profile.cores) if len(group) == samples)
    longest = max(shape.context for group in groups for shape in group)
    kv_tokens = max(2 * (longest + 16), profile.engine.kv_tokens or 0)
    model = EngineModel(kv_tokens, samples, **profile.engine.model_dump(exclude={"kv_tokens"}))
    return Trace(
        name="recorded",
        seed=0,
        source=run.where,
        samples=samples,
        groups_per_step=len(groups),
        steps=1,
        max_staleness=0,
        limit=longest,
        engines=(EngineLife("rollout_generator.0", model),),
        learner=LearnerModel(profile.learner.tokens_per_s or 1.0, run.kept),
        groups=groups,
        shared=None if profile.cores is None else SharedCores(**profile.cores.model_dump()),
    )


def read_run(directory: Path, decode: Callable[[bytes], Any]) -> RecordedRun:
    """What is used of a run directory. Raises JournalError and CalibrationError, which name the file."""
    if not (directory / FILE).exists():
        raise CalibrationError(f"{directory / FILE}: there is none; name the directory of a run that has ended")
    groups: list[tuple[Shape, ...]] = []
    kept: list[float] = []
    timeline = tuple(read_timeline(directory))
    topology = _topology(directory)
    cores = _shared_cores(topology, timeline)
    journal = read_journal(directory)
    try:
        for name in journal.group_ids():
            row = journal.group(name)
            if row is None or row.purpose != "train":
                continue
            stored = [each for each in journal.trajectories(name) if each.judgement is not None]
            shapes = [shape_of(decode(each.payload), queued=cores is None) for each in stored]
            if shapes and all(shape.written for shape in shapes):
                groups.append(tuple(shapes))
                kept += [len(row.kept) / len(shapes)] if row.kept else []
        rows = [json.loads(line) for line in journal.records()]
    except ValueError as error:
        raise JournalError(f"{directory / METRICS}: {error}") from error
    finally:
        journal.close()
    steps = tuple(row for row in rows if row.get("kind") == "step")
    share = statistics.fmean(kept) if kept else 0.5
    return RecordedRun(str(directory), tuple(groups), timeline, steps, share, topology, cores)


def _topology(directory: Path) -> Topology | None:
    """What the run wrote of its topology; None when it had several hosts."""
    files = list(directory.glob("topology.*.toml"))
    try:
        return load_topology(files) if len(files) == 1 else None
    except TopologyError as error:
        raise CalibrationError("; ".join(str(error).splitlines())) from error


def _shared_cores(topology: Topology | None, timeline: Sequence[Mapping[str, Any]]) -> int | None:
    """The cores of the only host, if engines and learner compute on them."""
    if topology is None or not timeline or "cores" not in timeline[-1]:
        return None
    generator, learner = (topology.actors[role.rstrip(".")].settings for role in (GENERATOR, LEARNER))
    on_cores = all(each.get("device", "cpu") == "cpu" for each in (generator, learner))
    known = generator.get("engine", "torch") in {"torch", *VLLM}
    return int(timeline[-1]["cores"]) if on_cores and known else None
