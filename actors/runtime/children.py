"""The operating-system process of an actor: it cannot outlive the supervisor, and is killed with its process group."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import trio

from actors.exits import MemoryKills, describe_exit
from actors.user_threads import blocked_at
from agent_rl.files.disk import rotate_open
from agent_rl.messages import pipes
from agent_rl.observe.silence import ProcessSeen
from transport import DecodeError, Registry
from transport.stream import PipeReader, packed

MESSAGE_VARIABLE = "AGENT_RL_MESSAGE"
"""Environment variable with the file descriptor of a file in memory. The actor writes its last message to this file."""
STACK_BEGINS = "Timeout ("
"""The first words of what faulthandler writes to the message file while the event loop stands."""
PIPE_BYTES = 1 << 15
"""A larger write needs a larger pipe than the default of 64 KiB."""
LAST_WORDS_BYTES = 16384
"""Number of bytes read from the end of a stderr file."""


class ActorChild:
    """One process, the leader of its own session and process group.

    So Ctrl-C in the terminal reaches only the supervisor, and ``kill`` also reaches the processes that the actor
    started.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        stderr: Path,
        stderr_start: int,
        message: BinaryIO,
        lifeline: BinaryIO,
        prepared: BinaryIO | None = None,
    ) -> None:
        self._process = process
        self._prepared = prepared
        self._lifeline = lifeline
        self.stderr = stderr
        self._stderr_start = stderr_start
        self._message = message
        self._garbled = ""
        self.message = ""
        """The actor's last message to the user, set after the process has ended. The disk was not needed for it."""
        self._memory_kills = MemoryKills()
        self.lacked_memory = False
        """Whether the kernel killed the process for lack of memory."""
        self.blocked_at = ""
        """The code of users in which the actor's event loop stood when the process was killed; empty if it did not."""

    @property
    def pid(self) -> int:
        """The id of the process and of its group."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether ``wait`` or ``reap`` has collected the process."""
        return self._process.returncode is not None

    def stay_on(self, cores: Collection[int]) -> None:
        """Let the process, and what it starts from now on, run on those of these cores that are allowed here."""
        allowed = os.sched_getaffinity(0) & set(cores)
        if allowed and not self.ended:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(self.pid, allowed)

    def seen(self) -> ProcessSeen | None:
        """State and processor time of the process; None when the process has ended, or on a system without /proc."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return ProcessSeen(fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))

    async def wait(self) -> int:
        """Wait for the end, kill the rest of the process group, and return the exit status (negative: the signal)."""
        if not self.ended:
            await self._exited()
            self.kill()  # before the process is reaped: after that, another group may get the same number
        status = self._process.wait()
        self.lacked_memory = self._memory_kills.killed(status)
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

    async def prepared(self) -> bool:
        """Wait until a process that was started ``beside`` another says so; False when it ends before."""
        assert self._prepared is not None
        with self._prepared as pipe:
            reader = PipeReader(pipe.fileno(), Registry.of(pipes))
            async with trio.open_nursery() as nursery:

                async def until_ended() -> None:
                    await self._exited()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(until_ended)
                try:
                    message = await reader.receive()
                except DecodeError as error:
                    self._garbled = f"what it says cannot be read: {error}"
                    self.kill()
                    message = None
                nursery.cancel_scope.cancel()
                return isinstance(message, pipes.Prepared)
        return False

    def ending(self, status: int) -> str:
        """How the process ended with this exit status, in words."""
        return describe_exit(status, lacked_memory=self.lacked_memory)

    def terminate(self) -> None:
        """Ask the process to stop. The process stops its own children."""
        if not self.ended:
            self._process.terminate()

    def kill(self) -> None:
        """Kill the process and its group now."""
        if not self.ended:
            with contextlib.suppress(ProcessLookupError):  # the group has no member left
                os.killpg(self.pid, signal.SIGKILL)

    def reap(self) -> None:
        """Kill the group and collect the process without trio, for use when trio can no longer wait."""
        self.kill()
        self._process.wait()
        self._take_message()

    def tell(self, *messages: Any) -> bool:
        """Write to the lifeline pipe. False when the pipe is full because the process does not read it."""
        if self.ended:
            return True
        descriptor, data = self._lifeline.fileno(), b"".join(map(packed, messages))
        try:
            if len(data) > PIPE_BYTES and hasattr(fcntl, "F_SETPIPE_SZ"):
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, len(data))
            return os.write(descriptor, data) == len(data)
        except BrokenPipeError:  # the process has just ended
            return True
        except BlockingIOError:
            return False

    def _take_message(self) -> None:
        self._lifeline.close()
        if not self._message.closed:
            with self._message:
                self._message.seek(0)
                text = self._message.read().decode(errors="replace").strip()
            if text.startswith(STACK_BEGINS):
                self.blocked_at = blocked_at(text)
            else:
                self.message = self._garbled or text

    def rotate_stderr(self, limit: float) -> None:
        """When the stderr file has ``limit`` bytes, move its content to another file and empty it."""
        if rotate_open(self.stderr, limit):
            self._stderr_start = 0

    def last_words(self, lines: int = 20) -> list[str]:
        """The last `telling` lines that this process wrote to its stderr file, and its message if they lack it."""
        try:
            with self.stderr.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self._stderr_start, end - LAST_WORDS_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:  # somebody has removed it
            text = ""
        words, message = telling(text), telling(self.message)
        if message:  # which says it in a line
            words = [line for before, line in pairwise(["", *words]) if not any(map(FRAME.match, (before, line)))]
        return [*words, *(line for line in message if line not in words)][-lines:]  # a broken disk took no words


FRAME = re.compile(r'(Exception Group )?Traceback |File ".*", line |ExceptionGroup: |[0-9]+$')
"""Lines of a traceback; the line after one is its source, or a line of these too."""
PROGRESS = re.compile(r"\d%\||\[\d+:\d\d(:\d\d)?[<,]")
"""Lines as tqdm draws them: ``Loading: 45%|####  | 3/7 [00:01<00:02, 1.2it/s]``, ``12it [00:03, 4.0it/s]``."""


def telling(text: str) -> list[str]:
    """The lines of a process's output that can say why it ended: no empty ones, and no progress bars of libraries."""
    # Drop the frames that Python draws around exception groups.
    words = [line.strip(" |+-") for line in text.splitlines() if not PROGRESS.search(line)]
    return [line for line in words if line.strip("^~")]


LIFELINE = str(Path(__file__).with_name("lifeline.py"))


def start_child(
    module: str,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    stderr: Path,
    beside: bool = False,
    topology: str = "",
) -> ActorChild:
    """Start ``python -m module arguments... --lifeline FD`` through ``lifeline.py``, its output to the file ``stderr``.

    A text of a ``topology`` is in a file in memory, which nobody else can change: it gets ``--topology FILE`` too.

    ``beside``: another process is to be replaced by it. It gets ``--beside FD`` too, the end of a pipe over which it
    says that it is `Prepared`; then it waits for `Go`.

    The lifeline is the read end of a pipe. It carries what `ActorChild.tell` tells (`agent_rl.messages.pipes`), and
    closes when the supervisor ends.

    The supervisor's main thread calls this function directly. trio's process functions start processes on worker
    threads, and the parent-death signal fires when the starting *thread* ends.
    """
    try:
        stderr.parent.mkdir(exist_ok=True)
        file = stderr.open("ab")
    except OSError:  # the log is lost, and nothing else
        file = Path(os.devnull).open("ab")  # noqa: SIM115 - entered below
    message = _memory_file("message")
    lifeline, writing_end = os.pipe()
    os.set_blocking(writing_end, False)
    command = [sys.executable, "-P", LIFELINE, str(os.getpid()), module]
    command += [*arguments, "--lifeline", str(lifeline)]
    with ExitStack() as stack:
        stack.enter_context(file)
        stack.enter_context(os.fdopen(lifeline, "rb"))
        passed, prepared = [lifeline, message.fileno()], None
        if topology:
            given = stack.enter_context(_memory_file("topology"))
            given.write(topology.encode())
            given.seek(0)
            command += ["--topology", f"/dev/fd/{given.fileno()}"]
            passed.append(given.fileno())
        if beside:
            reading, telling = os.pipe()
            prepared = os.fdopen(reading, "rb", buffering=0)
            stack.enter_context(os.fdopen(telling, "wb"))
            command += ["--beside", str(telling)]
            passed.append(telling)
        start = file.tell()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            pass_fds=passed,
            env={**environment, MESSAGE_VARIABLE: str(message.fileno())},
        )
    return ActorChild(process, stderr, start, message, os.fdopen(writing_end, "wb", buffering=0), prepared)


def _memory_file(name: str) -> BinaryIO:
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create(name), "w+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)


def message_file() -> int | None:
    """In an actor's process: the descriptor of the message file; None for a process without a supervisor."""
    descriptor = os.environ.get(MESSAGE_VARIABLE)
    return None if descriptor is None else int(descriptor)


def leave_message(text: str) -> None:
    """In an actor's process: leave the last message for the supervisor, in the message file and on stderr."""
    with contextlib.suppress(OSError):  # the disk may be full, and the message may be about that
        os.write(2, f"{text}\n".encode(errors="replace"))
    descriptor = message_file()
    if descriptor is not None:
        os.write(descriptor, text.encode(errors="replace"))
    # Output buffered for a full disk would change the exit status of the interpreter.
    sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - open to the end
