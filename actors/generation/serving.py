"""Which policy an engine serves: the newest, fetched or found, and taken up between two of its steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import trio

from actors.base import ActorContext, ask
from actors.engines.base import Engine, EngineError, EngineRefusedError
from actors.weights import transfer
from actors.weights.fetch import LINK, FetchedWeights, FetchError, host_directory
from actors.weights.transfer import TransferError, is_transfer
from agent_rl.config.addresses import run_digest
from agent_rl.files.leftovers import Claim
from agent_rl.messages import PolicyPublished, TransferOffer, TransferWanted, WeightsPart, WeightsWanted
from transport import CallFailed, CallTimeout, PeerLost

PART_SECONDS = 60.0
"""How long one part of a fetched file may take; it is asked for again after that."""
OFFER_SECONDS = 10.0
"""How long the learner may take to say where weights are sent: it waits there for half a minute from then on."""
FIRST_ATTEMPTS = 3
"""So many transfers may fail before a run's first policy is served; then this way is no way here."""
AGAIN_SECONDS = 2.0
"""How long after weights could not be fetched they are asked for again, unless a newer policy is published before."""
REPLACED_SECONDS = 30.0
"""How long the engine's refusal of weights may stand until a newer policy is published; then the generator fails of it."""


class ServedPolicy:
    """Keeps the engine at the newest policy; rollouts in flight go on over each change.

    Weights come by the way that is published: from a file under the published name, on a disk (or in the shared memory) that
    learner and generator share; that file over the link ``weights``, where the topology leads it to the learner; or sent into
    the engine, once the learner was asked over the link ``transfer``.
    """

    def __init__(self, context: ActorContext, engine: Engine, log: Any) -> None:
        self._context = context
        self._engine = engine
        self._log = log
        self._newest: PolicyPublished | None = None
        self._newer = trio.Event()
        self._lost = 0
        """Transfers that did not come to their end."""
        self._claim: Claim | None = None
        self._fetched = self._over_links() if LINK in context.links else None
        self.ready = trio.Event()
        """Set once a published policy is served."""
        self.waiting_for = "learner: a policy"
        """Whom for what, while there is a policy that is not served yet; else empty."""

    def _over_links(self) -> FetchedWeights:
        topology = self._context.topology
        directory, self._claim = host_directory("fetched", run_digest(topology))

        async def part(wanted: WeightsWanted) -> WeightsPart:
            found: WeightsPart = await ask(self._context.link(LINK), wanted, timeout=PART_SECONDS, log=self._log)
            return found

        return FetchedWeights(directory, part, self._context.in_thread)

    def published(self, policy: PolicyPublished) -> None:
        """A policy is published; the newest is taken up, others may be left out."""
        self._newest = policy
        self._newer.set()

    async def run(self, changed: Callable[[], None]) -> None:
        """Take up what is published, for ever; ``changed`` is called after each. Raises EngineError, EngineRefusedError, DiskError."""
        while True:
            await self._newer.wait()
            self._newer = trio.Event()
            published = self._newest
            assert published is not None
            if published.policy != self._engine.policy and not await self._take_up(published):
                self._newer.set()
                continue
            self.waiting_for = ""
            self.ready.set()
            changed()

    async def _take_up(self, published: PolicyPublished) -> bool:
        """Whether the engine serves the policy now; if not, it is time to look for the newest again."""
        self.waiting_for = f"learner: the weights of version {published.policy.version}"
        again, fatal = AGAIN_SECONDS, False
        try:
            await self._engine.load_weights(await self._source(published), published.policy)
        except (FetchError, TransferError, CallFailed, CallTimeout, PeerLost) as error:
            fault: Exception = error
        except EngineError as error:
            fault, again, fatal = error, REPLACED_SECONDS, True
        else:
            fetched = {} if self._fetched is None else {"fetched_bytes": self._fetched.fetched_bytes}
            self._log.info("policy taken up", version=published.policy.version, epoch=published.policy.epoch, **fetched)
            return True
        if isinstance(fault, TransferError):
            self._lost += 1
            if self._lost >= FIRST_ATTEMPTS and self._context.first and not self.ready.is_set():
                raise EngineRefusedError(
                    f"no weights come to the engine, after {self._lost} attempts: {fault}; look at GPUs, ports and network "
                    "interfaces between learner and generator, or choose another way for the learner's weights_in"
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
                raise FetchError(f"the learner offers version {published.policy.version} no more")
            return offer
        if self._fetched is not None and published.size:
            return await self._fetched.fetch(published)
        return Path(url2pathname(urlsplit(published.uri).path))
