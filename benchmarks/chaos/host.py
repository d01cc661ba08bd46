"""The hosts of a run: start it there, hurt it, and see what it leaves.

A run has this machine alone, or several machines with networks and disks of their own (namespaces).
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from agent_rl.config.addresses import run_digest, supervisor_node
from agent_rl.config.examples import EXAMPLES
from agent_rl.config.load import load_topology
from agent_rl.files.leftovers import PREFIX
from agent_rl.observe.logs import log_directory
from benchmarks.machines import NETWORK, Machine, machines
from benchmarks.runs import RunFailed
from transport import CurveKeys

CLOCK = Path(__file__).with_name("clock")
SUBSTITUTES = str(EXAMPLES / "substitutes")
"""Modules of the classes that roles are swapped for."""
ENDING_SECONDS = 300.0
DYING_SECONDS = 5.0
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at only
DISK_SIZE = "256M"
SWITCH = "switch"
MAIN, OTHERS = "a", ("b", "c")
RATE = ("rate", "20mbit", "burst", "64kb", "latency", "400ms")
ROLES = dict.fromkeys(("kv_scheduler", "roc_filter", "learner"), f'host="{MAIN}"')
ROLES |= {role: f"hosts={list(OTHERS)}".replace("'", '"') for role in ("rollout_generator", "tool_executor")}
READY_SECONDS = 240.0
"""How long a change may wait until all actors run."""
_ROOT = ("dev", "eth0", "root")


class Host:
    """Starts ``command``, and keeps output, clock and temporary files of the run in ``folder``.

    ``digest`` is in the names of what the run puts into shared memory (`run_digest`).
    """

    def __init__(
        self, command: Sequence[str], folder: Path, digest: str, there: Callable[..., Sequence[str]] | None = None
    ) -> None:
        """``there`` makes of a command one that runs in the host's own namespaces."""
        self._command = list(command)
        self._there = there or (lambda *words: words)
        self._digest = digest
        self._folder = folder
        self._temporary = folder / "t"
        self._temporary.mkdir()
        self._clock = folder / "clock"
        self._clock.write_bytes(struct.pack("d", 0.0))
        self._jumped = 0.0
        self._process: trio.Process | None = None
        self._shared = set(SHARED_MEMORY.glob("*"))
        self._everyone: dict[int, str] = {}
        """Every process that was seen, with the time at which it was started: numbers of processes are used again."""
        self._groups: set[Path] = set()
        """The control groups that were seen: the run links to them from its temporary files."""

    @property
    def output(self) -> str:
        """The output of the run so far."""
        return (self._folder / "output").read_text(errors="replace")

    @property
    def pid(self) -> int:
        """The supervisor."""
        assert self._process is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code of the supervisor; None while it runs."""
        assert self._process is not None
        return self._process.returncode

    async def start(self, *further: str) -> None:
        """Start the run, or continue it. ``further``: settings of this start."""
        environment = os.environ | {
            "TMPDIR": str(self._temporary),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(CLOCK), SUBSTITUTES, os.environ.get("PYTHONPATH")))),
            "CHAOS_CLOCK": str(self._clock),
        }
        with (self._folder / "output").open("ab") as output:
            self._process = await trio.lowlevel.open_process(
                [*self._command, *(part for setting in further for part in ("--set", setting))],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
            )

    async def ask(self, words: Sequence[str]) -> tuple[int, str]:
        """Exit code and output of a command of a user."""
        command = self._there(sys.executable, "-P", "-m", "actors.cli", *words)
        environment = os.environ | {"TMPDIR": str(self._temporary)}
        done = await trio.run_process(
            list(command), capture_stdout=True, stderr=subprocess.STDOUT, check=False, env=environment
        )
        return done.returncode, done.stdout.decode(errors="replace")

    def jump(self, seconds: float) -> None:
        """Let the clock that the run reads jump by so much."""
        self._jumped += seconds
        descriptor = os.open(self._clock, os.O_WRONLY)  # in place: the processes have mapped the file
        try:
            os.pwrite(descriptor, struct.pack("d", self._jumped), 0)
        finally:
            os.close(descriptor)

    def everyone(self) -> list[int]:
        """The supervisor and all processes below it; they and their control groups are remembered."""
        found = family(self.pid)
        for link in self._temporary.rglob("*"):
            with contextlib.suppress(OSError):  # it is no link, or has just been deleted
                self._groups.add(link.readlink())
        self._everyone |= {pid: began for pid in found if (began := _began(pid))}
        return found

    def kill_all(self) -> None:
        """SIGKILL to all of them, as when a host loses power."""
        for pid in self.everyone():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """Ask the run to stop in order."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)

    def end(self) -> None:
        """Kill what still runs of it."""
        if self._process is not None and self.exit_code is None:
            self.kill_all()

    async def ended(self, seconds: float = ENDING_SECONDS) -> int:
        """Wait for the supervisor's end; its exit code. Raises RunFailed when it does not end."""
        assert self._process is not None
        with trio.move_on_after(seconds):
            await self._process.wait()
        if self.exit_code is None:
            raise RunFailed(f"the run did not end within {seconds:.0f} s\n{self.output[-3000:]}")
        return self.exit_code

    def left_behind(self) -> list[str]:
        """Processes, files and control groups that are there after the run's end; dying processes have some seconds."""
        deadline = time.monotonic() + DYING_SECONDS
        while self._alive() and time.monotonic() < deadline:
            time.sleep(0.1)
        left = [f"process {pid}: {_command_line(pid)}" for pid in self._alive()]
        left += [str(path) for path in self._temporary.rglob("*")]
        left += [str(path) for path in self._groups if path.exists()]
        mounts = Path("/proc/mounts").read_text().splitlines()
        left += [f"mount {line}" for line in mounts if str(self._temporary) in line]
        new = set(SHARED_MEMORY.glob("*")) - self._shared
        return left + [str(path) for path in new if self._own(path.name)]

    def _own(self, shared: str) -> bool:
        """Whether the name of a file in shared memory is of this run: it has the run's digest, or one of its pids."""
        if shared.startswith(PREFIX):
            return shared.endswith(self._digest)
        return any(pid in self._everyone for pid in map(int, re.findall(r"\d+", shared)))

    def _alive(self) -> set[int]:
        """Processes of the run that live: those that were seen, those that were started with its environment, and forks
        of those that start the programs of rollouts, in whatever namespaces.
        """
        mark, folder = f"CHAOS_CLOCK={self._clock}\0".encode(), f"{self._temporary}/"
        known = [pid for pid, _ in _parents() if mark in _environment(pid) or folder in _command_line(pid)]
        started = {pid for pid in known if _began(pid)}
        return started | {pid for pid, began in self._everyone.items() if _began(pid) == began}


def family(pid: int) -> list[int]:
    """A process and everything below it, the process first."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def _parents() -> Iterator[tuple[int, int]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                yield int(entry.name), int(_stat(int(entry.name))[1])


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _began(pid: int) -> str:
    """When a process was started, in the kernel's ticks; empty when it has ended."""
    try:
        fields = _stat(pid)
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it has ended, or is somebody else's
        return b""


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "?"


def run_command(file: Path, overrides: Sequence[str]) -> list[str]:
    """``agent-rl run FILE`` with these settings."""
    settings = [part for setting in overrides for part in ("--set", setting)]
    return [sys.executable, "-P", "-m", "actors.cli", "run", str(file), *settings]


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    """A file system of its own at ``path``. Raises OSError where this user may not mount one."""
    path.mkdir()
    done = subprocess.run(
        ["/bin/mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise OSError(f"a small disk cannot be mounted here: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["/bin/umount", "--lazy", str(path)], check=True)


def fill(disk: Path, *, but: int = 0) -> Path:
    """Take all the space there is on it but so many bytes; the file to be removed."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        room = os.statvfs(disk)
        os.posix_fallocate(file.fileno(), 0, max(1, (room.f_bavail - 64) * room.f_bsize))
        file.seek(0, os.SEEK_END)
        while True:
            file.write(bytes(room.f_bsize))
    os.truncate(filler, filler.stat().st_size - but)
    return filler


@dataclass(frozen=True)
class Cluster:
    """Hosts by name, the main host first. ``directory`` is the run directory of the main host, as seen from here."""

    hosts: Mapping[str, Host]
    directory: Path
    logs: Mapping[str, Path]
    """The log of each host's supervisor."""
    disk: Path | None
    machines: Mapping[str, Machine] = field(default_factory=dict)
    inside: Path | None = None
    """The run directory as its hosts see it; None: as it is seen from here."""


def cluster_overrides(folder: Path) -> list[str]:
    """Settings that put the roles on three machines: generators and executors on two, the rest on the first."""
    table = ", ".join(f'{name} = {{address = "{NETWORK}.{n}"}}' for n, name in enumerate((MAIN, *OTHERS), 2))
    placed = [f"actors.{role}.{where}" for role, where in ROLES.items()]
    weights = "actors.rollout_generator.links.weights=learner"
    return [f"hosts={{{table}}}", f"security.key_file={folder / 'cluster.key'}", *placed, weights]


@contextmanager
def one_host(file: Path, folder: Path, overrides: Sequence[str], *, small: bool = False) -> Iterator[Cluster]:
    """The machine as it is. ``small``: the run directory has a small disk of its own."""
    name = "local"
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(folder / "disk", DISK_SIZE)) if small else None
        directory = (disk or folder) / "run"
        settings = [f"run.directory={directory}", *overrides]
        host = Host(run_command(file, settings), folder, run_digest(load_topology(file, settings)))
        yield Cluster({name: host}, directory, {name: _log(directory, name)}, disk)


@contextmanager
def three_hosts(file: Path, folder: Path, overrides: Sequence[str], *, small: bool) -> Iterator[Cluster]:
    """Three machines and a switch. All see the run directory at one path, and each has its own there."""
    CurveKeys.generate().save(folder / "cluster.key")
    place = folder / "here"
    place.mkdir()
    with ExitStack() as stack:
        names = (MAIN, *OTHERS)
        disk = stack.enter_context(small_disk(folder / MAIN, DISK_SIZE)) if small else None
        for name in names:
            (folder / name).mkdir(exist_ok=True)
            (folder / f"{name}.files").mkdir()
        _, *made = stack.enter_context(machines((SWITCH, *names), folder))
        by_name = dict(zip(names, made, strict=True))
        hosts = {}
        settings = [f"run.directory={place / 'run'}", *cluster_overrides(folder), *overrides]
        digest = run_digest(load_topology(file, settings))
        for name, machine in by_name.items():
            machine.run("mount", "--bind", str(folder / name), str(place))
            command = [*run_command(file, settings), "--host", name]
            hosts[name] = Host(machine.command(*command), folder / f"{name}.files", digest, machine.command)
        logs = {name: _log(folder / name / "run", name) for name in names}
        yield Cluster(hosts, folder / MAIN / "run", logs, disk, by_name, place / "run")


def _log(directory: Path, host: str) -> Path:
    return log_directory(directory) / f"{supervisor_node(host)}.jsonl"


def network_fault(kind: str, hit: Sequence[Machine]) -> list[tuple[Machine, tuple[str, ...], tuple[str, ...]]]:
    """The commands that begin and end a fault of the network, and where they run."""
    first = hit[0]
    match kind:
        case "link_down":
            link = ("ip", "link", "set", "eth0")
            return [(first, (*link, "down"), (*link, "up"))]
        case "slow_link":
            return [(first, ("tc", "qdisc", "add", *_ROOT, "tbf", *RATE), ("tc", "qdisc", "del", *_ROOT))]
        case "partition":
            ways = ((first, hit[1]), (hit[1], first))
            return [
                (here, ("ip", "route", "add", *to), ("ip", "route", "del", *to))
                for here, there in ways
                for to in [("blackhole", f"{there.address}/32")]
            ]
    raise ValueError(f"{kind} is no fault of the network")
