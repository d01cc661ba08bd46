"""Tests of one actor: the real class on an in-memory network, with stand-ins for its peers.

Everything runs on trio's clock, so under ``MockClock`` hours pass in milliseconds::

    async with stand_ins(topology, "roc_filter") as stage, running(RoCFilter, topology, "roc_filter", directory, stage):
        await stage["kv_scheduler"].push("groups", "roc_filter.0").send(group)
        message = await stage["learner"].receive()
"""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import trio
from trio.testing import MockClock

from actors.base import Actor, ActorContext
from actors.runtime.links import make_links
from actors.runtime.process import serve
from agent_rl import messages
from agent_rl.config.addresses import actor_nodes
from agent_rl.config.topology import Topology
from agent_rl.messages import ActorStatus
from agent_rl.records.journal import Journal, open_journal
from transport import AnnounceLink, CallLink, Delivery, Limits, LinkEvent, Network, Node, PeerLost, PushLink, Registry
from transport.errors import log_event
from transport.memory import MemoryNetwork

SUPERVISOR = "supervisor.local"
RECEIVE_SECONDS = 60.0
"""How long a stand-in waits for a message before a test fails, by trio's clock."""


class Peer:
    """A stand-in for another actor. Stores all messages, and answers calls with ``reply``.

    ``reply`` is called with each message and may be asynchronous. A push is acknowledged when it has returned.
    """

    def __init__(
        self, name: str, network: Network, registry: Registry, incarnation: int, limits: Limits | None = None
    ) -> None:
        self.name = name
        self.node = Node(name, network, registry, incarnation=incarnation, limits=limits)
        self.reply: Callable[[Any], Any] = lambda _: None
        self.concurrency = 1
        self._put, self._received = trio.open_memory_channel[Any](math.inf)
        self.log: list[Any] = []
        self._links: dict[str, PushLink | CallLink | AnnounceLink] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        await self.node.run(self._handle, concurrency=self.concurrency, task_status=task_status)

    async def _handle(self, delivery: Delivery) -> Any:
        self.log.append(delivery.message)
        self._put.send_nowait(delivery.message)
        answer = self.reply(delivery.message)
        if hasattr(answer, "__await__"):
            answer = await answer
        return answer if delivery.kind == "call" else None

    async def receive(self, kind: type | None = None) -> Any:
        """The next message, or the next of a kind. Others are skipped (all are in ``log``).

        Raises AssertionError when none comes within ``RECEIVE_SECONDS``.
        """
        with trio.move_on_after(RECEIVE_SECONDS):
            return await self.next(kind)
        wanted = "message" if kind is None else kind.__name__
        raise AssertionError(f"{self.name} got no {wanted} within {RECEIVE_SECONDS:g} s")

    async def next(self, kind: type | None = None) -> Any:
        """As `receive`, without a deadline."""
        while True:
            message = await self._received.receive()
            if kind is None or isinstance(message, kind):
                return message

    def forget(self) -> None:
        """Drop all stored messages: a benchmark whose heap grows measures the garbage collector."""
        self.log.clear()
        while self._received.statistics().current_buffer_used:
            self._received.receive_nowait()

    def push(self, link: str, to: str, *, window: int = 64) -> PushLink:
        """A push link of this stand-in. Each link is made once."""
        if link not in self._links:
            self._links[link] = self.node.push(link, [to], window=window)
        return self._links[link]  # type: ignore[return-value]

    def call(self, link: str, to: str, *, timeout: float = 30.0) -> CallLink:
        """A call link of this stand-in. Each link is made once."""
        if link not in self._links:
            self._links[link] = self.node.call(link, [to], outstanding=64, timeout=timeout)
        return self._links[link]  # type: ignore[return-value]

    def announce(self, link: str, to: str) -> AnnounceLink:
        """An announce link of this stand-in. Each link is made once."""
        if link not in self._links:
            self._links[link] = self.node.announce(link, [to])
        return self._links[link]  # type: ignore[return-value]


@dataclass
class Stage:
    """A network with stand-ins, by role or ``role.replica``, for all actors but those under test."""

    network: Network
    registry: Registry
    peers: dict[str, Peer]

    def __getitem__(self, role: str) -> Peer:
        return self.peers[role if role in self.peers else f"{role}.0"]

    async def started(self, name: str) -> None:
        """Wait until the actor's status says that it has started. There is no deadline."""
        while True:
            status = await self["supervisor.local"].next(ActorStatus)
            if status.actor == name and status.state not in {"starting", "failed"}:
                return


@asynccontextmanager
async def stand_ins(
    topology: Topology, *roles: str, concurrency: Mapping[str, int] | None = None
) -> AsyncIterator[Stage]:
    """Stand-ins for the supervisor and for every actor of the topology except ``roles``. They outlive restarts.

    ``concurrency``: messages that a stand-in handles at once, by ``role.replica`` or role. The others handle messages
    one by one, in order.
    """
    network, registry = MemoryNetwork(), Registry.of(messages)
    names = [node for node, other in actor_nodes(topology) if other not in roles]
    peers = {name: Peer(name, network, registry, 1) for name in [*names, SUPERVISOR]}
    at_once = concurrency or {}
    async with trio.open_nursery() as nursery:
        for name, peer in peers.items():
            peer.concurrency = at_once.get(name, at_once.get(name.rsplit(".", 1)[0], 1))
            await nursery.start(peer.run)
        yield Stage(network, registry, peers)
        nursery.cancel_scope.cancel()


async def in_thread(work: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Run work in a thread; in virtual time, which would not wait for a thread, run it here."""
    if not isinstance(trio.lowlevel.current_clock(), MockClock):
        return await trio.to_thread.run_sync(work, *arguments, **options)
    await trio.lowlevel.checkpoint()
    return work(*arguments)


@asynccontextmanager
async def running(
    cls: type[Actor],
    topology: Topology,
    role: str,
    directory: Path,
    stage: Stage,
    *,
    replica: int = 0,
    incarnation: int = 1,
    kill: bool = False,
    limits: Limits | None = None,
    log: Any = None,
    on_event: Callable[[LinkEvent], None] = log_event,
    in_thread: Callable[..., Awaitable[Any]] = in_thread,
    on_start: Callable[[], None] = lambda: None,
) -> AsyncIterator[Actor]:
    """Run ``cls`` as a replica of the topology's ``role`` among the stand-ins.

    When the context ends, the actor is stopped as at the end of a run, or with ``kill`` as by SIGKILL. A restart needs
    a greater incarnation. ``in_thread`` does the actor's work for threads, by default in trio's thread where the clock
    is a ``MockClock``. ``log`` is a structlog logger; ``on_event`` gets what happens to peers. ``on_start`` is called
    when the actor has started.
    """
    name = f"{role}.{replica}"
    node = Node(name, stage.network, stage.registry, incarnation=incarnation, limits=limits, on_event=on_event)
    settings = cls.Settings.model_validate(topology.actors[role].settings)
    stopping = trio.Event()
    journals: list[Journal] = []

    def keep_open() -> Journal:
        journals.append(open_journal(directory))
        return journals[-1]

    try:
        async with trio.open_nursery() as nursery:
            context = ActorContext(
                name=name,
                role=role,
                replica=replica,
                incarnation=incarnation,
                topology=topology,
                settings=settings,
                directory=directory,
                base=directory,
                node=node,
                nursery=nursery,
                rng=random.Random(0),
                log=structlog.get_logger(actor=name) if log is None else log,
                links=make_links(node, topology, role, cls, settings),
                open_journal=keep_open,
                started_at=0.0,
                wall=trio.current_time,
                in_thread=in_thread,
            )
            status = node.announce("status", [SUPERVISOR])
            actor = cls(context)
            nursery.start_soon(
                partial(
                    serve, actor, node=node, status_link=status, stopping=stopping, nursery=nursery, on_start=on_start
                )
            )
            yield actor
            if kill:
                nursery.cancel_scope.cancel()
            else:
                stopping.set()
    except BaseExceptionGroup as group:
        # A call that a failing actor left unanswered (PeerLost) only follows from the actor's failure.
        failure = group.split(PeerLost)[1]
        raise failure or group from None
    finally:
        for opened in journals:  # a process that ends leaves no transaction behind
            opened.abandon()
