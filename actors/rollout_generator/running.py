"""The rollouts that a generator runs: who waits for each, and how it is cancelled, abandoned or waited for.

::

    begin --> running --(ended: its trajectory is acknowledged)--> requests acknowledged
                 |--(cancel: its group was dropped)--> a trajectory that says so
                 |--(abandon: another generator has it)--> requests acknowledged, nothing is sent
                 |--(let go: the generator leaves, a turn is complete) --> its turns sent, then requests acknowledged
                 `--(orphaned: the scheduler has a new process)--> running: the new process hears of it, and asks for it
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import trio

from agent_rl.messages import RolloutRequest


@dataclass(slots=True, eq=False)
class Running:
    """A rollout of this generator. ``placement_epoch`` is that of its newest request."""

    rollout: str
    group: str
    placement_epoch: int
    acks: list[Callable[[], None]]
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    """Around the sampling."""
    sampled: bool = False
    abandoned: bool = False
    left: bool = False
    """It was let go of."""
    ended: trio.Event = field(default_factory=trio.Event)


class RunningRollouts:
    """The rollouts from their request to the acknowledgement of their trajectory."""

    def __init__(self) -> None:
        self._running: dict[str, Running] = {}
        self.orphans: dict[str, int] = {}
        """Rollouts for which the present process of the scheduler has not asked, each with its placement epoch."""
        self._ended_orphans: set[str] = set()
        self.leaving = False
        """The generator lets go of each rollout when its turn is complete."""
        self._none = trio.Event()

    def __contains__(self, rollout: str) -> bool:
        return rollout in self._running

    @property
    def sampling(self) -> int:
        """The number of rollouts that are being sampled."""
        return sum(not each.sampled for each in self._running.values())

    async def begin(self, request: RolloutRequest, ack: Callable[[], None]) -> Running | None:
        """A request has come. None: the rollout runs already, and answers this request too, or it has just ended.

        A restarted scheduler repeats requests, and a rollout may return to a generator that was lost for a while.
        """
        self.orphans.pop(request.rollout, None)
        if request.rollout in self._ended_orphans:  # its trajectory was acknowledged after the scheduler had looked
            self._ended_orphans.discard(request.rollout)
            ack()
            await trio.lowlevel.checkpoint()
            return None
        while (running := self._running.get(request.rollout)) is not None:
            if not running.abandoned:
                running.acks.append(ack)
                running.placement_epoch = max(running.placement_epoch, request.placement_epoch)
                return None
            await running.ended.wait()
        made = self._running[request.rollout] = Running(request.rollout, request.group, request.placement_epoch, [ack])
        return made

    def end(self, running: Running) -> None:
        """The rollout's trajectory is acknowledged, or the rollout was abandoned: acknowledge its requests."""
        del self._running[running.rollout]
        if self.orphans.pop(running.rollout, None) is not None and not running.abandoned:
            self._ended_orphans.add(running.rollout)
        for ack in running.acks:
            ack()
        running.ended.set()
        if not self._running:
            self._none.set()
            self._none = trio.Event()

    def orphaned(self) -> None:
        """The scheduler has a new process, which does not know what runs here."""
        self.orphans = {each.rollout: each.placement_epoch for each in self._running.values() if not each.abandoned}
        self._ended_orphans.clear()

    def cancel(self, groups: Collection[str]) -> None:
        """These groups were dropped."""
        if not groups:  # most announcements are of other things
            return
        for running in self._running.values():
            if running.group in groups:
                running.scope.cancel()

    def abandon(self, moved: Mapping[str, int]) -> int:
        """These rollouts went to other generators with the requests of these epochs. Returns how many this one had."""
        found = [
            running
            for rollout, epoch in moved.items()
            if (running := self._running.get(rollout)) is not None
            and running.placement_epoch < epoch
            and not (running.sampled or running.abandoned)
        ]
        for running in found:
            running.abandoned = True
            running.scope.cancel()
        return len(found)

    async def none_left(self) -> None:
        """Wait until no rollout is left."""
        while self._running:
            await self._none.wait()
