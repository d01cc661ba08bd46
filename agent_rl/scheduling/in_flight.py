"""The rollouts that generators have, and which of them the generators are told to cancel or to abandon.

Rollouts are cancelled whose group was dropped or is of another stage. The announcement (`Unwanted`) names their groups
as long as any of their rollouts is in flight, and the rollouts that moved. It is kept up to date event by event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from agent_rl.scheduling.instructions import Place, Unwanted


class InFlight:
    """The rollouts in flight, each with the instruction that placed it."""

    def __init__(self) -> None:
        self._places: dict[str, Place] = {}
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
        """The rollouts that their generator shall let go of, each with the engine it goes to; "" if none is decided."""
        self._freed: dict[str, int] = {}
        """The rollouts whose KV cache is freed while their tools run, each with its tokens then."""
        self._announced = Unwanted(())
        self._changed = False

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __contains__(self, rollout: str) -> bool:
        return rollout in self._places

    def get(self, rollout: str) -> Place | None:
        """Where the rollout is; None when it is not in flight."""
        return self._places.get(rollout)

    def add(self, place: Place, *, moved: bool) -> None:
        """A generator gets the rollout. ``moved``: another generator may still have it."""
        request = place.request
        self._places[request.rollout] = place
        self._rollouts[request.group] += 1
        self._stages[request.group] = request.stage
        if moved:
            self._moved[request.rollout] = request.move
            self._changed = True

    def remove(self, rollout: str) -> Place | None:
        """The generator has the rollout no more. Returns where it was; None when it was not in flight."""
        place = self._places.pop(rollout, None)
        if place is None:
            return None
        gone = [of.pop(rollout, None) for of in (self._moved, self._held, self._freed)]
        self._changed = self._changed or any(each is not None for each in gone)
        group = place.request.group
        self._rollouts[group] -= 1
        if not self._rollouts[group]:
            del self._rollouts[group], self._stages[group]
            self._forgive(group)
        return place

    def hold(self, rollout: str, destination: str = "") -> None:
        """The rollout's generator shall let go of it when its next turn is complete. It then goes to this engine."""
        self._changed = self._changed or rollout not in self._held
        self._held[rollout] = destination

    def keep(self, rollout: str) -> None:
        """The rollout's generator shall keep it after all."""
        if self._held.pop(rollout, None) is not None:
            self._changed = True

    def destination(self, rollout: str) -> str | None:
        """The engine that a held rollout goes to; empty when none is decided, None for a rollout that is not held."""
        return self._held.get(rollout)

    def free(self, rollout: str, tokens: int) -> None:
        """The rollout's generator shall free its KV cache, while its tools run and it has this many tokens."""
        self._freed[rollout] = tokens
        self._changed = True

    def answered(self, rollout: str) -> bool:
        """The rollout's tools have answered. Returns whether its KV cache was to be freed meanwhile."""
        freed = self._freed.pop(rollout, None) is not None
        self._changed = self._changed or freed
        return freed

    def bound_for(self, engine: str) -> list[Place]:
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
        """What the generators are to be told, if that has changed."""
        if not self._changed:
            return []
        self._changed = False
        held = {rollout: self._places[rollout].request.move for rollout in self._held}
        unwanted = Unwanted(tuple(sorted(self._unwanted)), dict(self._moved), held, dict(self._freed))
        if unwanted == self._announced:
            return []
        self._announced = unwanted
        return [unwanted]

    def _forgive(self, group: str) -> None:
        if group in self._unwanted:
            self._unwanted.discard(group)
            self._changed = True
