"""Evaluations within an rl stage: which rollouts are in, and which evaluation is complete."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from agent_rl.config.topology import RlStage
from agent_rl.figures import EvaluationFigures
from agent_rl.groups.statistics import RolloutFigures, evaluation_figures


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
