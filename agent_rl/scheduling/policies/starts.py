"""Which rollout starts next, so that the samples of a group start close together.

A sample's delay is the time from when its group began to wait until it starts; delays below ``LEAST_S`` count as that.
No sample's delay shall exceed twice that of its group's first: samples that are spread out keep the tokens of the
others waiting, and get older. So a group *begins* only when all its samples are likely to start in time. As many as
there are places now, and as rollouts are likely to end within the group's delay, must cover them. Ends are counted with
weights that fade over ``FADES_S``. A sample that is late all the same may start where it fits at present
(predictive.py). Only one group at a time has begun and waits, so these are fewer than the samples of a group.

Groups begin in the order of their batches: the groups of a step in the order of opening, since a step waits for the
last rollout of its batch. Within a batch, those whose rollouts are likely to be longest begin first.

Each method costs O(log groups).
"""

from __future__ import annotations

import heapq
import math
from collections import deque

from agent_rl.scheduling.policies.base import Setting, WaitingTurn

LEAST_S = 60.0
LATE = 0.6
"""A sample is late when this share of the time that it may start after the first has passed."""
FADES_S = 300.0


class _Group:
    __slots__ = ("began", "delay", "since", "turns")

    def __init__(self, since: float) -> None:
        self.since = since
        self.turns: dict[str, WaitingTurn] = {}
        self.began = math.inf
        self.delay = math.inf
        """That of its first sample, once it has begun."""


class Starts:
    """The first turns that wait."""

    def __init__(self) -> None:
        self._setting = Setting(1, 1)
        self._groups: dict[str, _Group] = {}
        self._group_of: dict[str, str] = {}
        self._begun: deque[str] = deque()
        """Groups that have begun, some of whose samples may wait."""
        self._waiting: list[tuple[int, float, int, str]] = []
        """A heap of the groups that have not begun: batch, expected length (negative), number, name."""
        self._seen = 0
        self._rate = 0.0
        """Rollouts that end in a second, as of ``_rate_at``."""
        self._rate_at = 0.0

    def __len__(self) -> int:
        return len(self._group_of)

    def begin(self, setting: Setting) -> None:
        """Another stage: batches are counted from its first group."""
        self._setting = setting
        self._seen = 0

    def add(self, turn: WaitingTurn, length: float, now: float) -> None:
        """A rollout waits for its start. It is likely to become ``length`` tokens long."""
        group = self._groups.get(turn.group)
        if group is None:
            group = self._groups[turn.group] = _Group(now)
            batch = self._seen // max(1, self._setting.groups_per_step)
            heapq.heappush(self._waiting, (batch, -length, self._seen, turn.group))
            self._seen += 1
        group.turns[turn.rollout] = turn
        self._group_of[turn.rollout] = turn.group

    def remove(self, rollout: str, now: float = math.inf) -> None:
        """The rollout starts ``now``, or does not wait any more."""
        name = self._group_of.pop(rollout, "")
        group = self._groups.get(name)
        if group is None:
            return
        del group.turns[rollout]
        if now < math.inf and group.began == math.inf:
            group.began = now
            group.delay = max(LEAST_S, now - group.since)
            self._begun.append(name)
        if not group.turns:
            del self._groups[name]

    def ended(self, now: float) -> None:
        """A rollout ended."""
        self._rate = self._rate * math.exp((self._rate_at - now) / FADES_S) + 1 / FADES_S
        self._rate_at = now

    def first(self, now: float, places: float, to_train: float = math.inf) -> tuple[WaitingTurn, bool] | None:
        """The rollout that starts next if there is room for it, and whether it is late; None: none may start now.

        ``places`` is the number of rollouts that there is room for, roughly. Of those that a step waits for,
        ``to_train`` may start.
        """
        while self._begun:
            group = self._groups.get(self._begun[0])
            if group is not None and group.began < math.inf:
                return next(iter(group.turns.values())), now >= group.began + LATE * group.delay
            self._begun.popleft()
        while self._waiting:
            group = self._groups.get(self._waiting[0][3])
            if group is None or group.began < math.inf:
                heapq.heappop(self._waiting)
                continue
            delay = max(LEAST_S, now - group.since)
            ends = self._rate * math.exp((self._rate_at - now) / FADES_S) * LATE * delay
            turn = next(iter(group.turns.values()))
            room = min(places, to_train) if turn.trains else places
            return (turn, False) if room + ends >= len(group.turns) else None
        return None
