"""What a generator tells of its engine: the load, by which the scheduler places rollouts, and the live figures."""

from __future__ import annotations

from collections.abc import Mapping

from actors.engines.base import EngineFigures
from agent_rl.figures import GeneratorFigures
from agent_rl.messages import EngineLoad, Policy
from agent_rl.rollout.episode import RolloutTally


def engine_load(
    figures: EngineFigures, policy: Policy, generator: str, incarnation: int, orphans: Mapping[str, int]
) -> EngineLoad:
    """The load of the engine of a generator's process. ``orphans``: as `EngineLoad` has them."""
    return EngineLoad(
        generator=generator,
        incarnation=incarnation,
        policy=policy,
        kv_tokens_total=figures.kv_tokens_total,
        kv_tokens_used=figures.kv_tokens_used,
        max_rollouts=figures.max_rollouts,
        running=figures.running,
        waiting=figures.waiting,
        preempted=figures.preempted,
        generated_tokens=figures.generated_tokens,
        orphans=dict(orphans),
        prefilled_tokens=figures.prefilled_tokens,
        cached_tokens=figures.cached_tokens,
        preemptions=dict(figures.preemptions),
        kv_kept=figures.kv_kept,
        kv_tokens_host=figures.host_kv_tokens_total,
    )


def generator_figures(
    figures: EngineFigures,
    policy: Policy,
    rates: Mapping[str, float],
    tally: RolloutTally,
    *,
    calls_waiting: int,
) -> GeneratorFigures:
    """The live figures. ``rates``: tokens and rollouts a second."""
    return GeneratorFigures(
        tokens_per_s=rates["tokens"],
        rollouts_per_s=rates["rollouts"],
        kv_used=figures.kv_tokens_used,
        kv_total=figures.kv_tokens_total,
        running=figures.running,
        waiting=figures.waiting,
        preempted=figures.preempted,
        generated_tokens=figures.generated_tokens,
        engine_steps=figures.steps,
        prefilled_tokens=figures.prefilled_tokens,
        cached_tokens=figures.cached_tokens,
        passes=dict(figures.passes),
        engine_cpu_seconds=sum(each.cpu_seconds for each in figures.passes.values()),
        rollouts=tally.rollouts,
        rollouts_truncated=tally.by_status["truncated"],
        rollouts_failed=tally.by_status["failed"],
        rollouts_cancelled=tally.by_status["cancelled"],
        prompts_too_long=tally.by_status["prompt_too_long"],
        calls_malformed=tally.by_outcome["malformed"],
        calls_unknown_tool=tally.by_outcome["unknown_tool"],
        calls_failed=tally.calls_failed,
        responses_cut=tally.responses_cut,
        calls_waiting=calls_waiting,
        policy_version=policy.version,
    )
