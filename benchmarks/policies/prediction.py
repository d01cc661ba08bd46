"""What bench_policies predicts: an engine fitted to the records of some rounds, and the fast simulator on others."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from agent_rl.scheduling.policies.registry import POLICIES
from agent_rl.simulation.engine_fit import not_negative
from agent_rl.simulation.simulator import Simulator
from agent_rl.simulation.trace import EngineLife, EngineModel, LearnerModel, Shape, Trace, check
from benchmarks.policies.generator import Row
from benchmarks.policies.workload import LIMIT, PROMPTS

WINDOW_S = 1.0
LEAST_WINDOWS = 8
TINY_S = 1e-9
AT_ONCE = LearnerModel(tokens_per_s=1e15, publish_s=0.0, pause_s=0.0)
"""A learner that takes no time: the makespan is that of the rollouts."""


class TooFewRowsError(ValueError):
    """The engines were busy for too short a time to fit a model to them."""


@dataclass(frozen=True)
class Fitted:
    """What is known of the engines. ``gap_s``: seconds between turns beside those of tools."""

    model: EngineModel
    gap_s: float


@dataclass(frozen=True)
class Simulated:
    """What the simulator says of a round; as `benchmarks.policies.service.Measured` has it."""

    makespan_s: float
    preempted_share: float
    hit_rate: float
    moved: int


def windows(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """The rows in windows of `WINDOW_S`; the last row of a window is the first of the next one."""
    first = 0
    for last, row in enumerate(rows):
        if row.at - rows[first].at >= WINDOW_S:
            yield rows[first : last + 1]
            first = last


def work(rows: Sequence[Row]) -> list[float] | None:
    """Decode steps, tokens written, tokens of context read, tokens prefilled in a window.

    All rollouts that run write a token in a step: there were about (tokens written / rollouts running) steps. None: the
    engine was idle at some time, so that this does not hold; or it preempted a turn, and vLLM does not count what is
    then prefilled again.
    """
    before, after = rows[0], rows[-1]
    written = after.generated - before.generated
    if written <= 0 or after.preempted > before.preempted or not all(row.running for row in rows):
        return None
    steps = written / statistics.fmean(row.running for row in rows)
    context = statistics.fmean(row.kv_used for row in rows)
    return [steps, float(written), steps * context, float(after.prefilled - before.prefilled)]


def fitted(records: Sequence[Sequence[Row]], *, max_rollouts: int, page: int) -> Fitted:
    """The engine whose seconds fit best (least squares, none negative). Raises TooFewRowsError."""
    done, seconds = [], []
    for rows in records:
        for window in windows(rows):
            if (between := work(window)) is not None:
                done.append(between)
                seconds.append(window[-1].busy_s - window[0].busy_s)
    if len(done) < LEAST_WINDOWS:
        raise TooFewRowsError(f"{len(done)} seconds of the first rounds can be fitted; {LEAST_WINDOWS} are needed")
    step, token, context, prefilled = not_negative(np.array(done), np.array(seconds))
    gaps = sum(rows[-1].gaps - rows[0].gaps for rows in records)
    gap_s = sum(rows[-1].gap_s - rows[0].gap_s for rows in records)
    model = EngineModel(
        kv_total=min(rows[-1].kv_total for rows in records),
        max_rollouts=max_rollouts,
        step_s=max(TINY_S, step),
        row_s=token,
        context_s=context,
        prefill_s=prefilled,
        prefill_context_s=0.0,
        page=page,
        watermark=0.0,
    )
    return Fitted(model, max(0.0, gap_s / gaps) if gaps else 0.0)


def trace_of(groups: Sequence[Sequence[Shape]], engines: Sequence[str], fit: Fitted, seed: int) -> Trace:
    """A round: a group is opened whenever no rollout waits for its start, as the scheduler does it."""
    later = tuple(
        tuple(shape._replace(tool_s=tuple(each + fit.gap_s for each in shape.tool_s)) for shape in group)
        for group in groups
    )
    trace = Trace(
        name="policies",
        seed=seed,
        source="benchmarks/policies/workload.py",
        samples=len(groups[0]),
        groups_per_step=len(groups),
        steps=1,
        max_staleness=0,
        limit=PROMPTS[1] + LIMIT,
        engines=tuple(EngineLife(name, fit.model) for name in engines),
        learner=AT_ONCE,
        groups=later,
        opens_late=True,
    )
    return check(trace)


def simulate(policy: str, trace: Trace) -> Simulated:
    """A round of a policy."""
    simulator = Simulator(trace, POLICIES[policy].make())
    outcome = simulator.run()
    turns = sum(len(shape.written) for group in trace.groups for shape in group)
    return Simulated(outcome.makespan_s, outcome.preempted / turns, outcome.hit_rate, outcome.moves)
