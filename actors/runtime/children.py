"""An actor's operating-system process: started so that it cannot be orphaned, waited for on trio, ended as a group."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import trio

from agent_rl.files.disk import rotate_open, writing
from agent_rl.observe.silence import ProcessSeen

MESSAGE_VARIABLE = "AGENT_RL_MESSAGE"
"""The environment's name for the file in memory that an actor leaves its message in."""
PIPE_BYTES = 1 << 15
"""More at once needs a larger pipe than the usual one of 64 KiB."""
LAST_WORDS_BYTES = 16384
"""How much of the end of a stderr file is looked at."""


class ActorChild:
    """One process, leader of a session and process group of its own.

    A Ctrl-C in the terminal therefore reaches the supervisor alone, and ``kill`` reaches what the process has started.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], stderr: Path, stderr_start: int, message: BinaryIO, lifeline: BinaryIO
    ) -> None:
        self._process = process
        self._lifeline = lifeline
        self.stderr = stderr
        self._stderr_start = stderr_start
        self._message = message
        self.message = ""
        """Once it has ended: what it left to be told to the user, in memory, for when the disk takes nothing."""

    @property
    def pid(self) -> int:
        """The process, and its group."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether ``wait`` or ``reap`` has seen it end."""
        return self._process.returncode is not None

    def seen(self) -> ProcessSeen | None:
        """What the kernel says of the process; None when it has ended, or where there is no /proc."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return ProcessSeen(fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))

    async def wait(self) -> int:
        """Wait for the end, kill what is left of the group, and return the exit status (negative: the signal)."""
        if not self.ended:
            await self._exited()
            self.kill()  # before the process is reaped: until then, its group's number cannot be another's
        status = self._process.wait()
        self._take_message()
        return status

    async def _exited(self) -> None:
        if not hasattr(os, "pidfd_open"):  # not Linux
            await trio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)
            return
        descriptor = os.pidfd_open(self.pid)
        try:
            await trio.lowlevel.wait_readable(descriptor)
        finally:
            os.close(descriptor)

    def terminate(self) -> None:
        """Ask the process to stop; what it has started is its own to stop."""
        if not self.ended:
            self._process.terminate()

    def kill(self) -> None:
        """End the process and everything in its group, now."""
        if not self.ended:
            with contextlib.suppress(ProcessLookupError):  # the group has no member left
                os.killpg(self.pid, signal.SIGKILL)

    def reap(self) -> None:
        """Kill the group and collect the process, for when trio can no longer wait."""
        self.kill()
        self._process.wait()
        self._take_message()

    def tell(self, lines: bytes) -> bool:
        """Write whole lines to its lifeline; False when it has not read so many that there is no room."""
        if self.ended:
            return True
        descriptor = self._lifeline.fileno()
        try:
            if len(lines) > PIPE_BYTES and hasattr(fcntl, "F_SETPIPE_SZ"):
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, len(lines))
            return os.write(descriptor, lines) == len(lines)
        except BrokenPipeError:  # it has just ended
            return True
        except BlockingIOError:
            return False

    def _take_message(self) -> None:
        self._lifeline.close()
        if not self._message.closed:
            with self._message:
                self._message.seek(0)
                self.message = self._message.read().decode(errors="replace").strip()

    def rotate_stderr(self, limit: float) -> None:
        """Keep what it wrote apart, and let it go on in an emptied file, once there are ``limit`` bytes of it."""
        if rotate_open(self.stderr, limit):
            self._stderr_start = 0

    def last_words(self, lines: int = 20) -> list[str]:
        """The last non-empty lines this process wrote to its stderr file."""
        with self.stderr.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(self._stderr_start, end - LAST_WORDS_BYTES))
            text = file.read().decode(errors="replace")
        # The frames that Python draws around exception groups say nothing.
        words = [line.strip(" |+-") for line in text.splitlines()]
        return [line for line in words if line.strip("^~")][-lines:]


LIFELINE = str(Path(__file__).with_name("lifeline.py"))


def start_child(module: str, arguments: Sequence[str], *, environment: Mapping[str, str], stderr: Path) -> ActorChild:
    """Start ``python -m module arguments... --lifeline FD``, through ``lifeline.py``, its output appended to the file ``stderr``.

    The lifeline is the read end of a pipe: it reads as closed once the supervisor is gone, and before as what `Child.tell` writes.

    Called on the supervisor's main thread, not through trio's process functions: those start processes on worker
    threads, and the parent-death signal fires when the starting *thread* ends.
    """
    with writing(stderr):
        file = stderr.open("ab")
    message = _memory_file()
    lifeline, held = os.pipe()
    os.set_blocking(held, False)
    command = [sys.executable, "-P", LIFELINE, str(os.getpid()), module]
    command += [*arguments, "--lifeline", str(lifeline)]
    with file, os.fdopen(lifeline, "rb"):
        start = file.tell()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            pass_fds=(lifeline, message.fileno()),
            env={**environment, MESSAGE_VARIABLE: str(message.fileno())},
        )
    return ActorChild(process, stderr, start, message, os.fdopen(held, "wb", buffering=0))


def _memory_file() -> BinaryIO:
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("message"), "w+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)


def leave_message(text: str) -> None:
    """In an actor's process: leave what the supervisor tells the user, there and on stderr. It is the last thing said."""
    with contextlib.suppress(OSError):  # the disk may be full, which is what the message is about
        os.write(2, f"{text}\n".encode())
    descriptor = os.environ.get(MESSAGE_VARIABLE)
    if descriptor is not None:
        os.write(int(descriptor), text.encode())
    # What is buffered for a full disk would make the interpreter's exit status another one.
    sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - open to the end
