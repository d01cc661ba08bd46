"""A run in virtual time: its supervisors are real, its network is in memory, and its actors are tasks, not processes."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import pytest
import trio
from pydantic import BaseModel, ConfigDict

from actors.exits import describe_exit
from actors.runtime import following, processes, run, supervise
from actors.runtime.run import run_topology
from agent_rl import messages
from agent_rl.config.addresses import CONTROLS, supervisor_node
from agent_rl.config.load import load_topology
from agent_rl.figures import ActorFigures
from agent_rl.messages import ActorStatus, Changed, Progress, StopWanted, SwapWanted, pipes
from agent_rl.records.document import Document
from transport import CallFailed, CallRefused, Delivery, Node, PeerLost, Registry
from transport.memory import MemoryNetwork, MemoryPort
from transport.plans import Buffer

NEVER = 1e9
READS = 0.1
"""Seconds. A process reads its topology a while after it was started."""


def write_topology(path: Path, plain: str, tables: str, actors: dict[str, str]) -> None:
    """Roles with the keys of their tables, of the class ``plain`` if of no other; ``tables`` begin with keys of the run."""
    text = '[[environments]]\nclass = "maths"\nsettings.files = ["x"]\n[[stages]]\nkind = "sft"\nsteps = 1\n'
    text += f'[model]\npath = "x"\n[run]\nname = "demo"\ndirectory = "{path.parent / "run"}"\n{tables}'
    for role, table in actors.items():
        text += f"[actors.{role}]\n" + ("" if "class =" in table else f'class = "{plain}"\n') + f"{table}\n"
    path.write_text(text)


def swap(role: str, class_path: str = "", *settings: str, fresh: bool = False) -> SwapWanted:
    return SwapWanted(role, class_path, settings, fresh=fresh)


class Plain:
    class Settings(BaseModel):
        """What an actor does. ``only``: its deaths are those of this replica, and ``once`` those of the first process."""

        model_config = ConfigDict(extra="forbid")
        number: int = 0
        threads: int | None = None
        prepares: float = 0.1
        starts: float = 0.3
        again: float = 0.0
        """Seconds that a process takes longer to start that follows another."""
        lives: float = NEVER
        stops: float = 0.1
        status: int = 7
        """The exit status where it ends by itself."""
        saves: bool = True
        """Whether it can save what it has when it stops."""
        says: str = "running"
        quiet: float = NEVER
        """Seconds after which it tells its status no more."""
        only: int = -1
        once: bool = False

    receives = ()
    links: ClassVar[dict[str, Any]] = {}
    drain_seconds = 1.0


class Other(Plain):
    pass


class First(Plain):
    drain_order = 10


class Slow(Plain):
    drain_seconds = 100.0


PLAIN, OTHER = (f"{__name__}:{kind.__name__}" for kind in (Plain, Other))


class Child:
    """The process of an actor, as `actors.runtime.children.ActorChild`."""

    def __init__(self, world: World, arguments: Sequence[str], topology: str, *, beside: bool) -> None:
        given = dict(zip(arguments[::2], arguments[1::2], strict=False))
        self.actor, self.incarnation = given["--actor"], int(given["--incarnation"])
        self.pid = len(world.children) + 1
        self._topology, self.host = topology, ""
        self._first = self.actor not in [each.actor for each in world.children]
        self._world, self._beside = world, beside
        self._scope, self._over = trio.CancelScope(), trio.Event()
        self._settled, self._go, self._stop = trio.Event(), trio.Event(), trio.Event()
        self.told: list[Any] = []
        self.status = -signal.SIGKILL
        self.message = self.blocked_at = ""
        self.lacked_memory = False

    async def live(self) -> None:
        """From the start to the end."""
        with self._scope:
            self.status = await self._work()
            if self.status == 3:
                self.message = "it cannot save: make room"
        self._over.set()
        self._settled.set()

    async def _work(self) -> int:
        await trio.sleep(READS)
        topology, (role, replica) = load_topology(self._world.path, (), self._topology), self.actor.split(".")
        self.host, self._entry = topology.homes(role)[int(replica)], topology.actors[role]
        self._does = does = Plain.Settings.model_validate(self._entry.settings)
        dies = does.only in {-1, int(replica)} and (self._first or not does.once)
        if self._beside:
            await trio.sleep(does.prepares)
            self._tell("ready")
            self._settled.set()
            await self._go.wait()
        with trio.move_on_after(does.lives if dies else NEVER):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._report, nursery)
                await self._stop.wait()
                await trio.sleep(does.stops)
                self._tell("left")
                nursery.cancel_scope.cancel()
            return 0 if does.saves else 3
        return does.status

    async def _report(self, nursery: trio.Nursery) -> None:
        node = Node(self.actor, self._world.network, Registry.of(messages), incarnation=self.incarnation)
        link = node.announce("status", [supervisor_node(self.host)])
        await nursery.start(partial(node.run, ignore))
        state, starts = "starting", self._does.starts + (0 if self._first else self._does.again)
        began = trio.current_time()
        while trio.current_time() - began < self._does.quiet:
            link.set(ActorStatus(self.actor, "x", state, "for a reason", ActorFigures(), "", 0.0, 0.0))
            await trio.sleep(starts if state == "starting" else 1.0)
            if state == "starting":
                state = self._does.says
                self._tell("up")

    def _tell(self, event: str) -> None:
        kind = self._entry.class_path.rpartition(":")[2]
        self._world.events.append(f"{event} {self.actor} {kind} {self._does.number}")

    @property
    def ended(self) -> bool:
        return self._over.is_set()

    async def wait(self) -> int:
        await self._over.wait()
        return self.status

    async def prepared(self) -> bool:
        await self._settled.wait()
        return not self.ended

    def terminate(self) -> None:
        self._stop.set()

    def kill(self) -> None:
        self._scope.cancel()

    reap = kill

    def tell(self, *given: Any) -> bool:
        self.told += given
        if pipes.Go() in given:
            self._go.set()
        return True

    def last_words(self) -> list[str]:
        return ["no such device"] if self.status == 7 else []

    def ending(self, status: int) -> str:
        return describe_exit(status)

    stay_on = rotate_stderr = seen = lambda *_: None


async def ignore(delivery: Delivery) -> None:
    """Nobody sends an actor, or a command, anything; who has the name of a supervisor is greeted in vain."""
    await trio.lowlevel.checkpoint()
    if isinstance(delivery.message, messages.HostHello):
        raise CallRefused("no supervisor")


class Cable(MemoryNetwork):
    """A network in which some nodes are cut off: who is killed says no goodbye."""

    def __init__(self) -> None:
        super().__init__()
        self.cut: set[str] = set()

    def to_inbox(self, source: MemoryPort, peer: str, frames: Sequence[Buffer]) -> None:
        if source.name not in self.cut:
            super().to_inbox(source, peer, frames)

    def back(self, source: MemoryPort, identity: bytes, frames: Sequence[Buffer]) -> None:
        if source.name not in self.cut:
            super().back(source, identity, frames)


class World:
    """The folder of a run, its network, the processes that were started, and what they and their users were told."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.path = folder / "topology.toml"
        self.main = "local"
        self.network = Cable()
        self.children: list[Child] = []
        self.groups: set[int] = set()
        """The processes that the janitor would kill."""
        self.events: list[str] = []
        self.said: dict[str, list[str]] = {}
        self.codes: dict[str, int] = {}
        self.room = True
        """Whether a process can stand beside another."""
        self.refused: list[str] = []
        """What the dry run of a change says against it."""
        self._commands = 0
        self.lives: dict[str, tuple[trio.CancelScope, trio.Event]] = {}
        monkeypatch.setattr(processes, "start_child", self._start)
        monkeypatch.setattr(run, "supervisor_network", lambda *_: self.network)
        janitor = SimpleNamespace(started=self.groups.add, ended=self.groups.discard, dismiss=lambda: None)
        monkeypatch.setattr(supervise, "Janitor", lambda: janitor)
        monkeypatch.setattr(following, "faults_of", self._dry_run)
        monkeypatch.setattr(processes, "group_bytes", lambda _: 1)
        monkeypatch.setattr(processes, "available_bytes", lambda: 1 << 40 if self.room else 0)

    def write(self, *hosts: str, run: str = "", **actors: str) -> None:
        """The topology: hosts with their further keys, the main host first, and roles with the keys of their tables."""
        tables = f"{run}\n"
        for number, host in enumerate(hosts):
            name, _, more = host.partition(" ")
            tables += f"[hosts.{name}]\nbase_port = {5000 + 100 * number}\n{more}\n"
        write_topology(self.path, PLAIN, tables, actors)
        self.main = hosts[0].partition(" ")[0] if hosts else "local"

    def stored(self, role: str, host: str = "") -> tuple[str, dict[str, Any]]:
        """The class and the settings of which processes of a role would be that start now on a host."""
        entry = load_topology(self.folder / "run" / f"topology.{host or self.main}.toml").actors[role]
        return entry.class_path, entry.settings

    @property
    def document(self) -> Document:
        document = Document.read(self.folder / "run")
        assert document is not None
        return document

    def told(self, host: str = "") -> str:
        """All that the user of a host was told."""
        return "\n".join(self.said[host or self.main])

    async def _dry_run(self, *_: object) -> list[str]:
        await trio.lowlevel.checkpoint()
        return self.refused

    def _start(self, _: str, arguments: Sequence[str], *, beside: bool, topology: str, **__: object) -> Child:
        child = Child(self, arguments, topology, beside=beside)
        self.children.append(child)
        self._actors.start_soon(child.live)
        return child

    @asynccontextmanager
    async def running(
        self, *hosts: str, code: int | dict[str, int] | None = 0, wait: float = 10.0, **options: Any
    ) -> AsyncIterator[None]:
        """Supervisors of these hosts (none: one of all), that have worked for ``wait`` s; stopped, if they run still.

        All end with this ``code``; None: they are killed.
        """
        self.codes.clear()
        with trio.fail_after(1000):
            async with trio.open_nursery() as self._actors:
                async with trio.open_nursery() as self._supervisors:
                    for host in hosts or (None,):
                        self.start(host, **options)
                    await trio.sleep(wait)
                    yield
                    if code is None:
                        for host in list(self.lives):
                            await self.kill(host)
                    elif self.main not in self.codes:
                        await self.ask(StopWanted())
                self._actors.cancel_scope.cancel()
        assert not self.groups, "another program may get the number of a process that has ended"
        assert self.codes == (code if isinstance(code, dict) else dict.fromkeys(self.codes, code or 0))

    def start(self, host: str | None = None, overrides: Sequence[str] = (), **options: Any) -> None:
        """Start the supervisor of a host."""
        scope, ended, name = trio.CancelScope(), trio.Event(), host or self.main
        self.lives[name] = scope, ended
        self.said[name] = []
        display = partial(_Display, self.said[name])

        async def supervisor() -> None:
            with scope:
                topology = load_topology(self.path, overrides)
                self.codes[name] = await run_topology(topology, self.path, host=host, display_class=display, **options)
            ended.set()

        self._supervisors.start_soon(supervisor)

    async def kill(self, host: str) -> None:
        """Kill the supervisor of a host, and its actors, or take the power from them."""
        scope, ended = self.lives.pop(host)
        self.network.cut = {supervisor_node(host), *(child.actor for child in self.children if child.host == host)}
        scope.cancel()
        await ended.wait()
        await trio.sleep(0.01)
        self.network.cut.clear()

    async def ended(self, host: str) -> None:
        """The supervisor of a host has ended."""
        await self.lives[host][1].wait()

    async def ask(
        self, wanted: object, host: str = "", sender: str = CONTROLS[0], waits: Callable[[str], object] = str
    ) -> Changed:
        """The answer to a command, which goes to the main host if to no other. Raises CallFailed and PeerLost.

        ``waits`` is told what it waits for.
        """
        self._commands += 1
        node = Node(sender, self.network, Registry.of(messages), incarnation=self._commands)
        link = node.call("change", [supervisor_node(host or self.main)], outstanding=1, timeout=900.0, reply=Changed)
        answers: list[Changed] = []
        refusal: CallFailed | PeerLost | None = None
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(node.run, ignore))
            try:
                answers.append(await link(wanted))
                while answers[-1].number:
                    waits(answers[-1].waits)
                    answers.append(await link(Progress(answers[-1].number)))
            except (CallFailed, PeerLost) as error:
                refusal = error
            nursery.cancel_scope.cancel()
        if refusal is not None:
            raise refusal
        return answers[-1]


class _Display:
    def __init__(self, said: list[str], *_: Any) -> None:
        self._said = said

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is shown."""

    def notice(self, text: str) -> None:
        self._said.append(text)

    def refresh(self, now: float) -> None:
        """Nothing is shown."""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)
