"""The processes of a run on one host: start it, hurt it, and see what it leaves."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import trio

from agent_rl.files.leftovers import PREFIX
from benchmarks.runs import RunFailed

CLOCK = Path(__file__).with_name("clock")
ENDING_SECONDS = 300.0
DYING_SECONDS = 5.0
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at only


class Host:
    """Starts ``command``, and keeps output, clock and temporary files of the run in ``folder``.

    ``digest`` is in the names of what the run puts into shared memory (`run_digest`).
    """

    def __init__(self, command: Sequence[str], folder: Path, digest: str) -> None:
        self._command = list(command)
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
        """What the run has printed."""
        return (self._folder / "output").read_text(errors="replace")

    @property
    def pid(self) -> int:
        """The supervisor."""
        assert self._process is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Of the supervisor; None while it runs."""
        assert self._process is not None
        return self._process.returncode

    async def start(self, *further: str) -> None:
        """Start the run, or continue it. ``further``: settings of this start."""
        environment = os.environ | {
            "TMPDIR": str(self._temporary),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(CLOCK), os.environ.get("PYTHONPATH")))),
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
        new = set(SHARED_MEMORY.glob("*")) - self._shared
        return left + [str(path) for path in new if self._own(path.name)]

    def _own(self, shared: str) -> bool:
        """Whether the name of a file in shared memory is of this run: it has the run's digest, or one of its pids."""
        if shared.startswith(PREFIX):
            return shared.endswith(self._digest)
        return any(pid in self._everyone for pid in map(int, re.findall(r"\d+", shared)))

    def _alive(self) -> set[int]:
        """Processes of the run that live: those that were seen, and those that were started with its environment."""
        mark = f"CHAOS_CLOCK={self._clock}\0".encode()
        started = {pid for pid, _ in _parents() if _began(pid) and mark in _environment(pid)}
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


@contextlib.contextmanager
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
