"""Figures of rollouts: of a step, and of an evaluation with intervals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from agent_rl.config.topology import EvaluateStage
from agent_rl.figures import AnswerFigures, EvaluationFigures, RolloutMeans, StepFigures
from agent_rl.groups.measures import mean_interval
from agent_rl.messages import LOST, GroupOpened, Judgement, TagCounts, Trajectory
from agent_rl.scheduling.staleness import Step


@dataclass(frozen=True, slots=True)
class RolloutFigures:
    """What statistics need of a rollout. ``reward`` is NaN until the rollout is judged."""

    tokens: int
    turns: int
    calls: int
    failed_calls: int
    truncated: bool
    seconds: float
    reward: float = math.nan
    success: bool = False
    purpose: str = "train"
    malformed_calls: int = 0
    unknown_tools: int = 0
    cut_responses: int = 0
    lost: str = ""
    """The status of a lost rollout, else empty. A lost rollout is counted, and enters no mean."""
    group: str = ""
    oldest: int = 0
    newest: int = 0
    """Versions of the policies that wrote the rollout."""
    environment: str = ""
    problem: tuple[str, str] = ("", "")
    """Text and answer, which copies of a problem share."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """The parts of the judgement."""
    tags: TagCounts = field(default_factory=TagCounts)
    sample: int = 0
    written: int = 0
    """Sampled tokens."""
    excluded: Mapping[str, int] = field(default_factory=dict)
    """Those of them that are not trained in any case, by cause."""
    fate: str = ""
    """``trained``, or why the rollout is not, once its group is decided."""
    branches: tuple[str, ...] = ()
    """The cause of each branch."""
    lists_tools: bool = False

    @classmethod
    def of(cls, trajectory: Trajectory, opened: GroupOpened) -> RolloutFigures:
        """The figures of a trajectory of the group ``opened``, before its judgement."""
        calls = trajectory.transcript.calls
        return cls(
            tokens=trajectory.response_length,
            turns=trajectory.turns,
            calls=len(calls),
            failed_calls=sum(call.outcome != "success" for call in calls),
            truncated=trajectory.status == "truncated",
            seconds=trajectory.seconds,
            purpose=opened.purpose,
            malformed_calls=sum(call.outcome == "malformed" for call in calls),
            unknown_tools=sum(call.outcome == "unknown_tool" for call in calls),
            cut_responses=sum(call.cut for call in calls),
            lost=trajectory.status if trajectory.status in LOST else "",
            group=opened.group,
            oldest=opened.policy.version if trajectory.oldest is None else trajectory.oldest,
            newest=opened.policy.version if trajectory.newest is None else trajectory.newest,
            environment=opened.problem.environment,
            problem=(opened.problem.text, opened.problem.answer),
            tags=trajectory.tags,
            sample=trajectory.sample,
            written=trajectory.written,
            excluded=trajectory.excluded,
            branches=tuple(branch.cause for branch in trajectory.branches),
            lists_tools=trajectory.lists_tools,
        )

    def judged(self, judgement: Judgement) -> RolloutFigures:
        """The figures with the judgement."""
        return replace(self, reward=judgement.reward, success=judgement.success, parts=judgement.parts)


def fated(rollout: RolloutFigures, fate: str, *, masked: bool) -> RolloutFigures:
    """A rollout whose group is decided. ``masked``: truncated ones are not trained (`algorithm.overlong`)."""
    return replace(rollout, fate="overlong" if masked and rollout.truncated and fate == "trained" else fate)


def delivered(rollouts: Iterable[RolloutFigures]) -> dict[str, int]:
    """Sampled tokens, those that are trained, and those that are not by cause: ``sampled`` is the sum of the others."""
    found: Counter[str] = Counter()
    for each in rollouts:
        found["sampled"] += each.written
        found.update(each.excluded)
        found[each.lost or each.fate] += each.written - sum(each.excluded.values())
    return {name: count for name, count in found.items() if count}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def _parts(rollouts: Sequence[RolloutFigures]) -> dict[str, float]:
    names = dict.fromkeys(name for rollout in rollouts for name in rollout.parts)
    return {name: _mean([r.parts[name] for r in rollouts if name in r.parts]) for name in names}


def by_environment(rollouts: Iterable[RolloutFigures]) -> dict[str, list[RolloutFigures]]:
    """The rollouts of each environment, by the environment's name."""
    groups: dict[str, list[RolloutFigures]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.environment, []).append(rollout)
    return dict(sorted(groups.items()))


def rollout_means(sampled: Sequence[RolloutFigures]) -> RolloutMeans:
    """Means over rollouts. Lost rollouts are counted, and enter no mean."""
    rollouts = [r for r in sampled if not r.lost]
    correct = [r for r in rollouts if r.success]
    calls = sum(r.calls for r in rollouts)
    correct_calls = sum(r.calls for r in correct)

    def of_calls(count: int) -> float:
        return count / calls if calls else 0.0

    return RolloutMeans(
        rollouts=len(rollouts),
        success=_mean([float(r.success) for r in rollouts]),
        reward=_mean([r.reward for r in rollouts]),
        parts=_parts(rollouts),
        response_tokens=_mean([float(r.tokens) for r in rollouts]),
        turns=_mean([float(r.turns) for r in rollouts]),
        tool_calls=calls / len(rollouts) if rollouts else 0.0,
        tool_error_share=of_calls(sum(r.failed_calls for r in rollouts)),
        tool_error_share_correct=sum(r.failed_calls for r in correct) / correct_calls if correct_calls else 0.0,
        unaided_share_correct=_mean([float(r.calls == r.failed_calls) for r in correct]),
        malformed_call_share=of_calls(sum(r.malformed_calls for r in rollouts)),
        unknown_tool_share=of_calls(sum(r.unknown_tools for r in rollouts)),
        cut_response_share=of_calls(sum(r.cut_responses for r in rollouts)),
        rollouts_failed=sum(r.lost in {"failed", "environment_failed"} for r in sampled),
        prompts_too_long=sum(r.lost == "prompt_too_long" for r in sampled),
        truncated_share=_mean([float(r.truncated) for r in rollouts]),
        rollout_seconds=_mean([r.seconds for r in rollouts]),
    )


def step_figures(
    rollouts: Sequence[RolloutFigures], step: Step, stale_seconds: Sequence[float] = (), *, several: bool = False
) -> StepFigures:
    """A step's figures of all sampled rollouts of the groups it decided, kept or not.

    ``stale_seconds``: how long groups lasted that were dropped as stale and have ended since the step before.
    ``several``: the run has several environments, so the figures are also given by environment.
    """
    lasted = dict.fromkeys(step.trained, 0.0)
    for rollout in rollouts:
        if rollout.group in lasted and not rollout.lost:
            lasted[rollout.group] = max(lasted[rollout.group], rollout.seconds)
    each = by_environment(rollouts) if several else {}
    return StepFigures(
        sampled=rollout_means(rollouts),
        environments={name: rollout_means(of) for name, of in each.items()},
        groups_decided=len(step.decided),
        groups_trained=len(step.trained),
        groups_dropped_stale=len(step.dropped),
        staleness_mean=_mean([float(s) for s in step.staleness]) if step.staleness else None,
        staleness_max=max(step.staleness, default=None),
        staleness_limit=step.limit,
        group_seconds=_mean(list(lasted.values())) if lasted else None,
        stale_group_seconds=_mean(stale_seconds) if stale_seconds else None,
        delivered=delivered(rollouts),
        lists_tools=any(rollout.lists_tools for rollout in rollouts),
        branches=dict(Counter(cause for rollout in rollouts for cause in rollout.branches)),
    )


def evaluation_figures(rollouts: Sequence[RolloutFigures], stage: EvaluateStage) -> EvaluationFigures:
    """Success, sampled and greedy, and by environment where the problems are of several environments.

    ``rollouts`` are the judged rollouts, and one lost rollout of each problem without a judged one.
    """
    sampled, greedy = (
        [r for r in rollouts if r.purpose == purpose] for purpose in ("evaluate_sampled", "evaluate_greedy")
    )
    each = by_environment(sampled)
    return EvaluationFigures(
        name=stage.name,
        sampled=answer_figures(sampled, stage.problems, stage.samples),
        greedy=answer_figures(greedy, stage.problems, 1) if stage.greedy else None,
        environments={
            name: answer_figures(of, len({rollout.group for rollout in of}), stage.samples)
            for name, of in each.items()
            if len(each) > 1
        },
    )


def answer_figures(rollouts: Sequence[RolloutFigures], problems: int, samples: int) -> AnswerFigures:
    """Success of the answers to ``problems`` problems, with its 95 % interval (`mean_interval`).

    A rollout that the infrastructure lost in all its attempts counts as wrong.
    """
    judged = [rollout for rollout in rollouts if not rollout.lost]
    trials = problems * samples
    right = Counter(rollout.group for rollout in judged if rollout.success)
    asked = {rollout.group: (rollout.environment, *rollout.problem) for rollout in rollouts}
    values = [*(right[group] / samples for group in asked), *[0.0] * (problems - len(asked))]
    low, high = mean_interval(values, samples, [*asked.values(), *range(problems - len(asked))])
    return AnswerFigures(
        problems=problems,
        success=right.total() / trials,
        low=low,
        high=high,
        lost=trials - len(judged),
        answered=rollout_means(judged),
    )
