"""The hosts of a run that is measured (this machine, namespaces, machines over ssh), and what their links carry."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from actors.cluster.places import is_here
from agent_rl.config.topology import Topology
from benchmarks.command import WrongOptions
from benchmarks.machines import Machine, machines, unavailable
from benchmarks.runs import Run, RunFailed, command_of, started
from transport import CurveKeys

PROBE_SECONDS = 1.0
"""How long each host sends, to see what it can send."""
PROBE_DEADLINE = 30.0
BLOCK = bytes(1 << 16)
COUNTERS = ("cat", "/proc/net/dev", "/proc/stat")
SWITCH = "switch"
RECEIVE = """
import socket, sys, time
with socket.create_server((sys.argv[1], 0)) as server:
    print(server.getsockname()[1], flush=True)
    sender, _ = server.accept()
    began, size = time.monotonic(), 0
    while data := sender.recv(1 << 20):
        size += len(data)
    print(size / (time.monotonic() - began))
"""
SEND = """
import socket, sys, time
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as there:
    until = time.monotonic() + float(sys.argv[3])
    while time.monotonic() < until:
        there.sendall(bytes(1 << 16))
"""


@dataclass(frozen=True)
class Counters:
    """What a host counted up to a moment: bytes at its network interfaces (loopback left out), ticks of its cores."""

    sent: int
    received: int
    busy_ticks: int
    all_ticks: int

    @classmethod
    def read(cls, text: str) -> Counters:
        """From the texts of /proc/net/dev and /proc/stat, one after the other."""
        sent = received = 0
        ticks: list[int] = []
        for line in text.splitlines():
            name, colon, rest = line.partition(":")
            fields = rest.split()
            if colon and len(fields) >= 16 and name.strip() != "lo":
                received += int(fields[0])
                sent += int(fields[8])
            elif line.startswith("cpu "):
                ticks = [int(field) for field in line.split()[1:9]]
        idle = sum(ticks[3:5])  # idle, and waiting for a disk
        return cls(sent, received, sum(ticks) - idle, sum(ticks))


@dataclass(frozen=True)
class Traffic:
    """What a host did between two moments. Bytes are per second."""

    sent: float
    received: float
    cores_busy: float
    """Share of all its cores, whoever used them."""
    capacity: float | None = None
    """Bytes per second that it can send; None where that was not measured."""

    @classmethod
    def between(cls, before: Counters, after: Counters, seconds: float, capacity: float | None) -> Traffic:
        """From two readings that are ``seconds`` apart."""
        ticks = max(1, after.all_ticks - before.all_ticks)
        sent, received = after.sent - before.sent, after.received - before.received
        return cls(sent / seconds, received / seconds, (after.busy_ticks - before.busy_ticks) / ticks, capacity)

    @property
    def used(self) -> float:
        """The share of what it can send that it sends."""
        return self.sent / self.capacity if self.capacity else 0.0


class Hosts:
    """Hosts by name, the main host first; the words that run a command on each of them."""

    def __init__(self, reach: Mapping[str, Sequence[str]], *, quoted: bool = False) -> None:
        """``reach``: the words before a command; none for this machine. ``quoted``: a shell there reads the command."""
        self.names = tuple(reach)
        self._reach = reach
        self._quoted = quoted

    def command(self, host: str, *words: str) -> list[str]:
        """The words that run a command on a host."""
        before = list(self._reach[host])
        return [*before, shlex.join(words)] if before and self._quoted else [*before, *words]

    async def counters(self) -> dict[str, Counters]:
        """What each host has counted so far. Raises RunFailed."""
        return {host: Counters.read(await _output(self.command(host, *COUNTERS))) for host in self.names}

    async def capacities(self) -> dict[str, float]:
        """The bytes per second that each host can send: none for a single host. Raises RunFailed."""
        return {}

    @asynccontextmanager
    async def running(self, file: Path, folder: Path, overrides: Sequence[str]) -> AsyncIterator[Run]:
        """The run, in ``folder``; whatever happens, none of its processes outlives the block."""
        async with started(command_of("run", file, folder / "run", overrides), folder) as run:
            yield run


class Namespaces(Hosts):
    """Hosts that are machines of `benchmarks.machines`."""

    def __init__(self, by_name: Mapping[str, Machine]) -> None:
        super().__init__({name: machine.command() for name, machine in by_name.items()})
        self._machines = by_name

    async def capacities(self) -> dict[str, float]:
        """Measured one after the other, between the main host and each other host."""
        main, *others = self.names
        pairs = [(main, others[0]), *((other, main) for other in others)]
        return {sender: await self._capacity(sender, receiver) for sender, receiver in pairs}

    async def _capacity(self, sender: str, receiver: str) -> float:
        address = self._machines[receiver].address
        words = self.command(receiver, sys.executable, "-c", RECEIVE, address)
        with trio.fail_after(PROBE_DEADLINE):
            async with trio.open_nursery() as nursery:
                process = await nursery.start(_piped, words)
                lines = bytearray()
                while b"\n" not in lines:
                    lines += await process.stdout.receive_some() or b"\n"
                port = lines.split()[0].decode()
                await _output(self.command(sender, sys.executable, "-c", SEND, address, port, str(PROBE_SECONDS)))
                rest = bytearray(lines.partition(b"\n")[2])
                async for part in process.stdout:
                    rest += part
        return float(rest)

    @asynccontextmanager
    async def running(self, file: Path, folder: Path, overrides: Sequence[str]) -> AsyncIterator[Run]:
        """Every host is started; the main host decides when the run ends."""
        main, *others = self.names
        words = command_of("run", file, folder / "run", overrides)
        with ExitStack() as stack:
            for host in others:
                output = stack.enter_context((folder / f"output-{host}").open("wb"))
                self._machines[host].start(
                    *words, "--host", host, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
                )
            async with started(self.command(main, *words, "--host", main), folder) as run:
                yield run


class OverSsh(Hosts):
    """Machines that ssh reaches, the main host being this one: `agent-rl up` starts them."""

    def __init__(self, reach: Mapping[str, Sequence[str]], options: Sequence[str]) -> None:
        super().__init__(reach, quoted=True)
        self._options = options

    async def capacities(self) -> dict[str, float]:
        """What ssh carries from and to this machine."""
        others = [host for host in self.names if self._reach[host]]
        in_thread = trio.to_thread.run_sync
        found = {host: await in_thread(_received, self.command(host, "cat", "/dev/zero")) for host in others}
        for host in others[:1]:
            found[self.names[0]] = await in_thread(_sent, self.command(host, "sh", "-c", "cat >/dev/null"))
        return found

    @asynccontextmanager
    async def running(self, file: Path, folder: Path, overrides: Sequence[str]) -> AsyncIterator[Run]:
        """`agent-rl up`; what the run leaves in ``folder`` on other machines is removed."""
        try:
            async with started([*command_of("up", file, folder / "run", overrides), *self._options], folder) as run:
                yield run
        finally:
            with trio.CancelScope(shield=True):
                for host in self.names:
                    if self._reach[host]:
                        await _output(self.command(host, "rm", "-rf", str(folder)))


@contextmanager
def hosts_of(topology: Topology, folder: Path, *, namespaces: bool, ssh: str, rate: float | None) -> Iterator[Hosts]:
    """The hosts of a topology, and of namespaces the settings: see `settings_of`. Raises WrongOptions.

    ``rate``: what each host in a namespace can send, in Mbit/s; None: whatever this machine can carry.
    """
    main = topology.main_host
    names = (main, *sorted(name for name in topology.hosts_in_use if name != main))
    if namespaces:
        if why := unavailable("tc"):
            raise WrongOptions(f"--namespaces: {why}")
        with machines((SWITCH, *names), folder) as (_, *made):
            for machine in made if rate else ():
                limit = ("rate", f"{rate}mbit", "burst", "64kb", "latency", "400ms")
                machine.run("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", *limit)
            yield Namespaces(dict(zip(names, made, strict=True)))
    elif rate:
        raise WrongOptions("--mbit goes with --namespaces: the links of real machines are as they are")
    elif len(names) == 1:
        yield Hosts({main: ()})
    else:
        addresses = {name: topology.hosts[name].address for name in names}
        if not is_here(addresses[main]):
            raise WrongOptions(f"the main host {main} ({addresses[main]}) is another machine: measure there")
        words = shlex.split(ssh)
        reach = {name: () if is_here(address) else (*words, address) for name, address in addresses.items()}
        yield OverSsh(reach, ("--ssh", ssh))


def settings_of(topology: Topology, folder: Path) -> list[str]:
    """Settings with which the hosts of a topology are those of `hosts_of` in namespaces."""
    main = topology.main_host
    names = (main, *sorted(name for name in topology.hosts_in_use if name != main))
    CurveKeys.generate().save(folder / "cluster.key")
    addresses = [f'hosts.{name}.address="10.77.0.{number}"' for number, name in enumerate(names, 2)]
    return [*addresses, f"security.key_file={folder / 'cluster.key'}"]


async def _piped(words: Sequence[str], *, task_status: trio.TaskStatus[trio.Process]) -> None:
    await trio.run_process(words, stdout=subprocess.PIPE, task_status=task_status)


async def _output(words: Sequence[str]) -> str:
    done = await trio.run_process(words, capture_stdout=True, capture_stderr=True, check=False)
    if done.returncode:
        raise RunFailed(f"{shlex.join(words)} ended with {done.returncode}: {done.stderr.decode(errors='replace')}")
    return done.stdout.decode()


def _received(words: Sequence[str]) -> float:
    """Bytes per second that a command writes."""
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        size, began = len(process.stdout.read(1)), time.monotonic()
        while (seconds := time.monotonic() - began) < PROBE_SECONDS and (data := process.stdout.read(len(BLOCK))):
            size += len(data)
        process.kill()
    return size / seconds


def _sent(words: Sequence[str]) -> float:
    """Bytes per second that a command reads."""
    with subprocess.Popen(words, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        size, began = 0, time.monotonic()
        while time.monotonic() - began < PROBE_SECONDS:
            size += process.stdin.write(BLOCK)
        process.stdin.close()
        process.wait()  # what pipe and connection still held is sent
        return size / (time.monotonic() - began)
