"""The rollouts that wait to be placed, by their group, so that dropping a group costs what the group has there.

The order in which they are placed is the policy's (`agent_rl.scheduling.policies`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from agent_rl.messages import RolloutRequest


@dataclass(frozen=True, slots=True)
class Waiting:
    """A rollout that waits. ``last`` is the generator that lost it; empty for a new one."""

    request: RolloutRequest
    last: str = ""


class Pending:
    """The rollouts that wait."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, Waiting]] = {}
        self._group_of: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._group_of)

    def __iter__(self) -> Iterator[str]:
        return iter(self._group_of)

    def __contains__(self, rollout: str) -> bool:
        return rollout in self._group_of

    def renumber(self, rollout: str, move: int) -> None:
        """The rollout has moved so often, as its generator says."""
        item = self.take(rollout)
        self.add(replace(item, request=replace(item.request, move=move)))

    def add(self, item: Waiting) -> None:
        """A rollout waits from now on."""
        request = item.request
        self._groups.setdefault(request.group, {})[request.rollout] = item
        self._group_of[request.rollout] = request.group

    def get(self, rollout: str) -> Waiting:
        """The rollout, which goes on waiting. Raises KeyError when it does not wait."""
        return self._groups[self._group_of[rollout]][rollout]

    def take(self, rollout: str) -> Waiting:
        """The rollout waits no more. Raises KeyError when it does not wait."""
        group = self._group_of.pop(rollout)
        item = self._groups[group].pop(rollout)
        if not self._groups[group]:
            del self._groups[group]
        return item

    def drop(self, group: str) -> list[Waiting]:
        """The group's rollouts, which wait no more."""
        dropped = list(self._groups.pop(group, {}).values())
        for item in dropped:
            del self._group_of[item.request.rollout]
        return dropped

    def clear(self) -> list[Waiting]:
        """All rollouts, which wait no more."""
        cleared = [item for group in self._groups.values() for item in group.values()]
        self._groups.clear()
        self._group_of.clear()
        return cleared
