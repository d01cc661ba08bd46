"""Figures of rollouts: per step, per evaluation, with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from agent_rl.config.topology import EvaluateStage
from agent_rl.groups.measures import bootstrap_interval
from agent_rl.messages import Trajectory
from agent_rl.scheduling.staleness import Step

LOST = frozenset({"failed", "cancelled", "prompt_too_long"})
"""Statuses of rollouts that the model did not bring to an end, so that there is nothing to judge."""


@dataclass(frozen=True, slots=True)
class RolloutFigures:
    """What statistics need of a rollout; ``reward`` is NaN until judged."""

    tokens: int
    turns: int
    calls: int
    failed_calls: int
    truncated: bool
    seconds: float
    reward: float = math.nan
    purpose: str = "train"
    malformed_calls: int = 0
    unknown_tools: int = 0
    cut_responses: int = 0
    lost: str = ""
    """Its status, when it came to nothing; then it counts as that alone."""
    group: str = ""
    oldest: int = 0
    newest: int = 0
    """Versions of the policies that wrote it."""

    @classmethod
    def of(cls, trajectory: Trajectory) -> RolloutFigures:
        """From a trajectory, before its verdict."""
        versions = trajectory.policies[trajectory.loss_mask > 0, 1]
        return cls(
            tokens=len(trajectory.tokens),
            turns=trajectory.turns,
            calls=len(trajectory.transcript.calls),
            failed_calls=sum(call.outcome != "success" for call in trajectory.transcript.calls),
            truncated=trajectory.status == "truncated",
            seconds=trajectory.seconds,
            purpose=trajectory.purpose,
            malformed_calls=sum(call.outcome == "malformed" for call in trajectory.transcript.calls),
            unknown_tools=sum(call.outcome == "unknown_tool" for call in trajectory.transcript.calls),
            cut_responses=sum(call.cut for call in trajectory.transcript.calls),
            lost=trajectory.status if trajectory.status in LOST else "",
            group=trajectory.group,
            oldest=int(versions.min()) if len(versions) else 0,
            newest=int(versions.max()) if len(versions) else 0,
        )

    def judged(self, reward: float, purpose: str | None = None) -> RolloutFigures:
        """The same with its reward."""
        return replace(self, reward=reward, purpose=purpose or self.purpose)


def wilson_interval(successes: int, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """The Wilson score interval of a share (95 % by default); (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    share = successes / trials
    centre = share + z * z / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def rollout_means(sampled: Sequence[RolloutFigures]) -> dict[str, float]:
    """Means over rollouts by name; shares are in [0, 1], lengths in response tokens.

    Those that were lost are counted, and enter nothing else.
    """
    rollouts = [r for r in sampled if not r.lost]
    correct = [r for r in rollouts if r.reward > 0]
    calls = sum(r.calls for r in rollouts)
    correct_calls = sum(r.calls for r in correct)
    return {
        "rollouts": float(len(rollouts)),
        "success": _mean([r.reward for r in rollouts]),
        "response_tokens": _mean([float(r.tokens) for r in rollouts]),
        "turns": _mean([float(r.turns) for r in rollouts]),
        "tool_calls": calls / len(rollouts) if rollouts else 0.0,
        "tool_error_share": sum(r.failed_calls for r in rollouts) / calls if calls else 0.0,
        "tool_error_share_correct": sum(r.failed_calls for r in correct) / correct_calls if correct_calls else 0.0,
        "malformed_call_share": sum(r.malformed_calls for r in rollouts) / calls if calls else 0.0,
        "unknown_tool_share": sum(r.unknown_tools for r in rollouts) / calls if calls else 0.0,
        "cut_response_share": sum(r.cut_responses for r in rollouts) / calls if calls else 0.0,
        "rollouts_failed": float(sum(r.lost == "failed" for r in sampled)),
        "prompts_too_long": float(sum(r.lost == "prompt_too_long" for r in sampled)),
        "truncated_share": _mean([float(r.truncated) for r in rollouts]),
        "rollout_seconds": _mean([r.seconds for r in rollouts]),
    }


def step_figures(rollouts: Sequence[RolloutFigures], step: Step) -> dict[str, float]:
    """The rollouts' side of a step: of all sampled rollouts of the groups it decided, kept or not."""
    return {
        **rollout_means(rollouts),
        "groups_decided": float(len(step.decided)),
        "groups_trained": float(len(step.trained)),
        "groups_dropped_stale": float(len(step.dropped_open)),
        "staleness_mean": _mean([float(s) for s in step.staleness]),
        "staleness_max": float(max(step.staleness, default=0)),
    }


def evaluation_figures(rollouts: Sequence[RolloutFigures], stage: EvaluateStage) -> dict[str, float]:
    """Success, sampled and greedy, with 95 % intervals: Wilson's, or over problems where one has several samples.

    A rollout that failed for infrastructure reasons in all its attempts counts as unanswered, hence wrong.
    """
    figures: dict[str, float] = {}
    name, problems = stage.name, stage.problems
    for way, samples in (("sampled", stage.samples), *((("greedy", 1),) if stage.greedy else ())):
        judged = [r for r in rollouts if r.purpose == f"evaluate_{way}"]
        trials = problems * samples
        successes = round(sum(r.reward for r in judged))
        if samples == 1:
            low, high = wilson_interval(successes, trials)
        else:
            right: dict[str, float] = {}
            for rollout in judged:
                right[rollout.group] = right.get(rollout.group, 0.0) + rollout.reward
            shares = [total / samples for total in right.values()]
            low, high = bootstrap_interval([*shares, *[0.0] * (problems - len(shares))])
        figures[f"success_{name}_{way}"] = successes / trials
        figures[f"success_{name}_{way}_low"] = low
        figures[f"success_{name}_{way}_high"] = high
        figures[f"problems_{name}_{way}"] = float(problems)
        figures[f"lost_{name}_{way}"] = float(trials - len(judged))
        means = rollout_means(judged)
        for key in ("response_tokens", "tool_calls", "tool_error_share", "truncated_share"):
            figures[f"{key}_{name}_{way}"] = means[key]
    return figures
