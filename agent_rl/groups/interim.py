"""Evaluations within an rl stage: which rollouts are in, and which evaluation is complete."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from agent_rl.config.topology import RlStage
from agent_rl.figures import EvaluationFigures
from agent_rl.groups.statistics import RolloutFigures, evaluation_figures


@dataclass(slots=True)
class InterimEvaluations:
    """Those of one stage; their groups are numbered through, from 0."""

    stage: RlStage
    opened: int = 0
    """Every group number below it was opened."""
    _rollouts: dict[int, list[RolloutFigures]] = field(default_factory=dict)
    _groups: dict[int, set[int]] = field(default_factory=dict)

    def numbers(self, evaluation: int) -> range:
        """The groups of an evaluation."""
        assert self.stage.evaluate is not None
        problems = self.stage.evaluate.problems
        return range((evaluation - 1) * problems, evaluation * problems)

    def group_done(self, number: int, rollouts: Iterable[RolloutFigures]) -> tuple[int, EvaluationFigures] | None:
        """All rollouts of a group are judged; the evaluation and its figures when that was its last group.

        The policy goes on changing meanwhile: the figures say which ones answered.
        """
        evaluation = self.stage.interim_of(number)
        here = self._rollouts.setdefault(evaluation, [])
        here.extend(rollouts)
        done = self._groups.setdefault(evaluation, set())
        done.add(number)
        if len(done) < len(self.numbers(evaluation)):
            return None
        del self._rollouts[evaluation], self._groups[evaluation]
        return evaluation, self._figures(evaluation, here)

    def _figures(self, evaluation: int, rollouts: Sequence[RolloutFigures]) -> EvaluationFigures:
        judged = [rollout for rollout in rollouts if not rollout.lost]
        return replace(
            evaluation_figures(rollouts, self.stage.interim(evaluation)),
            version_oldest=min((rollout.oldest for rollout in judged), default=None),
            version_newest=max((rollout.newest for rollout in judged), default=None),
        )
