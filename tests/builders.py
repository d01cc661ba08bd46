"""Builders of messages, beside those of agent_rl_contract.builders, that only these tests need."""

from dataclasses import MISSING, fields
from typing import Any

from agent_rl.config.topology import EvaluateStage
from agent_rl.figures import (
    ActorFigures,
    ExecutorFigures,
    Fates,
    FilterFigures,
    GeneratorFigures,
    LearnerFigures,
    SchedulerFigures,
)
from agent_rl.messages import ActorStatus, JudgementWanted, Metric, Transcript
from agent_rl_contract.builders import problem


def evaluate_stage(**changes: Any) -> EvaluateStage:
    """Three problems."""
    defaults = {"kind": "evaluate", "name": "after", "problems": 3, "max_response_tokens": 20, "max_turns": 4}
    return EvaluateStage(**{**defaults, **changes})


def wanted(gold: str, prediction: str, rollout: str = "check") -> JudgementWanted:
    """A filter's question whether an answer is right."""
    transcript = Transcript((f"<answer>\\boxed{{{prediction}}}</answer>",))
    return JudgementWanted(rollout, problem(answer=gold), transcript)


ROLES: dict[str, tuple[str, Any]] = {
    "learner": ("learner", LearnerFigures),
    "kv_scheduler": ("scheduler", SchedulerFigures),
    "roc_filter": ("filter", FilterFigures),
    "rollout_generator": ("generator", GeneratorFigures),
    "tool_executor": ("executor", ExecutorFigures),
}


def live_figures(role: str, **given: Any) -> ActorFigures:
    """Figures of a role, with 0 for those that are required and not given; what the role lacks is ``extra``."""
    own = {name: given.pop(name) for name in ("rejected_frames",) if name in given}
    field, kind = ROLES.get(role, ("", None))
    known = {each.name for each in fields(kind)} if kind else set()
    if kind is None or not given.keys() & {*known, *(each.name for each in fields(Fates))}:
        return ActorFigures(extra=given, **own)
    wanted = {each.name: 0 for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING}
    if "fates" in wanted:
        wanted["fates"] = Fates(**{each.name: given.pop(each.name) for each in fields(Fates) if each.name in given})
    wanted |= {each.name: given.pop(each.name) for each in fields(kind) if each.name in given}
    return ActorFigures(extra=given, **{field: kind(**wanted)}, **own)


def status(
    actor: str,
    *metrics: Metric,
    state: str = "running",
    detail: str = "",
    waiting_for: str = "",
    busy: float = 0.0,
    cpu: float = 0.0,
    **figures: Any,
) -> ActorStatus:
    """What an actor announces of itself; ``figures`` as of `live_figures`."""
    role = actor.rpartition(".")[0]
    return ActorStatus(actor, role, state, detail, live_figures(role, **figures), waiting_for, busy, cpu, metrics)
