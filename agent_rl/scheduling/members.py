"""Who is here: the engines that rollouts can be placed on, and what becomes of an engine that falls silent or leaves.

::

    report (EngineLoad) --> here --(silent)--> no new rollouts --(heard)--> here
                             |--(draining)--> no new rollouts, no part in the staleness budget
                             |--(report or replaced, with a higher incarnation)--> a new process: its rollouts move
                             `--(gone: lost, or left)--> unknown until it reports again: its rollouts move

Pure. An engine that is gone counts in no decision. The transport discards the announcements that a gone process made,
so a report means that the engine is here.
"""

from __future__ import annotations

from collections.abc import Iterable

from agent_rl.messages import EngineLoad, Policy
from agent_rl.scheduling.placement import Engine


class Members:
    """The engines, by the name of their generator. Events return the rollouts that it has lost, oldest first."""

    def __init__(self) -> None:
        self._engines: dict[str, Engine] = {}
        self._incarnations: dict[str, int] = {}
        self._silent: set[str] = set()
        self._draining: set[str] = set()
        self._gone: set[str] = set()

    # Events

    def report(self, load: EngineLoad) -> tuple[str, ...]:
        """An engine reports its load. An unknown engine joins, and one that was gone is here again."""
        lost = self.replaced(load.generator, load.incarnation)
        if load.incarnation == self._incarnations[load.generator]:
            self._gone.discard(load.generator)
            self._engines.setdefault(load.generator, Engine(load)).report(load)
        return lost

    def replaced(self, generator: str, incarnation: int) -> tuple[str, ...]:
        """The generator has this process, or had it: a newer one has none of the rollouts of its predecessor."""
        if incarnation <= self._incarnations.get(generator, -1):
            return ()
        self._incarnations[generator] = incarnation
        return self._remove(generator)

    def gone(self, generator: str) -> tuple[str, ...]:
        """The generator is lost, or has left."""
        if generator in self._engines:
            self._gone.add(generator)
        return self._remove(generator)

    def silent(self, generator: str) -> None:
        """Nothing is heard of the generator. It may only be slow."""
        self._silent.add(generator)

    def heard(self, generator: str) -> None:
        """The generator is heard again."""
        self._silent.discard(generator)

    def draining(self, generator: str) -> None:
        """The generator is about to leave. It finishes rollouts meanwhile."""
        self._draining.add(generator)

    def _remove(self, generator: str) -> tuple[str, ...]:
        self._silent.discard(generator)
        self._draining.discard(generator)
        engine = self._engines.pop(generator, None)
        return () if engine is None else tuple(engine.rollouts)

    def free(self, generator: str, rollout: str) -> None:
        """A rollout of the engine has ended."""
        self._engines[generator].free(rollout)

    # Questions

    def __getitem__(self, generator: str) -> Engine:
        return self._engines[generator]

    def here(self) -> Iterable[Engine]:
        """All engines, also those that are silent or about to leave."""
        return self._engines.values()

    def serving(self, oldest: Policy) -> list[Engine]:
        """The engines that serve ``oldest`` or a newer policy of its epoch, and stay. The staleness budget counts them.

        An engine that returns with an older policy counts from the time on that it has caught up.
        """
        return [
            engine
            for generator, engine in self._engines.items()
            if engine.load.policy.epoch == oldest.epoch
            and engine.load.policy >= oldest
            and generator not in self._draining
        ]

    def open(self, oldest: Policy) -> list[Engine]:
        """Those of `serving` that may get rollouts."""
        return [engine for engine in self.serving(oldest) if engine.load.generator not in self._silent]

    @property
    def absent(self) -> str:
        """Who is missing when nobody who stays is here, in words; empty when somebody is."""
        if self._engines.keys() - self._draining:
            return ""
        leaving = [f"{name} is about to leave" for name in sorted(self._engines)]
        return ", ".join([*(f"{name} is gone" for name in sorted(self._gone)), *leaving]) or "none has reported yet"
