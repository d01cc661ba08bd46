"""What a simulated run is expected to take, and what takes it. The same input gives the same text, byte by byte."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from agent_rl.simulation.engine import ModelledEngine
from agent_rl.simulation.outcome import Outcome
from agent_rl.simulation.plan import Plan
from agent_rl.simulation.profile import Profile
from agent_rl.simulation.trace import Trace

PAPER_ROLLOUTS = 512 * 32
PAPER_STEP_S = 7 * 24 * 3600 / 510
"""rStar2-Agent (arXiv 2508.20722): 510 steps in one week on 64 MI300X, which both generated and trained."""
WAITING_BOUND = 0.6
"""Waiting dominates where both engines and learner are busy for a smaller share of the time than this."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """A simulated run: its outcome and its engines."""

    plan: Plan
    outcome: Outcome
    engines: tuple[ModelledEngine, ...]

    @property
    def step_s(self) -> float:
        """Seconds of a step, on average."""
        return self.outcome.makespan_s / self.outcome.steps

    def idle(self, engine: ModelledEngine) -> float:
        """The share of the makespan in which the engine computes nothing."""
        return max(0.0, 1 - engine.busy / self.outcome.makespan_s)

    @property
    def again(self) -> int:
        """Tokens that were prefilled beyond tool results, once each, and the prompt of each group, once."""
        groups = self.plan.trace.groups
        once = sum(group[0].prompt + sum(sum(shape.tool_tokens) for shape in group) for group in groups)
        return max(0, self.outcome.prefilled_tokens - once)

    def engine_seconds(self) -> dict[str, float]:
        """What engines spend their time on, as shares of their time together."""
        parts = {"reading weights": 0.0, "arithmetic of decoding": 0.0, "prefill": 0.0, "attention": 0.0}
        for engine in self.engines:
            model = engine.model
            spent = engine.steps * model.step_s, engine.written * model.row_s, engine.prefilled * model.prefill_s
            for name, seconds in zip(parts, (*spent, max(0.0, engine.busy - sum(spent))), strict=True):
                parts[name] += seconds
        all_seconds = self.outcome.makespan_s * len(self.engines)
        return {name: seconds / all_seconds for name, seconds in parts.items()} | {"nothing": self.outcome.idle_share}

    @property
    def dominated_by(self) -> str:
        """What the time of a step is spent on most, in words."""
        shares = self.engine_seconds()
        training, rollout = self.outcome.learner_busy / self.outcome.makespan_s, 1 - shares["nothing"]
        if max(training, rollout) < WAITING_BOUND:
            return "waiting: for the last rollouts of a step, tools, the staleness budget, and new weights"
        if training >= rollout:
            return "training: engines wait for the learner; more devices for the learner make a step shorter"
        part = max((share, name) for name, share in shares.items() if name != "nothing")[1]
        return f"rollout: {part} is the largest part of the engines' time"


def lines(made: Prediction, profile: Profile) -> Iterator[str]:
    """The prediction as text."""
    plan, outcome, trace = made.plan, made.outcome, made.plan.trace
    yield f"{trace.name}, stage {plan.stage}: {plan.about}; policy {plan.policy}; staleness {trace.max_staleness}"
    yield f"profile: {profile.about}, {'measured' if profile.measured else 'not measured here'}"
    yield f"model: {plan.model}"
    yield f"{trace.steps} steps of {trace.groups_per_step} groups x {trace.samples} rollouts{_written(trace)}"
    yield ""
    staleness = outcome.staleness or (0,)
    idle = sorted((made.idle(engine), engine.name) for engine in made.engines)
    rows = {
        "makespan": f"{outcome.makespan_s:,.1f} s",
        "a step": f"{made.step_s:,.1f} s",
        "tokens/s": f"{outcome.tokens_per_s:,.0f}",
        "preempted tokens": f"{outcome.preempted_tokens:,} ({outcome.preempted_share:.3%} of those written)",
        "prefilled again": f"{made.again:,} tokens",
        "hit rate": f"{outcome.hit_rate:.1%}",
        "groups": f"{outcome.group_run_p50_s:,.1f} s from their first start in the median, "
        f"{outcome.group_run_p99_s:,.1f} s at the 99th percentile",
        "staleness": f"{statistics.fmean(staleness):.2f} on average, {max(staleness)} at most",
        "learner idle": f"{outcome.learner_idle_share:.1%}",
        "engines idle": f"{outcome.idle_share:.1%} on average, {idle[0][0]:.1%} ({idle[0][1]}) to {idle[-1][0]:.1%} "
        f"({idle[-1][1]})",
    }
    if outcome.faults:
        rows["unsafe decisions"] = ", ".join(f"{name} {count}" for name, count in sorted(outcome.faults.items()))
    for name, value in rows.items():
        yield f"{name:18}{value}"
    yield ""
    yield f"dominated by {made.dominated_by}"
    shares = sorted(made.engine_seconds().items(), key=lambda item: (-item[1], item[0]))
    yield "engines' time: " + ", ".join(f"{name} {share:.1%}" for name, share in shares)
    if trace.samples * trace.groups_per_step == PAPER_ROLLOUTS:
        yield (
            f"the paper: {PAPER_STEP_S:,.0f} s a step (510 steps in a week, on 64 MI300X); here {made.step_s:,.0f} s "
            f"on {plan.devices} devices, {made.step_s / PAPER_STEP_S:.2f} times as long"
        )
    yield ""
    yield "engine                   idle    busy s  preempted  prefilled tokens    written tokens"
    for engine in made.engines:
        yield (
            f"{engine.name:22}{made.idle(engine):7.1%}{engine.busy:10,.1f}{engine.preempted:11,}{engine.prefilled:18,}"
            f"{engine.written:18,}"
        )


def _written(trace: Trace) -> str:
    rollouts = sum(len(group) for group in trace.groups)
    calls = sum(len(shape.tool_s) for group in trace.groups for shape in group)
    return f", {trace.written() / rollouts:,.0f} tokens and {calls / rollouts:.2f} calls each on average"
