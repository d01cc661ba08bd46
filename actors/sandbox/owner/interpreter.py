"""One warm interpreter, from the owner's side: its process, its link, and the calls in flight on it."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from actors.processor_time import seconds_with_children
from actors.sandbox.inside.slots import NamespaceSlots
from actors.sandbox.isolation.control_groups import ControlGroups
from actors.sandbox.isolation.levels import Level, child_filter_program, filter_program, outer_users, visible
from actors.sandbox.wire import (
    CALL,
    CANCEL,
    CPU_TIMEOUT,
    END_SESSION,
    FAILED,
    NEXT_CELL,
    NO_VERDICT,
    NOT_RUN,
    PLAIN_CODE,
    REPLY,
    SESSION_GOES_ON,
    SESSION_LEFT_PROCESSES,
    TIMEOUT,
    memory_file,
    pack_request,
)
from agent_rl.files.leftovers import claimed_directory, remove_tree
from agent_rl.messages import ToolOutcome


@dataclass(frozen=True, slots=True)
class ExecutionLimits:
    """The limits of one call. Beyond a limit it ends as ``timeout`` (wall, CPU), ``memory_limit`` or ``output_limit``.

    ``cpu_seconds`` is rounded up to whole seconds. ``memory_bytes`` is address space of each process, on top of the
    warm interpreter's. ``output_bytes`` holds for stdout, stderr and the value separately. ``file_bytes`` holds for
    each file, also for those that catch the output. ``processes`` has no effect without namespaces when the user is
    root.
    """

    wall_seconds: float = 4.0
    cpu_seconds: float = 4.0
    memory_bytes: int = 512 << 20
    output_bytes: int = 256 << 10
    file_bytes: int = 16 << 20
    open_files: int = 64
    processes: int = 32


ROOT = str(Path(__file__).resolve().parents[3])
"""The folder of this project's packages: a checkout, or site-packages."""
OURS = ("actors", "agent_rl", "agent_rl_contract", "benchmarks", "transport")
BOOT = "import sys; sys.path.append({root!r}); from actors.sandbox.inside.program import main; main()"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "LD_BIND_NOW": "1"}
"""Environment of the interpreter only: a pool of threads would not survive a fork, and each child would repeat the work
that a library does at its first call. Calls do not see these variables."""
ENDING_SECONDS = 5.0
"""Seconds a server may take to kill its children and remove its directory. Then it is killed."""
READ_MARGIN = 16
"""Bytes read beyond an output's limit, to notice that there is more. A character cut in two is dropped."""


class WarmUpError(Exception):
    """A warm interpreter could not be started; the message says why."""


class NotStartedError(Exception):
    """A call could not be started for lack of descriptors, disk or memory; the message says which."""


class NoIsolationError(Exception):
    """The interpreter could not isolate itself; the message names the failed step."""


@dataclass(frozen=True, slots=True)
class Scratch:
    """The private /tmp of a call, which is memory: bytes and number of files."""

    size: int = 64 << 20
    files: int = 4096

    @property
    def options(self) -> str:
        """Mount options."""
        return f"size={self.size},nr_inodes={self.files}"


@dataclass(frozen=True, slots=True)
class Importable:
    """The import paths of the called functions: folders to import from, and the visible files there and elsewhere."""

    folders: tuple[str, ...]
    seen: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InterpreterConfig:
    """The interpreter's modules to load, importable code, concurrent calls, isolation and control groups.

    ``imports`` is None for an interpreter that runs given code and calls no functions. Calls do not see the ``hidden``
    files and folders.
    """

    modules: tuple[str, ...]
    imports: Importable | None
    children: int
    level: Level
    warm_seconds: float
    groups: ControlGroups
    scratch: Scratch = Scratch()
    hidden: tuple[str, ...] = ()


@dataclass(slots=True)
class Ended:
    """The end of a call: the interpreter's verdict, the exit status, and the child's output files.

    ``out_of_memory``: the child was killed when the memory of all calls together ran out.
    """

    verdict: int
    status: int
    seconds: float
    stdout: bytes
    stderr: bytes
    report: bytes
    out_of_memory: bool = False


class _Pending:
    """A call in flight. ``ended`` stays None when the interpreter was lost. ``refusal``: why it was not started."""

    __slots__ = ("done", "ended", "refusal")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.ended: tuple[int, int, float] | None = None
        self.refusal = ""


class Interpreter:
    """A warm interpreter process. ``run`` owns it; ``call`` uses it while it is ready."""

    def __init__(self, config: InterpreterConfig) -> None:
        self.config = config
        self._ids = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._outgoing: deque[tuple[bytes, list[int]]] = deque()
        self._writable = trio.Event()
        self._link: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._calls: list[Path] = []
        """Control groups of its calls; see ``ControlGroups.take_calls``."""
        self.ready = False

    @property
    def in_flight(self) -> int:
        """Number of calls sent and not answered."""
        return len(self._pending)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start the process, report it started once it is warm, and return when it has died.

        However this method ends, process, children and directory are gone. Raises WarmUpError, NoIsolationError.
        """
        strong = self.config.level == "strong"  # calls then have their own directories in memory
        try:
            directory, claim = (None, None) if strong else claimed_directory("sandbox")
        except OSError as error:
            raise WarmUpError(f"no directory for the files of calls could be made: {error}") from error
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            try:
                self._calls = self.config.groups.take_calls(self.config.children + NamespaceSlots.spares)
            except OSError as error:
                raise WarmUpError(f"no control groups for calls could be made: {error}") from error
            with theirs:
                self._process = self._start(str(directory or ""), theirs.fileno())
            self._link = ours
            ours.setblocking(False)
            try:
                await self._serve(ours, task_status)
            finally:
                self.ready = False
                self._lose()
                ours.close()  # this tells the server to end
                await _end(self._process)
        finally:
            ours.close()
            self.config.groups.give_back(self._calls)
            if directory is not None and claim is not None:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(remove_tree, directory)  # left over by a killed server
                claim.release()

    async def call(
        self,
        request: dict[str, Any],
        stdin: str,
        limits: ExecutionLimits,
        seconds: float,
        session: int = 0,
        *,
        goes_on: bool = False,
    ) -> Ended | None:
        """Run a call and wait for its end; None if the interpreter was lost, did not run it, or was silent ``seconds``.

        A cell of a ``session`` starts the session's process, or with ``goes_on`` uses the live one.

        The server enforces the deadline of each call, so a silent server hangs and is killed. Cancelling this method
        cancels the call in the server. Raises NotStartedError.
        """
        if not self.ready:  # it died while the call waited for a place
            return None
        number, pending, groups, asked = next(self._ids), _Pending(), self.config.groups, trio.current_time()
        files: list[int] = []
        try:
            try:
                files.append(memory_file(packed(request)))
                files += [memory_file(b""), memory_file(b"")]
                if stdin:
                    files.append(memory_file(stdin.encode("utf-8", "replace")))
            except OSError as error:
                raise NotStartedError(str(error)) from error
            self._pending[number] = pending
            try:
                kind = NEXT_CELL if goes_on else CALL
                self._send(pack_request(kind, number, session, limits), files)
                with trio.move_on_after(seconds) as waiting:
                    await pending.done.wait()
                if waiting.cancelled_caught:
                    self.kill()
            finally:
                if self._pending.pop(number, None) is not None and self.ready:
                    self._send(pack_request(CANCEL, number), [])
            if pending.refusal:
                raise NotStartedError(pending.refusal)
            if pending.ended is None or pending.ended[0] == NOT_RUN:
                return None
            most = limits.output_bytes
            stdout, stderr = (os.pread(fd, most + READ_MARGIN, 0) for fd in files[1:3])
            out_of_memory = pending.ended[1] == -signal.SIGKILL and groups.ended_one_since(asked, trio.current_time())
            return Ended(*pending.ended, stdout, stderr, os.pread(files[0], 5 * most + 4096, 0), out_of_memory)
        finally:
            for fd in files:
                os.close(fd)

    def end_session(self, session: int) -> None:
        """End the process of a session, if there is one."""
        if self.ready:
            self._send(pack_request(END_SESSION, 0, session), [])

    def cpu_seconds(self) -> float:
        """Processor seconds of the interpreter's processes and of reaped children; 0 after its end."""
        return 0.0 if self._process is None else seconds_with_children(self._process.pid)

    def kill(self) -> None:
        """Kill the process at once; ``run`` then cleans up."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    def _start(self, directory: str, link: int) -> subprocess.Popen[bytes]:
        config = self.config
        packages = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
        imports = config.imports or Importable((), ())
        installed = ROOT in map(os.path.realpath, packages)
        ours = [f"{ROOT}/{name}" for name in OURS] if installed else [ROOT]
        seen = visible((*packages, *imports.seen), (*ours, *config.hidden))
        settings = {
            "owner": os.getpid(),
            "directory": directory,
            "root": ROOT,
            "paths": [*imports.folders, *packages],
            "modules": config.modules,
            "calls_functions": config.imports is not None,
            "children": config.children,
            "namespaces": config.level == "strong",
            "filter": filter_program(config.level).hex(),
            "child_filter": child_filter_program(config.level).hex(),
            "server_filter": filter_program(config.level, may_continue=True).hex(),
            "plan": seen.plan,
            "readable": seen.readable,
            "listed": seen.listed,
            "outer_users": outer_users(),
            "scratch": config.scratch.options,
            "groups": config.groups.to_join,
            "shares": [str(path) for path in self._calls],
            "alone": config.groups.alone,
        }
        # -I and -S: no user files and no site-packages hooks; -B: untrusted code writes no bytecode.
        boot = BOOT.format(root=ROOT)
        with os.fdopen(os.memfd_create("settings"), "w+", encoding="utf-8") as file:  # an argument has at most 128 KiB
            json.dump(settings, file)
            file.seek(0)
            # From this thread, not a worker: Linux sends the parent-death signal when the starting *thread* ends.
            return subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", "-X", "utf8", "-c", boot, str(file.fileno())],
                stdin=link,
                stdout=link,
                env=ENVIRONMENT,
                cwd=directory or None,
                start_new_session=True,
                pass_fds=[file.fileno()],
            )

    async def _serve(self, link: socket.socket, task_status: trio.TaskStatus[None]) -> None:
        asked = trio.current_time()
        with trio.move_on_after(self.config.warm_seconds) as warming:
            hello = await _receive(link)
            if not hello:
                starved = self.config.groups.ended_one_since(asked, trio.current_time())
                why = ": the memory limit of all calls together is too small for it" if starved else ""
                raise WarmUpError(f"the interpreter died while it warmed up{why}")
            if REPLY.unpack_from(hello)[0] == FAILED:
                said = json.loads(hello[REPLY.size :])
                if said["stage"] == "isolation":
                    raise NoIsolationError(said["text"])
                raise WarmUpError(f"the interpreter could not warm up:\n{said['text']}")
        if warming.cancelled_caught:
            raise WarmUpError(f"the interpreter was not warm within {self.config.warm_seconds} s")
        self.ready = True
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write, link)
            while data := await _receive(link):
                _, number, verdict, status, seconds = REPLY.unpack_from(data)
                pending = self._pending.pop(number, None)
                if pending is not None:  # None: cancelled in the meantime
                    pending.ended, pending.refusal = (verdict, status, seconds), data[REPLY.size :].decode()
                    pending.done.set()
            nursery.cancel_scope.cancel()

    def _send(self, data: bytes, fds: list[int]) -> None:
        """Send what the socket takes now. Queued descriptors are duplicated, because their call may be cancelled."""
        if not self._outgoing and self._send_now(data, fds):
            return
        self._outgoing.append((data, [os.dup(fd) for fd in fds]))
        self._writable.set()

    def _send_now(self, data: bytes, fds: list[int]) -> bool:
        assert self._link is not None
        try:
            socket.send_fds(self._link, [data], fds)
        except BlockingIOError:
            return False
        except OSError:
            return True  # the reader handles the end of the link
        return True

    async def _write(self, link: socket.socket) -> None:
        while True:
            await self._writable.wait()
            while self._outgoing:
                data, fds = self._outgoing[0]
                if not self._send_now(data, fds):
                    await trio.lowlevel.wait_writable(link)
                    continue
                self._outgoing.popleft()
                for fd in fds:
                    os.close(fd)
            self._writable = trio.Event()

    def _lose(self) -> None:
        """Wake every call in flight without a result, and drop unsent requests."""
        for pending in self._pending.values():
            pending.done.set()
        self._pending.clear()
        for _, fds in self._outgoing:
            for fd in fds:
                os.close(fd)
        self._outgoing.clear()


def packed(request: dict[str, Any]) -> bytes:
    """Encode a request for the child."""
    if request.keys() == {"code"}:
        code: str = request["code"]
        return PLAIN_CODE + code.encode("utf-8", "surrogatepass")
    return json.dumps(request).encode()


async def _receive(link: socket.socket) -> bytes:
    """The next datagram; empty at the end of the link."""
    while True:
        try:
            return link.recv(1 << 16)
        except BlockingIOError:
            await trio.lowlevel.wait_readable(link)
        except ConnectionResetError:
            return b""


async def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process whose link is closed. Kill it and its group after a time limit."""
    if process.poll() is not None:  # `Popen.kill` may have collected it
        return
    with trio.CancelScope(shield=True):
        pidfd = os.pidfd_open(process.pid)
        try:
            with trio.move_on_after(ENDING_SECONDS) as waiting:
                await trio.lowlevel.wait_readable(pidfd)
            if waiting.cancelled_caught:
                os.killpg(process.pid, signal.SIGKILL)
                await trio.lowlevel.wait_readable(pidfd)
        finally:
            os.close(pidfd)
        process.wait()


REPORTED: tuple[ToolOutcome, ...] = ("success", "error", "memory_limit")
"""Outcomes that a child may report itself. A forged one gains no more than `try: ... except: pass` does."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a call ended. ``signal``: the signal that ended its process, or 0; ``goes_on``: its session lives.

    ``ended`` is what this was read from; None when no interpreter ran the call.
    """

    outcome: ToolOutcome
    stdout: str
    stderr: str
    value: str
    signal: int
    goes_on: bool
    ended: Ended | None = None


def ending_of(ended: Ended, output_bytes: int) -> Ending:
    """The outcome, by: memory run out, verdict of the server, too much output, exit status, child's report."""
    stdout, stderr = text_of(ended.stdout, output_bytes), text_of(ended.stderr, output_bytes)
    said, _, result = ended.report.decode("utf-8", "replace").partition("\n")
    outcome: ToolOutcome
    number = max(0, -ended.status)
    if ended.out_of_memory and ended.verdict in (NO_VERDICT, CPU_TIMEOUT):
        outcome = "memory_limit"
        stderr += "The memory of all calls together was used up, and this one was ended.\n"
    elif len(ended.stdout) > output_bytes or len(ended.stderr) > output_bytes:
        outcome = "output_limit"
    elif ended.verdict in (TIMEOUT, CPU_TIMEOUT):
        outcome = "timeout"
    elif ended.verdict == SESSION_LEFT_PROCESSES:
        outcome = "error"
        stderr += "The cell left processes running: its session was ended.\n"
    elif number:
        outcome = "killed"
        stderr += f"The process was ended by signal {number} ({signal.strsignal(number)}).\n"
    elif said in REPORTED and ended.verdict in (NO_VERDICT, SESSION_GOES_ON):
        outcome = next(name for name in REPORTED if name == said)
    else:
        outcome = "error"
        stderr += f"The process ended with status {ended.status} before the code did.\n"
    value = result if outcome == "success" else ""
    return Ending(outcome, stdout, stderr, value, number, ended.verdict == SESSION_GOES_ON, ended)


def text_of(data: bytes, most: int) -> str:
    """Output as text. Invalid UTF-8 is replaced; longer output is cut with a mark."""
    if len(data) <= most:
        return data.decode("utf-8", "replace")
    return f"{data[:most].decode('utf-8', 'ignore')}\n[cut after {most} bytes]\n"
