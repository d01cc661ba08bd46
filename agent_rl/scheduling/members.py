"""Who is here: the engines that rollouts can be placed on, and what becomes of an engine that falls silent or leaves.

::

    report (EngineLoad) --> here --(silent)--> no new rollouts --(heard)--> here
                             |--(draining)--> no new rollouts, no part in the staleness budget
                             |--(report or replaced, with a higher incarnation)--> a new process: its rollouts move
                             `--(gone: lost, or left)--> unknown until it reports again: its rollouts move

Pure. An engine that is gone counts in no decision. The transport discards the announcements that a gone process made,
so a report means that the engine is here. The scheduling policy hears of the engines that may get rollouts, and of what
changes there. Sums over all engines are kept up to date engine by engine, so an event costs the same however many
engines there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

from agent_rl.messages import EngineLoad, PolicyVersion
from agent_rl.scheduling.policies.base import EngineFacts
from agent_rl.scheduling.policies.guard import Guarded


@dataclass(slots=True)
class Engine:
    """The scheduler's knowledge of an engine: its newest load, and what its rollouts are promised."""

    load: EngineLoad
    rollouts: int = 0
    promised: float = 0.0
    """The KV tokens that its rollouts are promised, all together."""
    serves: int | None = None
    """The version that the engine counts with in the staleness budget; None when it does not count."""
    offered: bool = False
    """Whether the policy may place rollouts here."""
    facts: EngineFacts | None = None
    """What the policy was told last."""
    free: tuple[float, int] = (0.0, 0)
    """The KV tokens that are neither promised nor in use, and the rollouts that may join; (0, 0) if not offered."""


class Members:
    """The engines, by the name of their generator.

    Events return whether a process of an engine is gone, which has lost its rollouts.
    """

    def __init__(self, policy: Guarded, now: Callable[[], float]) -> None:
        """``policy`` is told of engines, at the time ``now()``."""
        self._policy = policy
        self._now = now
        self._oldest = PolicyVersion(0, 0)
        self._engines: dict[str, Engine] = {}
        self._incarnations: dict[str, int] = {}
        self._silent: set[str] = set()
        self._draining: set[str] = set()
        self._gone: set[str] = set()
        self._served: Counter[int] = Counter()
        """How many engines serve each version, among those that the staleness budget counts."""
        self._offered = 0
        self._free_tokens, self._free_rollouts = 0.0, 0

    # Events

    def report(self, load: EngineLoad) -> bool:
        """An engine reports its load. An unknown engine joins, and one that was gone is here again."""
        lost = self.replaced(load.generator, load.incarnation)
        if load.incarnation == self._incarnations[load.generator]:
            self._gone.discard(load.generator)
            engine = self._engines.setdefault(load.generator, Engine(load))
            engine.load = load
            self._look(engine)
        return lost

    def replaced(self, generator: str, incarnation: int) -> bool:
        """The generator has this process, or had it: a newer one has none of the rollouts of its predecessor."""
        if incarnation <= self._incarnations.get(generator, -1):
            return False
        self._incarnations[generator] = incarnation
        return self._remove(generator)

    def gone(self, generator: str) -> bool:
        """The generator is lost, or has left."""
        if generator in self._engines:
            self._gone.add(generator)
        return self._remove(generator)

    def silent(self, generator: str) -> None:
        """Nothing is heard of the generator. It may only be slow."""
        self._silent.add(generator)
        self._look_at(generator)

    def heard(self, generator: str) -> None:
        """The generator is heard again."""
        self._silent.discard(generator)
        self._look_at(generator)

    def draining(self, generator: str) -> None:
        """The generator is about to leave. It finishes rollouts meanwhile."""
        self._draining.add(generator)
        self._look_at(generator)

    def require(self, oldest: PolicyVersion) -> None:
        """Only engines that serve this policy, or a newer one of its epoch, may get rollouts from now on.

        The staleness budget counts these engines alone. One that returns with an older policy counts once it has
        caught up.
        """
        if oldest != self._oldest:
            self._oldest = oldest
            for engine in self._engines.values():
                self._look(engine)

    def take(self, generator: str, need: float) -> float:
        """The engine gets a rollout. Returns the KV tokens that it is promised: its need, at most the whole cache."""
        engine = self._engines[generator]
        promised = min(need, engine.load.kv_tokens_total)
        engine.rollouts += 1
        engine.promised += promised
        self._count(engine)
        return promised

    def free(self, generator: str, promised: float) -> None:
        """The engine has a rollout no more."""
        engine = self._engines[generator]
        engine.rollouts -= 1
        engine.promised -= promised
        self._count(engine)

    def _remove(self, generator: str) -> bool:
        self._silent.discard(generator)
        self._draining.discard(generator)
        engine = self._engines.pop(generator, None)
        if engine is None:
            return False
        self._serve(engine, None)
        self._offer(engine, offered=False)
        if engine.facts is not None:
            self._policy.engine_gone(generator, self._now())
        return True

    # Questions

    def __contains__(self, generator: str) -> bool:
        return generator in self._engines

    def news(self, load: EngineLoad) -> bool:
        """Whether a load says anything that the last one of its engine did not."""
        engine = self._engines.get(load.generator)
        return engine is None or engine.load.news != load.news

    def here(self) -> Collection[Engine]:
        """All engines, also those that are silent or about to leave."""
        return self._engines.values()

    @property
    def served(self) -> int | None:
        """The oldest version that an engine serves, of those that the staleness budget counts; None without any."""
        return min(self._served, default=None)

    def room_beyond(self, tokens: float, rollouts: int) -> bool:
        """Whether the engines have room for more than this."""
        return self._free_tokens > tokens and self._free_rollouts > rollouts

    @property
    def any_offered(self) -> bool:
        """Whether any engine may get rollouts."""
        return self._offered > 0

    @property
    def absent(self) -> str:
        """Who is missing when nobody who stays is here, in words; empty when somebody is."""
        if self._engines.keys() - self._draining:
            return ""
        leaving = [f"{name} is about to leave" for name in sorted(self._engines)]
        return ", ".join([*(f"{name} is gone" for name in sorted(self._gone)), *leaving]) or "none has reported yet"

    # Helpers

    def _look_at(self, generator: str) -> None:
        if generator in self._engines:
            self._look(self._engines[generator])

    def _look(self, engine: Engine) -> None:
        """Something has changed of the engine, or of what is required of engines."""
        load, generator = engine.load, engine.load.generator
        current = load.policy.epoch == self._oldest.epoch and load.policy >= self._oldest
        counts = current and generator not in self._draining
        self._serve(engine, load.policy.version if counts else None)
        self._offer(engine, offered=counts and generator not in self._silent)

    def _serve(self, engine: Engine, version: int | None) -> None:
        if engine.serves == version:
            return
        if engine.serves is not None:
            self._served[engine.serves] -= 1
            if not self._served[engine.serves]:
                del self._served[engine.serves]
        if version is not None:
            self._served[version] += 1
        engine.serves = version

    def _offer(self, engine: Engine, *, offered: bool) -> None:
        """Tell the policy what it needs to know of the engine."""
        load, before, was_offered = engine.load, engine.facts, engine.offered
        engine.offered = offered
        self._offered += offered - was_offered
        self._count(engine)
        if not (offered or was_offered or before is None):
            return
        facts = before
        if offered or facts is None:  # one that joins may run rollouts of a former scheduler
            facts = engine.facts = EngineFacts(
                load.generator,
                load.kv_tokens_total,
                load.kv_tokens_used,
                load.running,
                load.waiting,
                load.max_rollouts,
                load.policy.version,
                load.generated_tokens,
            )
        if facts != before or not was_offered:
            self._policy.engine_reported(facts, self._now())
        if not offered:
            self._policy.engine_draining(load.generator, self._now())

    def _count(self, engine: Engine) -> None:
        """Bring the sums of free room up to date."""
        tokens, rollouts = 0.0, 0
        if engine.offered:
            tokens = max(0.0, engine.load.kv_tokens_total - max(engine.promised, engine.load.kv_tokens_used))
            rollouts = max(0, engine.load.max_rollouts - engine.rollouts)
        self._free_tokens += tokens - engine.free[0]
        self._free_rollouts += rollouts - engine.free[1]
        engine.free = tokens, rollouts
