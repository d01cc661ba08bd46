"""Which rollout starts next, so that the samples of a group start close together.

A sample's delay is the time from when its group began to wait until it starts. Delays below ``LEAST_S`` count as that.
No sample's delay shall exceed twice that of its group's first. Samples that are spread out keep the tokens of the
others waiting, and these tokens get older. So a group *begins* only when all its samples are likely to start in time.
The places that there are now must cover them, together with the rollouts that are likely to end within the group's
delay. Ends are counted with weights that fade over ``FADES_S``. A sample that is late all the same may start where it
fits at present (sticky.py). Only one group at a time has begun and waits, so late samples are fewer than the samples of
a group.

Groups begin in the order of opening, since a step waits for the last rollout of its batch.
"""

from __future__ import annotations

import math
from collections import deque

from agent_rl.scheduling.policies.base import WaitingTurn

LEAST_S = 60.0
LATE = 0.6
"""A sample is late when this share of the time that it may start after the first has passed."""
FADES_S = 300.0


class _Group:
    def __init__(self, since: float) -> None:
        self.since = since
        self.turns: dict[str, WaitingTurn] = {}
        self.late = math.inf
        """When its samples are late; known once its first sample has started."""


class Starts:
    """The rollouts that wait for their start."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        """In the order of opening."""
        self._begun: deque[str] = deque()
        """Groups that have begun, some of whose samples may wait."""
        self._group_of: dict[str, str] = {}
        self._rate, self._rate_at = 0.0, 0.0
        """Rollouts that end in a second, as of the time ``_rate_at``."""

    def __len__(self) -> int:
        return len(self._group_of)

    def add(self, turn: WaitingTurn, now: float) -> None:
        """A rollout waits for its start."""
        self._groups.setdefault(turn.group, _Group(now)).turns[turn.rollout] = turn
        self._group_of[turn.rollout] = turn.group

    def started(self, rollout: str, now: float) -> None:
        """The rollout starts."""
        name = self._group_of.get(rollout, "")
        group = self._groups.get(name)
        if group is not None and group.late == math.inf:
            group.late = now + LATE * max(LEAST_S, now - group.since)
            self._begun.append(name)
        self.remove(rollout)

    def remove(self, rollout: str) -> None:
        """The rollout does not wait any more."""
        name = self._group_of.pop(rollout, "")
        if name:
            group = self._groups[name]
            del group.turns[rollout]
            if not group.turns:
                del self._groups[name]

    def ended(self, now: float) -> None:
        """A rollout ended."""
        self._rate = self._rate_now(now) + 1 / FADES_S
        self._rate_at = now

    def _rate_now(self, now: float) -> float:
        return self._rate * math.exp((self._rate_at - now) / FADES_S)

    def first(self, now: float, places: float, to_train: float = math.inf) -> tuple[WaitingTurn, bool] | None:
        """The rollout that starts next if there is room for it, and whether it is late; None: none may start now.

        ``places`` is the number of rollouts that there is room for, about. Of those that a step waits for, ``to_train``
        may start.
        """
        while self._begun:
            group = self._groups.get(self._begun[0])
            if group is not None and group.late < math.inf:
                return next(iter(group.turns.values())), now >= group.late
            self._begun.popleft()  # none of its samples waits
        if not self._groups:
            return None
        group = next(iter(self._groups.values()))
        turn = next(iter(group.turns.values()))
        ends = self._rate_now(now) * LATE * max(LEAST_S, now - group.since)
        room = min(places, to_train) if turn.trains else places
        return (turn, False) if room + ends >= len(group.turns) else None
