"""Parts of the contract of networks: messages, a handler that stores messages, networks, faults, nodes to kill."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import trio
import zmq

from transport import CurveKeys, Delivery, Handler, Limits, LinkEvent, Network, Node, Port, Registry, ZmqNetwork
from transport.memory import MemoryNetwork
from transport.plans import Buffer

PATIENCE = 20.0
"""Seconds after which a wait inside a test has failed."""


@dataclass(frozen=True, slots=True)
class Item:
    """A numbered message."""

    number: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """A request; Item answers it."""

    number: int


@dataclass(frozen=True, slots=True)
class Unheard:
    """A message type that no receiver knows."""

    number: int


@dataclass(frozen=True, slots=True)
class Block:
    """A message with an array [n, m], float32."""

    values: np.ndarray[tuple[int, int], np.dtype[np.float32]]


REGISTRY = Registry(Item, Question, Block)


class Recorder:
    """A handler that stores deliveries and answers calls. It waits while ``gate`` is closed."""

    def __init__(self, *, answers: Callable[[Delivery], Awaitable[object]] | None = None, closed: bool = False) -> None:
        self.deliveries: list[Delivery] = []
        self.started = 0
        self.running = 0
        self.most_running = 0
        self.gate = trio.Event()
        if not closed:
            self.gate.set()
        self._answers = answers
        self._changed = trio.lowlevel.ParkingLot()

    async def __call__(self, delivery: Delivery) -> object:
        """Handle one message."""
        self.started += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        self._changed.unpark_all()
        try:
            await self.gate.wait()
            self.deliveries.append(delivery)
            self._changed.unpark_all()
            if self._answers is not None:
                return await self._answers(delivery)
            return Item(delivery.message.number) if delivery.kind == "call" else None
        finally:
            self.running -= 1
            self._changed.unpark_all()

    @property
    def numbers(self) -> list[int]:
        """The numbers of the messages, in order of handling."""
        return [delivery.message.number for delivery in self.deliveries]

    async def until(self, condition: Callable[[Recorder], bool]) -> None:
        """Wait until ``condition`` holds."""
        with trio.fail_after(PATIENCE):
            while not condition(self):
                await self._changed.park()

    async def count(self, count: int) -> None:
        """Wait until so many messages were handled."""
        await self.until(lambda recorder: len(recorder.deliveries) >= count)


class FaultyNetwork:
    """Adds faults to a network: ``copies`` returns for each frame how often it is delivered (0 loses, 2 doubles it).

    ``copies`` gets the names of the sending and the receiving node, and the frames.
    """

    def __init__(self, network: Network, copies: Callable[[str, str, Sequence[Buffer]], int]) -> None:
        self._network = network
        self._copies = copies

    def attach(self, name: str, incarnation: int, limits: Limits) -> Port:
        """The port of a node."""
        port: Any = self._network.attach(name, incarnation, limits)
        port.send = self._faulty(name, port.send, str)
        port.send_back = self._faulty(name, port.send_back, lambda identity: identity.decode().partition("#")[0])
        return port

    def _faulty(self, name: str, send: Callable[[Any, Any], None], peer: Callable[[Any], str]) -> Callable[..., None]:
        def faulty(whom: Any, frames: Sequence[Buffer]) -> None:
            for _ in range(self._copies(name, peer(whom), frames)):
                send(whom, frames)

        return faulty


class Running:
    """A running node and its events; `stop` kills it."""

    def __init__(self) -> None:
        self.node: Node
        self.events: list[LinkEvent] = []
        self.scope = trio.CancelScope()
        self.ended = trio.Event()
        self._news = trio.lowlevel.ParkingLot()

    def heard(self, event: LinkEvent) -> None:
        """Store an event."""
        self.events.append(event)
        self._news.unpark_all()

    def reported(self, kind: type) -> list[Any]:
        """The events of one type."""
        return [event for event in self.events if isinstance(event, kind)]

    async def told(self, kind: type, count: int = 1) -> list[Any]:
        """The events of one type, once there are so many."""
        while len(found := self.reported(kind)) < count:
            await self._news.park()
        return found

    async def stop(self) -> None:
        """End the process this stands for."""
        self.scope.cancel()
        await self.ended.wait()


class World:
    """Nodes of one network, each of which can be stopped and started again."""

    def __init__(self, network: Network, limits: Limits, nursery: trio.Nursery) -> None:
        self.network = network
        self.limits = limits
        self._nursery = nursery

    async def start(
        self,
        name: str,
        handler: Handler | None = None,
        *,
        incarnation: int = 0,
        registry: Registry = REGISTRY,
        **options: Any,
    ) -> Running:
        """Start a node with these options of ``Node.run``; without a handler it ignores all messages."""
        running = Running()
        running.node = Node(
            name, self.network, registry, incarnation=incarnation, limits=self.limits, on_event=running.heard
        )

        async def run(*, task_status: trio.TaskStatus[None]) -> None:
            with running.scope:
                await running.node.run(handler or Recorder(), task_status=task_status, **options)
            running.ended.set()

        await self._nursery.start(run)
        return running


@asynccontextmanager
async def _open_world(network: Network, limits: Limits, seconds: float) -> AsyncIterator[World]:
    with trio.fail_after(seconds):
        async with trio.open_nursery() as nursery:
            yield World(network, limits, nursery)
            nursery.cancel_scope.cancel()


class ContractBase:
    """A network's tests define the network."""

    limits = Limits()

    def network(self, names: Iterable[str]) -> Network:
        """A fresh network for nodes of these names."""
        raise NotImplementedError

    def world(
        self,
        *names: str,
        copies: Callable[[str, str, Sequence[Buffer]], int] | None = None,
        seconds: float = 3 * PATIENCE,
    ) -> AbstractAsyncContextManager[World]:
        """A world for nodes of these names, for ``seconds`` at most. All nodes are stopped at its end."""
        network = self.network(names)
        return _open_world(network if copies is None else FaultyNetwork(network, copies), self.limits, seconds)

    @asynccontextmanager
    async def pair(
        self,
        *,
        copies: Callable[[str, str, Sequence[Buffer]], int] | None = None,
        answers: Callable[[Delivery], Awaitable[object]] | None = None,
        closed: bool = False,
        **options: Any,
    ) -> AsyncIterator[tuple[Running, Running, Recorder, World]]:
        """The nodes a and b, what b records, and their world."""
        async with self.world("a", "b", copies=copies) as world:
            recorder = Recorder(answers=answers, closed=closed)
            yield await world.start("a"), await world.start("b", recorder, **options), recorder, world

    async def heartbeats(self, count: float) -> None:
        """Let so many heartbeat intervals pass."""
        await trio.sleep(count * self.limits.heartbeat_interval)


class InMemory(ContractBase):
    """Nodes of this process, in virtual time."""

    def __init__(self) -> None:
        self.memory = MemoryNetwork()

    def network(self, _names: Iterable[str]) -> Network:
        """The same for all."""
        return self.memory


def free_port() -> int:
    """A port of loopback at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


class Zmq(ContractBase):
    """Nodes a, b and c of this process, over sockets in a folder; or over TCP, with a key."""

    limits = Limits(heartbeat_interval=0.05, silent_after=60.0, linger=0.2)

    def __init__(self, folder: Path | None = None, **options: Any) -> None:
        self.keys = None if folder else CurveKeys.generate()
        self.addresses = {
            name: f"ipc://{folder}/{name}" if folder else f"tcp://127.0.0.1:{free_port()}" for name in "abc"
        }
        self._options = options

    def network(self, _names: Iterable[str]) -> Network:
        """One with the options of `ZmqNetwork`."""
        return ZmqNetwork(self.addresses, curve=self.keys, **self._options)


def client(context: zmq.Context[Any], server: CurveKeys, own: CurveKeys, identity: bytes) -> zmq.Socket[Any]:
    """A socket that is not connected yet, for a node with keys."""
    made = context.socket(zmq.DEALER)
    made.linger, made.sndhwm, made.routing_id = 0, 0, identity
    made.curve_publickey, made.curve_secretkey = own.public.encode(), own.secret.encode()
    made.curve_serverkey = server.public.encode()
    return made


async def raises(kind: type[Any], call: Callable[..., Any], *arguments: Any) -> Any:
    """Await ``call`` and return the error of type ``kind`` that it must raise."""
    try:
        await call(*arguments)
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


class Cut:
    """For FaultyNetwork: loses every frame while ``closed``."""

    closed = False

    def __call__(self, _source: str, _destination: str, _frames: Sequence[Buffer]) -> int:
        """How often to deliver this frame."""
        return int(not self.closed)


def appending(numbers: list[int], number: int) -> Callable[[], None]:
    """An ``on_ack`` that appends ``number`` to ``numbers``."""
    return lambda: numbers.append(number)
