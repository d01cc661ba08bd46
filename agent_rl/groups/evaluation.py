"""An evaluate stage: which of its rollouts are in, and whether it is complete. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from agent_rl.config.topology import EvaluateStage
from agent_rl.groups.group import UndecidedGroup
from agent_rl.groups.instructions import Evaluated, EvaluationGroupDone
from agent_rl.groups.statistics import RolloutFigures, evaluation_figures
from agent_rl.messages import Evaluation


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
