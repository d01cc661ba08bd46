"""An engine's sleep while the learner trains on its device (``share = "time"``).

::

    DeviceTurn(training) --> asleep --> the announcement is handled: the learner may train
    DeviceTurn(not training), or the learner is lost --> awake

A generator begins asleep: where it was started again, or joins, the learner may be training.
"""

from __future__ import annotations

from typing import Any, cast

import trio

from actors.base import ActorContext
from actors.engines.base import Engine, SleepingEngine
from agent_rl.config.placement import partners
from agent_rl.config.standard import DEVICE
from agent_rl.config.topology import Topology
from agent_rl.messages import DeviceTurn
from transport import LinkEvent, PeerGone, PeerLeft, PeerReplaced


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
