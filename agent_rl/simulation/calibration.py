"""Fits a profile to a run: engines and learner from its timeline and steps, tools and lengths from its trajectories.

::

    timeline.jsonl, a row a second --> busy seconds ~ a steps + b tokens + c context + d prefilled --> [engine]
    steps of metrics.jsonl         --> trained tokens / train_seconds, update_seconds --> [learner]
    trajectories of the journal    --> turns, tool results, seconds of calls --> [tools], [rollouts], a trace

**Engines.** A row says how long an engine was busy, how many tokens it wrote, and how many rollouts ran when the row
ended. So it made about (tokens / rollouts running) decode steps. The four seconds are those of the least squares that
are not negative, over all rows of all engines. Prefilled tokens are not in the timeline: those of the rollouts that
ended in the row count.

**Learner.** A step trains `LearnerModel.kept` of its groups' tokens, so the speed is that of these tokens.

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

import numpy as np
from numpy.typing import NDArray

from agent_rl.messages import Trajectory
from agent_rl.records.history import METRICS
from agent_rl.records.journal import JournalError
from agent_rl.records.opening import read_journal
from agent_rl.records.timeline import FILE, read_timeline
from agent_rl.simulation.profile import Engine, Learner, Profile, Rollouts, Tools
from agent_rl.simulation.trace import EngineLife, EngineModel, LearnerModel, Shape, Trace

LEAST_ROWS = 8
"""Rows of a timeline in which engines were busy, without which nothing is fitted."""
TINY_S = 1e-9


class CalibrationError(ValueError):
    """A run from which no profile can be fitted, and why."""


def shape_of(trajectory: Trajectory) -> Shape:
    """The turns of a trajectory: tokens written, tokens of the answers, and seconds until tools had answered."""
    written: list[int] = []
    answers: list[int] = []
    for own, tokens in itertools.groupby(trajectory.loss_mask.tolist()):
        (written if own else answers).append(len(list(tokens)))
    calls = trajectory.transcript.calls
    seconds = [
        max((call.total_seconds for call in calls if call.turn == turn), default=0.0)
        for turn in range(1, len(written) + 1)
    ]
    between = max(0, len(written) - 1)
    return Shape(
        len(trajectory.prompt_tokens), tuple(written), tuple(map(_second, seconds[:between])), tuple(answers[:between])
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
    return Profile(
        about=f"fitted to {run.where}",
        measured=True,
        engine=_engine(run),
        learner=_learner(run),
        tools=_tools(run.shapes),
        rollouts=_rollouts(run),
    )


def _engine(run: RecordedRun) -> Engine:
    prefill = statistics.fmean(sum(shape.tool_tokens) for shape in run.shapes) + statistics.fmean(
        group[0].prompt / len(group) for group in run.groups
    )
    rows, seconds, totals = [], [], []
    for engine in sorted({name for row in run.timeline for name in row["actors"] if name.startswith("rollout_gen")}):
        for before, after in itertools.pairwise(row for row in run.timeline if engine in row["actors"]):
            work = _work(before["actors"][engine]["figures"], after["actors"][engine]["figures"], prefill)
            totals.append(int(after["actors"][engine]["figures"].get("kv_total", 0)))
            if work is not None:
                rows.append(work)
                seconds.append(after["actors"][engine]["busy"] * after["seconds"])
    if len(rows) < LEAST_ROWS:
        raise CalibrationError(
            f"{run.where}/timeline.jsonl: engines were busy in {len(rows)} rows; {LEAST_ROWS} are needed, so let the "
            "run take longer"
        )
    step, token, context, prefilled = not_negative(np.array(rows), np.array(seconds))
    return Engine(
        step_s=max(TINY_S, step), row_s=token, context_s=context, prefill_s=prefilled, kv_tokens=max(totals) or None
    )


def _work(before: Mapping[str, float], after: Mapping[str, float], prefill: float) -> list[float] | None:
    """Decode steps, tokens written, tokens of context read, and tokens prefilled in a row; None when nothing was."""
    tokens = after.get("generated_tokens", 0) - before.get("generated_tokens", 0)
    running = statistics.fmean([max(1.0, each.get("running", 0)) for each in (before, after)])
    ended = after.get("rollouts", 0) - before.get("rollouts", 0)
    if tokens <= 0 or ended < 0:
        return None  # idle, or another process
    steps = tokens / running
    used = statistics.fmean([each.get("kv_used", 0) for each in (before, after)])
    return [steps, tokens, steps * used, ended * prefill]


def not_negative(rows: NDArray[np.float64], seconds: NDArray[np.float64]) -> list[float]:
    """The coefficients, none negative, with the least squared error: rows [n, k] times them are about seconds [n]."""
    count = rows.shape[1]
    best, error = np.zeros(count), math.inf
    for chosen in (each for size in range(1, count + 1) for each in itertools.combinations(range(count), size)):
        columns = list(chosen)
        found, *_ = np.linalg.lstsq(rows[:, columns], seconds, rcond=None)
        squared = float(np.square(rows[:, columns] @ found - seconds).sum())
        if (found >= 0).all() and squared < error * (1 - 1e-9):
            best, error = np.zeros(count), squared
            best[columns] = found
    return [float(each) for each in best]


def _learner(run: RecordedRun) -> Learner:
    trained = [row for row in run.steps if row.get("train_seconds") and row.get("groups_trained")]
    if not trained:
        raise CalibrationError(f"{run.where}/metrics.jsonl: no step was trained")
    per_group = statistics.fmean(sum(shape.context for shape in group) for group in run.groups) * run.kept
    tokens = sum(row["groups_trained"] for row in trained) * per_group
    updates = [row["update_seconds"] for row in trained if row.get("update_seconds") is not None]
    return Learner(
        tokens_per_s=tokens / sum(row["train_seconds"] for row in trained),
        publish_s=statistics.fmean(updates) if updates else 0.0,
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
        signal=_signal(run),
    )


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
    groups = tuple(group for group in run.groups if len(group) == samples)
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
    )


def read_run(directory: Path, decode: Callable[[bytes], Any]) -> RecordedRun:
    """What is used of a run directory. Raises JournalError and CalibrationError, which name the file."""
    if not (directory / FILE).exists():
        raise CalibrationError(f"{directory / FILE}: there is none; name the directory of a run that has ended")
    groups: list[tuple[Shape, ...]] = []
    kept: list[float] = []
    journal = read_journal(directory)
    try:
        for name in journal.group_ids():
            row = journal.group(name)
            if row is None or row.purpose != "train":
                continue
            stored = [each for each in journal.trajectories(name) if each.judgement is not None]
            shapes = [shape_of(decode(each.payload)) for each in stored]
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
    return RecordedRun(str(directory), tuple(groups), tuple(read_timeline(directory)), steps, share)
