"""Where each rollout is: one dict from a rollout to its `Place`, and what generators are told of rollouts to end.

::

    wait --> waiting --place--> at a generator --remove--> done, or not wanted
                ^                    |
                `-------move---------+  (the generator is lost, or has let go of the rollout)

Rollouts are cancelled whose group was dropped or is of another stage. The announcement (`Unwanted`) names their groups
as long as any of their rollouts is in flight. It also names the rollouts that left a lost generator, which may still
run them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from agent_rl.messages import RolloutRequest
from agent_rl.scheduling.instructions import Assign, Unwanted


@dataclass(slots=True)
class Place:
    """Where a rollout is. It waits while ``generator`` is empty, and is in flight otherwise."""

    request: RolloutRequest
    generator: str = ""
    promised: float = 0.0
    """The KV tokens that the engine has promised it."""
    lost_by: str = ""
    """The generator that was lost with the rollout, and may still run it."""
    result: bool = True
    """Whether the rollout has a result, if it is over."""

    @property
    def assign(self) -> Assign:
        """The instruction that placed it."""
        return Assign(self.request, self.generator)


class Places:
    """All rollouts that are wanted, and those in flight that are not wanted any more."""

    def __init__(self) -> None:
        self._places: dict[str, Place] = {}
        """In the order in which they began to wait or were placed."""
        self._groups: dict[str, dict[str, None]] = {}
        """The rollouts of each group."""
        self.waiting = 0
        """How many rollouts wait."""
        self._stage = 0
        self._dropped: frozenset[str] = frozenset()
        self._unwanted: set[str] = set()
        self._copies: dict[str, int] = {}
        """The rollouts in flight that a lost generator may still run, each with the placement epoch of its request."""
        self._announced = Unwanted(())
        self._changed = False
        """Whether there may be something to announce."""

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    @property
    def in_flight(self) -> int:
        """How many rollouts generators have."""
        return len(self._places) - self.waiting

    def get(self, rollout: str) -> Place | None:
        """Where the rollout is, waiting or in flight; None when it is neither."""
        return self._places.get(rollout)

    def running(self, rollout: str) -> Place | None:
        """Where the rollout is, if it is in flight."""
        place = self._places.get(rollout)
        return place if place is not None and place.generator else None

    def at(self, generator: str) -> list[Place]:
        """The rollouts that the generator has, in the order in which it got them."""
        return [place for place in self._places.values() if place.generator == generator]

    def wait(self, request: RolloutRequest) -> None:
        """A rollout waits from now on."""
        self._places[request.rollout] = Place(request)
        self._groups.setdefault(request.group, {})[request.rollout] = None
        self.waiting += 1

    def place(self, place: Place, generator: str, promised: float) -> None:
        """A generator gets the rollout, which waits."""
        rollout = place.request.rollout
        self._places[rollout] = self._places.pop(rollout)
        place.generator, place.promised = generator, promised
        self.waiting -= 1
        if place.lost_by not in {"", generator}:
            self._copies[rollout] = place.request.placement_epoch
            self._changed = True

    def move(self, place: Place, *, lost: bool) -> None:
        """The rollout waits again. ``lost``: its generator is lost, else it has let go of the rollout."""
        self._forget_copy(place)
        place.lost_by = place.generator if lost else ""
        place.generator, place.promised, place.result = "", 0.0, True
        place.request = replace(place.request, placement_epoch=place.request.placement_epoch + 1)
        self.waiting += 1

    def remove(self, place: Place) -> None:
        """The rollout is done, or not wanted."""
        rollout, group = place.request.rollout, place.request.group
        del self._places[rollout]
        self._forget_copy(place)
        self.waiting -= not place.generator
        del self._groups[group][rollout]
        if not self._groups[group]:
            del self._groups[group]
            self._want(group)

    def _forget_copy(self, place: Place) -> None:
        if self._copies.pop(place.request.rollout, None) is not None:
            self._changed = True

    # Rollouts that are not wanted

    def enter(self, stage: int) -> list[Place]:
        """The run is in this stage: rollouts of others are cancelled. Returns those that waited, which are removed."""
        waiting = [place for place in self._places.values() if not place.generator]
        for place in waiting:
            self.remove(place)
        self._stage, self._changed = stage, True
        self._unwanted = {group for group in self._groups if group in self._dropped or self._stage_of(group) != stage}
        return waiting

    def drop(self, groups: Collection[str]) -> list[Place]:
        """These groups of the stage, and no others, are dropped. Returns those that waited, which are removed."""
        before, self._dropped = self._dropped, frozenset(groups)
        for group in before - self._dropped:
            if group in self._groups and self._stage_of(group) == self._stage:
                self._want(group)
        waiting = [
            self._places[rollout]
            for group in self._dropped - before
            for rollout in self._groups.get(group, ())
            if not self._places[rollout].generator
        ]
        for place in waiting:
            self.remove(place)
        if cancelled := (self._dropped - before) & self._groups.keys():
            self._unwanted |= cancelled
            self._changed = True
        return waiting

    def _want(self, group: str) -> None:
        if group in self._unwanted:
            self._unwanted.discard(group)
            self._changed = True

    def dropped(self, group: str) -> bool:
        """Whether the group is dropped."""
        return group in self._dropped

    def unwanted(self, group: str) -> bool:
        """Whether the group's rollouts in flight are cancelled."""
        return group in self._unwanted

    def announcement(self) -> list[Unwanted]:
        """What all generators are to be told, if that has changed."""
        if not self._changed:
            return []
        self._changed = False
        before, self._announced = self._announced, Unwanted(tuple(sorted(self._unwanted)), dict(self._copies))
        return [self._announced] if self._announced != before else []

    def _stage_of(self, group: str) -> int:
        return self._places[next(iter(self._groups[group]))].request.stage
