"""The rollouts that generators have, and which of them the generators are told to cancel or to abandon.

Rollouts are cancelled whose group was dropped or is of another stage. The announcement (`Unwanted`) names their groups
as long as any of their rollouts is in flight, and the rollouts that moved; it goes to all generators. What a generator
is asked to do with its own rollouts goes to that generator alone: in a large run, rollouts move all the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from agent_rl.scheduling.instructions import Assign, Unwanted


@dataclass(slots=True)
class _Asked:
    """What a generator is asked to do with its rollouts. The fields are those of GroupsUnwanted."""

    held: dict[str, int] = field(default_factory=dict)
    freed: dict[str, int] = field(default_factory=dict)


class InFlight:
    """The rollouts in flight, each with the instruction that placed it."""

    def __init__(self) -> None:
        self._places: dict[str, Assign] = {}
        self._stage = 0
        self._stages: dict[str, int] = {}
        """The stages of the groups in flight."""
        self._rollouts: Counter[str] = Counter()
        """How many rollouts of each group are in flight."""
        self._dropped: frozenset[str] = frozenset()
        self._unwanted: set[str] = set()
        self._moved: dict[str, int] = {}
        """The rollouts that another generator may still have, each with its move."""
        self._held: dict[str, str] = {}
        """The rollouts that their generator shall let go of, each with the engine where the policy counts it, or ""."""
        self._asked: dict[str, _Asked] = {}
        """By generator; one that is asked nothing is left out."""
        self._announced = Unwanted(())
        """What all generators were told."""
        self._announced_to: dict[str, Unwanted] = {}
        """What generators were told after that, each for itself."""
        self._changed = False
        self._changed_for: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __contains__(self, rollout: str) -> bool:
        return rollout in self._places

    def get(self, rollout: str) -> Assign | None:
        """Where the rollout is; None when it is not in flight."""
        return self._places.get(rollout)

    def add(self, place: Assign, *, moved: bool) -> None:
        """A generator gets the rollout. ``moved``: another generator may still have it."""
        request = place.request
        self._places[request.rollout] = place
        self._rollouts[request.group] += 1
        self._stages[request.group] = request.stage
        if moved:
            self._moved[request.rollout] = request.move
            self._changed = True

    def remove(self, rollout: str) -> Assign | None:
        """The generator has the rollout no more. Returns where it was; None when it was not in flight."""
        place = self._places.pop(rollout, None)
        if place is None:
            return None
        if self._moved.pop(rollout, None) is not None:
            self._changed = True
        if self._held.pop(rollout, None) is not None:
            self._asks(place).held.pop(rollout)
        if (asked := self._asked.get(place.generator)) is not None and asked.freed.pop(rollout, None) is not None:
            self._changed_for[place.generator] = None
        group = place.request.group
        self._rollouts[group] -= 1
        if not self._rollouts[group]:
            del self._rollouts[group], self._stages[group]
            self._forgive(group)
        return place

    def hold(self, rollout: str, destination: str = "") -> None:
        """The rollout's generator shall let go of it. The policy counts it on this engine, and is asked again then."""
        if rollout not in self._held:
            place = self._places[rollout]
            self._asks(place).held[rollout] = place.request.move
        self._held[rollout] = destination

    def keep(self, rollout: str) -> None:
        """The rollout's generator shall keep it after all."""
        if self._held.pop(rollout, None) is not None:
            self._asks(self._places[rollout]).held.pop(rollout)

    def destination(self, rollout: str) -> str | None:
        """The engine where the policy counts a held rollout; empty when none is decided, None when it is not held."""
        return self._held.get(rollout)

    def free(self, rollout: str, tokens: int) -> None:
        """The rollout's generator shall free its KV cache, while its tools run and it has this many tokens."""
        self._asks(self._places[rollout]).freed[rollout] = tokens

    def answered(self, rollout: str) -> bool:
        """The rollout's tools have answered. Returns whether its KV cache was to be freed meanwhile."""
        generator = self._places[rollout].generator
        if generator not in self._asked or rollout not in self._asked[generator].freed:
            return False
        del self._asks(self._places[rollout]).freed[rollout]
        return True

    def bound_for(self, engine: str) -> list[Assign]:
        """Where the held rollouts are that go to this engine."""
        return [self._places[rollout] for rollout, destination in self._held.items() if destination == engine]

    def unwanted(self, group: str) -> bool:
        """Whether the group's rollouts in flight are cancelled."""
        return group in self._unwanted

    def enter(self, stage: int) -> None:
        """The run is in this stage: rollouts of others are cancelled."""
        self._stage = stage
        self._unwanted = {group for group, of in self._stages.items() if of != stage or group in self._dropped}
        self._changed = True

    def drop(self, groups: Collection[str]) -> None:
        """These groups of the stage, and no others, are dropped."""
        dropped = frozenset(groups)
        for group in self._dropped - dropped:
            if self._stages.get(group) == self._stage:
                self._forgive(group)
        for group in dropped - self._dropped:
            if group in self._stages:
                self._unwanted.add(group)
                self._changed = True
        self._dropped = dropped

    def announcement(self) -> list[Unwanted]:
        """What generators are to be told, as far as that has changed: all of them first, then each for itself."""
        told: list[Unwanted] = []
        if self._changed:
            self._changed = False
            unwanted = Unwanted(tuple(sorted(self._unwanted)), dict(self._moved))
            if unwanted != self._announced:
                self._announced = unwanted
                self._announced_to.clear()
                self._changed_for.update(dict.fromkeys(self._asked))
                told.append(unwanted)
        for generator in self._changed_for:
            asked = self._asked.get(generator, _Asked())
            if not (asked.held or asked.freed):
                self._asked.pop(generator, None)
            before = self._announced_to.get(generator, self._announced)
            if (asked.held, asked.freed) == (before.held, before.freed):
                continue
            unwanted = replace(self._announced, held=dict(asked.held), freed=dict(asked.freed), generator=generator)
            self._announced_to[generator] = unwanted
            told.append(unwanted)
        self._changed_for.clear()
        return told

    def _asks(self, place: Assign) -> _Asked:
        """What the rollout's generator is asked, which is about to change."""
        self._changed_for[place.generator] = None
        return self._asked.setdefault(place.generator, _Asked())

    def _forgive(self, group: str) -> None:
        if group in self._unwanted:
            self._unwanted.discard(group)
            self._changed = True
