"""A select stage: how often the policy solves each problem, and which problems the stage keeps. Pure.

::

    all samples of a problem settled --> Selection.group_done --> Sampled: record what was counted
    all problems of the stage counted --> Selection.result    --> Selected: record what is kept
                                                              --> Outage: nothing is kept, the run ends

What was counted is recorded problem by problem, so a restart reads counts and no trajectories. The rule is applied when
all problems are counted. A recorded result does not change any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from agent_rl.config.selection import SelectStage, Solved
from agent_rl.config.topology import EvaluateStage, RlStage
from agent_rl.figures import EvaluationFigures, SelectionFigures
from agent_rl.groups.instructions import Evaluated, EvaluationGroupDone, Outage, Sampled, SampledProblem, Selected
from agent_rl.groups.statistics import RolloutFigures, evaluation_figures
from agent_rl.messages import Evaluation

if TYPE_CHECKING:
    from agent_rl.groups.book import UndecidedGroup


@dataclass(slots=True)
class StageEvaluation:
    """The evaluate stage that the learner is in."""

    stage: EvaluateStage
    _groups: int = 0
    _rollouts: list[RolloutFigures] = field(default_factory=list)

    def group_done(self, group: UndecidedGroup) -> EvaluationGroupDone:
        """All samples of a group are judged or lost."""
        self.restore(group.counted_figures())
        return EvaluationGroupDone(group.opened.group)

    def restore(self, rollouts: Iterable[RolloutFigures]) -> None:
        """Count an evaluated group by what counts of it."""
        self._groups += 1
        self._rollouts.extend(rollouts)

    def progress(self) -> tuple[int, int]:
        """The number of judged rollouts, and of all rollouts."""
        return sum(not rollout.lost for rollout in self._rollouts), self.stage.rollouts

    def result(self, index: int) -> Evaluated | None:
        """The result, once all groups are evaluated; ``index`` is that of the stage."""
        if self._groups < self.stage.groups:
            return None
        return Evaluated(Evaluation(index), evaluation_figures(self._rollouts, self.stage))


def sampled_problem(group: UndecidedGroup) -> SampledProblem:
    """What is counted of the problem of a group whose samples are all judged or lost."""
    opened, judged = group.opened, group.judged_figures()
    return SampledProblem(
        opened.stage,
        opened.number,
        opened.problem.environment,
        opened.problem.id,
        Solved.counted((rollout.success for rollout in judged), len(group.samples)),
        lost=len(group.samples) - len(judged),
        tokens=sum(rollout.tokens for rollout in judged),
    )


@dataclass(slots=True)
class Selection:
    """The select stage that the learner is in."""

    stage: SelectStage
    problems: int | None = None
    """How many problems the stage has; None before its first group."""
    recorded: Selected | None = None
    """The result that the journal holds."""
    counted: dict[int, SampledProblem] = field(default_factory=dict)
    """What was counted, by number."""
    _judged: int = 0

    def group_done(self, group: UndecidedGroup) -> Sampled:
        """All samples of a group are judged or lost."""
        problem = sampled_problem(group)
        self.restore(problem)
        return Sampled(group.opened.group, problem)

    def restore(self, *counted: SampledProblem) -> None:
        """Count problems."""
        self.counted |= {problem.number: problem for problem in counted}
        self._judged += sum(problem.solved.samples - problem.lost for problem in counted)

    def progress(self) -> tuple[int, int] | None:
        """The number of judged rollouts of problems that are counted, and of all rollouts; None before the first."""
        return None if self.problems is None else (self._judged, self.problems * self.stage.samples)

    def result(self, index: int) -> Selected | Outage | None:
        """What the stage keeps, once all its problems are counted; ``index`` is that of the stage."""
        if self.recorded is None and len(self.counted) == self.problems:
            reasons = {number: self.stage.keep.reason(each.solved) for number, each in sorted(self.counted.items())}
            kept = tuple(number for number, reason in reasons.items() if not reason)
            dropped = Counter(reason for reason in reasons.values() if reason)
            if not kept:
                return Outage(self._nothing_kept(index, dropped), ())
            self.recorded = Selected(index, kept, self._figures(len(kept), dropped))
        return self.recorded

    def _figures(self, kept: int, dropped: Counter[str]) -> SelectionFigures:
        every = self.counted.values()
        asked, lost = sum(each.solved.samples for each in every), sum(each.lost for each in every)
        return SelectionFigures(
            name=self.stage.name,
            problems=len(every),
            kept=kept,
            dropped=dict(dropped),
            success=sum(each.solved.right for each in every) / asked,
            lost=lost,
            response_tokens=sum(each.tokens for each in every) / (asked - lost) if asked > lost else None,
        )

    def _nothing_kept(self, index: int, dropped: Counter[str]) -> str:
        found = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in sorted(dropped.items()))
        return (
            f"stages.{index}: select stage {self.stage.name!r} keeps none of its {len(self.counted):,} problems "
            f"({found}), so the stages after it would have nothing to draw from; change stages.{index}.keep and run "
            "again (nothing is sampled anew), or start again in another run.directory with other problems"
        )


@dataclass(slots=True)
class InterimEvaluations:
    """The evaluations within one stage, each by its ``at_step``: the steps of the stage before it."""

    stage: RlStage
    opened: Counter[int] = field(default_factory=Counter)
    """The number of groups that each has opened."""
    _groups: dict[int, list[tuple[RolloutFigures, ...]]] = field(default_factory=dict)
    """The judged groups of each evaluation that is not complete."""

    def group_done(self, at_step: int, rollouts: Iterable[RolloutFigures]) -> EvaluationFigures | None:
        """All rollouts of a group are judged; the figures of its evaluation when that was the last group.

        The policy changes during the evaluation: the figures say which versions answered.
        """
        assert self.stage.evaluate is not None
        groups = self._groups.setdefault(at_step, [])
        groups.append(tuple(rollouts))
        if len(groups) < self.stage.evaluate.problems:
            return None
        del self._groups[at_step]
        every = [rollout for group in groups for rollout in group]
        judged = [rollout for rollout in every if not rollout.lost]
        return replace(
            evaluation_figures(every, self.stage.interim(at_step)),
            version_oldest=min((rollout.oldest for rollout in judged), default=None),
            version_newest=max((rollout.newest for rollout in judged), default=None),
        )
