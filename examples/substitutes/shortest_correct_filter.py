"""A filter that keeps the shortest of the correct rollouts, whatever their tool calls were like.

Two lines of a topology beside it choose it::

    [actors.roc_filter]
    class = "shortest_correct_filter:ShortestCorrectFilter"
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from actors.roc_filter import RoCFilter
from agent_rl.groups.resampling import Candidate, quotas


class ShortestCorrectFilter(RoCFilter):
    """RoC's proportions, other preferences: incorrect rollouts are drawn uniformly, correct ones by their length."""

    def select(self, group: Sequence[Candidate], rng: random.Random) -> tuple[int, ...]:
        """The positions kept: at least one rollout of each kind, else the group would teach nothing."""
        right = [index for index, rollout in enumerate(group) if rollout.reward > 0]
        wrong = [index for index, rollout in enumerate(group) if rollout.reward <= 0]
        keep = self.context.topology.algorithm.keep
        kept_right, kept_wrong = quotas(len(right), len(wrong), keep)
        shortest = sorted(right, key=lambda index: (group[index].tokens, index))
        return (*shortest[:kept_right], *rng.sample(wrong, kept_wrong))
