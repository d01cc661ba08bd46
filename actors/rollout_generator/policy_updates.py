"""Keeps an engine at the newest policy: gets published weights and has the engine load them between two steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit
from urllib.request import url2pathname

import trio

from actors.base import ActorContext, ask, passing_link
from actors.engines.base import Engine, EngineError, EngineRefusedError, SleepingEngine
from actors.weights import transfer
from actors.weights.fetch import AHEAD, LINK, SOURCE_SECONDS, FetchedWeights, FetchError, host_directory
from actors.weights.files import nothing
from actors.weights.transfer import TransferError, is_transfer
from agent_rl.config.addresses import run_digest
from agent_rl.config.placement import partners
from agent_rl.config.standard import DEVICE
from agent_rl.config.topology import Topology
from agent_rl.files.leftovers import Claim
from agent_rl.messages import DeviceTurn, PolicyPublished, TransferOffer, TransferWanted, WeightsPart, WeightsWanted
from transport import CallFailed, CallLink, CallTimeout, LinkEvent, PeerGone, PeerLeft, PeerLost, PeerReplaced

PART_SECONDS = 60.0
"""How long one part of a fetched file may take. Then the generator asks for it again."""
OFFER_SECONDS = 10.0
"""How long the learner may take to answer with an offer. It then waits there for half a minute."""
FIRST_ATTEMPTS = 3
"""Number of failed transfers of a run's first policy after which the generator gives up."""
AGAIN_SECONDS = 2.0
"""Pause before weights are fetched again after a failure. A newer policy ends the pause."""
REPLACED_SECONDS = 30.0
"""How long the generator waits for a newer policy after the engine has refused one. Then the generator fails."""


class ServedPolicy:
    """The policy that an engine serves. Rollouts in flight continue when it changes.

    Weights come in one of three ways: from a file on a disk or in shared memory that learner and generator share; from
    this file over the link ``weights``, when the topology has the link, or from a generator of another host that the
    learner names; or by a transfer into the engine, which the learner offers over the link ``transfer``.
    """

    def __init__(self, context: ActorContext, engine: Engine, log: Any) -> None:
        self._context = context
        self._engine = engine
        self._log = log
        self._newest: PolicyPublished | None = None
        self._newer = trio.Event()
        self._lost = 0
        """Number of failed transfers."""
        self._claim: Claim | None = None
        self._sources: dict[str, CallLink] = {}
        self._fetched = self._over_links() if LINK in context.links else None
        self.ready = trio.Event()
        """Set once a published policy is served."""
        self.waiting_for = context.wait(PolicyPublished, "a policy")
        """The actor and what it must do, while a policy is not served yet; else empty."""

    def _over_links(self) -> FetchedWeights:
        topology = self._context.topology
        directory, self._claim = host_directory("fetched", run_digest(topology))

        async def part(source: str, wanted: WeightsWanted) -> WeightsPart:
            found: WeightsPart
            if source:
                found = await self._link_to(source)(wanted)
            else:
                found = await ask(self._context.link(LINK), wanted, timeout=PART_SECONDS, log=self._log)
            return found

        return FetchedWeights(directory, part, self._context.in_thread)

    def _link_to(self, generator: str) -> CallLink:
        """The link to a generator that passes weights on. It stays open for the next policy."""
        link = self._sources.get(generator)
        if link is None:
            name = passing_link(LINK, generator)
            made = self._context.node.call(
                name, [generator], outstanding=AHEAD, timeout=SOURCE_SECONDS, reply=WeightsPart
            )
            link = self._sources[generator] = made
        return link

    async def part(self, wanted: WeightsWanted) -> WeightsPart:
        """A part of a policy's file for a generator of another host."""
        return nothing(wanted.offset) if self._fetched is None else await self._fetched.part(wanted)

    def published(self, policy: PolicyPublished) -> None:
        """A policy is published. Only the newest is sure to be served."""
        self._newest = policy
        self._newer.set()

    async def run(self, changed: Callable[[], None]) -> None:
        """Serve each newest policy, then call ``changed``. Raises EngineError, EngineRefusedError and DiskError."""
        while True:
            await self._newer.wait()
            self._newer = trio.Event()
            published = self._newest
            assert published is not None
            if published.policy != self._engine.policy and not await self._load(published):
                self._newer.set()
                continue
            self.waiting_for = ""
            self.ready.set()
            changed()

    async def _load(self, published: PolicyPublished) -> bool:
        """Load a policy. False: it failed, and the pause before the next attempt is over."""
        self.waiting_for = self._context.wait(PolicyPublished, f"the weights of version {published.policy.version}")
        again, fatal = AGAIN_SECONDS, False
        try:
            await self._engine.load_weights(await self._source(published), published.policy)
        except (FetchError, TransferError, CallFailed, CallTimeout, PeerLost) as error:
            fault: Exception = error
        except EngineError as error:
            fault, again, fatal = error, REPLACED_SECONDS, True
        else:
            fetched: dict[str, Any] = {}
            if (over := self._fetched) is not None:
                fetched = {"fetched_bytes": over.fetched_bytes, "passed_bytes": over.passed_bytes, "of": over.source}
            self._log.info("policy taken up", version=published.policy.version, epoch=published.policy.epoch, **fetched)
            return True
        if isinstance(fault, TransferError):
            self._lost += 1
            if self._lost >= FIRST_ATTEMPTS and self._context.first and not self.ready.is_set():
                raise EngineRefusedError(
                    f"the engine has received no weights in {self._lost} attempts: {fault}; check GPUs, ports and "
                    "network interfaces between learner and generator, or change weights_in of the learner"
                ) from fault
        self._log.warning("policy not taken up", version=published.policy.version, error=str(fault))
        with trio.move_on_after(again) as waiting:
            await self._newer.wait()
        if waiting.cancelled_caught and fatal:
            raise fault
        return False

    async def _source(self, published: PolicyPublished) -> Path | TransferOffer:
        if is_transfer(published):
            wanted = TransferWanted(published.policy, self._engine.ranks)
            offer: TransferOffer = await self._context.link(transfer.LINK)(wanted, timeout=OFFER_SECONDS)
            if not offer.port:
                raise FetchError(f"the learner no longer offers version {published.policy.version}")
            return offer
        if self._fetched is not None and published.size:
            return await self._fetched.fetch(published)
        return Path(url2pathname(urlsplit(published.uri).path))


def shares_device(context: ActorContext) -> bool:
    """Whether the actor's engine is on a device of an actor that takes turns with it."""
    return bool(partners(context.topology, context.name))


def trainer(topology: Topology, generator: str) -> str:
    """The learner that shares the generator's device in time; empty for none."""
    others = partners(topology, generator)
    return next((other for other in others if DEVICE in topology.actors[other.rpartition(".")[0]].links), "")


def sleeper(turn: DeviceTurn, sender: str, *, shares: bool) -> str:
    """For whom an engine sleeps after this turn was announced: the learner's name, or empty for an engine at work."""
    return sender if turn.training and shares else ""


def still_asleep(trains: str, event: LinkEvent) -> str:
    """For whom it sleeps after this: a learner that is lost, replaced or has left trains no more."""
    over = isinstance(event, PeerGone | PeerLeft | PeerReplaced) and event.peer == trains
    return "" if over else trains


class EngineTurns:
    """Has an engine sleep and wake, one after the other, as the newest turn says."""

    def __init__(self, context: ActorContext, engine: Engine, log: Any) -> None:
        self._context = context
        self._engine = cast("SleepingEngine", engine)  # if it shares its device: `make_engine` refuses others
        self._log = log
        self._shares = shares_device(context)
        self._lock = trio.Lock()
        self._asleep = False
        self._trains = ""

    async def begin(self) -> None:
        """Sleep until the learner says that it does not train. Raises EngineError."""
        self._trains = trainer(self._context.topology, self._context.name)
        await self._settle()

    async def follow(self, turn: DeviceTurn, sender: str) -> None:
        """Return when the engine is asleep, or awake. Raises EngineError."""
        self._trains = sleeper(turn, sender, shares=self._shares)
        await self._settle()

    def peer_changed(self, event: LinkEvent) -> None:
        """Wake when the learner is lost."""
        trains = still_asleep(self._trains, event)
        if trains != self._trains:
            self._trains = trains
            self._log.warning("the engine wakes, since the learner that trained on its device is lost")
            self._context.nursery.start_soon(self._settle)

    async def _settle(self) -> None:
        async with self._lock:
            while self._asleep != bool(self._trains):
                began, sleeps = self._context.now(), bool(self._trains)
                await (self._engine.sleep() if sleeps else self._engine.wake())
                self._asleep = sleeps
                self._log.info("engine asleep" if sleeps else "engine awake", seconds=self._context.now() - began)

    @property
    def waiting_for(self) -> str:
        """The reason why the engine sleeps; empty when the engine is awake."""
        return self._context.wait(DeviceTurn, "the end of its step on their device") if self._trains else ""
