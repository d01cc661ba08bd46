"""A warm interpreter: forks one child per call, watches over it, and tells its owner how it ended.

Runs as the main program of a fresh interpreter with an empty environment, on the standard library alone::

    owner  <-- one socket, on stdin and stdout: frames of 4-byte length and JSON -->  server (one thread, one poll loop)
                                                                                         |  fork, once per call
           stdin, report: files in memory | stdout, stderr: pipes | exit: pidfd <--   child: limits, then the code

A child reports for itself only success, error and memory_limit. Whether it ran too long, wrote too much or was killed
is judged here, by this process's clock and the exit status. Every child leads a session of its own, so killing its
group takes along what it started; processes that left the group become children of this one (it is a sub-reaper) and
are killed once they are orphans. Needs Linux 5.3 or newer (pidfd).

What is not covered: there are no namespaces, no seccomp filter and no change of user. Code can read the user's files,
use the network, signal any process of the user, and see in its copy of this process's memory what calls beside it
wrote. The limit on processes does not bind for root. If this process is killed (not closed), its children die with it,
but not what they started.
"""

# pathlib and contextlib are memory that every fork would pay for:
# ruff: noqa: PTH101, PTH102, PTH106, PTH114, PTH118, PTH123, SIM105

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import select
import signal
import struct
import sys
import time
import traceback
from typing import Any, NoReturn

from actors.sandbox.child import (
    BROKEN_OFF,
    MAIN,
    PR_SET_PDEATHSIG,
    Request,
    Work,
    check_answer,
    cut,
    leave_server,
    prctl,
    run,
    run_code,
    set_limits,
    set_signal,
)

LENGTH = struct.Struct("!I")
READ_BYTES = 1 << 16
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
WARM_PAIRS = (("\\frac{1}{2}", "0.5"), ("x^2+2x+1", "(x+1)^2"), ("\\{1,2\\}", "(1, 2]"), ("3\\sqrt{2}", "\\sqrt{18}"))
"""Answers a checker compares before its first call, so that every fork inherits what parser and sympy build lazily."""


class OwnerGone(BaseException):
    """The link is closed or the owner has died: end, and leave nothing behind."""


class Farewell:
    """Raises OwnerGone once. An owner's death shows twice, as a signal and on the link; the second must not stop
    the cleaning up that the first began.
    """

    def __init__(self) -> None:
        self.said = False

    def say(self, *_signal_and_frame: object) -> None:
        """Raise OwnerGone, unless that was done."""
        if not self.said:
            self.said = True
            raise OwnerGone


class Call:
    """A child that runs: its process, what it has written so far, and what the server has decided about it."""

    def __init__(self, request: Request, directory: str) -> None:
        self.id: int = request["id"]
        self.directory = directory
        self.output_bytes: int = request["limits"]["output_bytes"]
        self.started = time.monotonic()
        self.deadline: float = self.started + request["limits"]["wall_seconds"]
        self.pid = self.pidfd = -1
        self.report = os.memfd_create("report")
        self.streams: dict[int, bytearray] = {}  # stdout and stderr
        self.verdict = ""

    def take(self, fd: int) -> bool:
        """Read once; False when nothing more is to come, now or at all. Too much of it kills the child."""
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return False
        held = self.streams[fd]
        held += data
        if len(held) > self.output_bytes:
            self.verdict = self.verdict or "output_limit"
            self.kill()
            return False
        return bool(data)

    def kill(self) -> None:
        """Kill the child and its group, as long as it is not reaped."""
        os.kill(self.pid, signal.SIGKILL)
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it does not lead a group yet


class Server:
    """The poll loop: requests in, children watched, replies out."""

    def __init__(self, link: int, farewell: Farewell, directory: str, work: Work) -> None:
        self.link = link
        self.farewell = farewell
        self.directory = directory
        self.work = work
        self.pid = os.getpid()
        self.incoming, self.outgoing = bytearray(), bytearray()
        self.running: dict[int, Call] = {}  # by pid
        self.by_pidfd: dict[int, Call] = {}
        self.by_stream: dict[int, Call] = {}
        self.cleaners: set[int] = set()
        self.directories = 0
        self.null = os.open(os.devnull, os.O_RDONLY)
        self.children_file = os.open(f"/proc/self/task/{self.pid}/children", os.O_RDONLY)
        self.inherited_bytes = 0
        os.set_blocking(link, False)
        self.poll = select.poll()
        self.poll.register(link, select.POLLIN)

    def serve(self) -> NoReturn:
        """Run until the owner is gone (raises OwnerGone)."""
        with open("/proc/self/statm") as statm:
            self.inherited_bytes = int(statm.read().split()[0]) * resource.getpagesize()
        self.reply({"ready": True})
        while True:
            ready = [fd for fd, _ in self.poll.poll(self.milliseconds_to_deadline())]
            for fd in ready:  # ends first: they read what is left in the streams
                if fd in self.by_pidfd:
                    self.finish(self.by_pidfd[fd])
            for fd in ready:
                if fd in self.by_stream and not self.by_stream[fd].take(fd):
                    self.unwatch(fd)
            now = time.monotonic()
            for call in self.running.values():
                if now >= call.deadline and not call.verdict:
                    call.verdict = "timeout"
                    call.kill()
            if self.link in ready:  # last: a descriptor opened now may have the number of one that was ready
                self.receive()
                self.send()

    def milliseconds_to_deadline(self) -> int | None:
        """How long to wait for events; None without end."""
        deadlines = [call.deadline for call in self.running.values() if not call.verdict]
        return max(0, int((min(deadlines) - time.monotonic()) * 1000) + 1) if deadlines else None

    def receive(self) -> None:
        """Take requests off the link and act on them."""
        try:
            data = os.read(self.link, READ_BYTES)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if not data:
            self.farewell.say()
        self.incoming += data
        while len(self.incoming) >= LENGTH.size:
            end = LENGTH.size + LENGTH.unpack_from(self.incoming)[0]
            if len(self.incoming) < end:
                return
            request = json.loads(self.incoming[LENGTH.size : end])
            del self.incoming[:end]
            if "cancel" not in request:
                self.start(request)
            for call in self.running.values():
                if call.id == request.get("cancel"):
                    call.verdict = "cancelled"
                    call.kill()

    def reply(self, message: dict[str, Any]) -> None:
        """Put a message on the link, sent as the owner takes it."""
        data = json.dumps(message).encode()
        self.outgoing += LENGTH.pack(len(data)) + data
        self.send()

    def send(self) -> None:
        """Write what fits: a slow owner must not hold up deadlines."""
        try:
            while self.outgoing:
                del self.outgoing[: os.write(self.link, self.outgoing)]
        except BlockingIOError:
            self.poll.modify(self.link, select.POLLIN | select.POLLOUT)
        except (BrokenPipeError, ConnectionResetError):
            self.farewell.say()
        else:
            self.poll.modify(self.link, select.POLLIN)

    def start(self, request: Request) -> None:
        """Fork the child of one call."""
        self.directories += 1
        call = Call(request, f"{self.directory}/{self.directories}")
        os.mkdir(call.directory, 0o700)
        stdin = memory_file(request["stdin"]) if request.get("stdin") else self.null
        pipes = os.pipe(), os.pipe()
        try:
            call.pid = os.fork()
            if call.pid == 0:
                leave_server(self.pid, (stdin, pipes[0][1], pipes[1][1], call.report), call.directory)
                set_limits(request["limits"], self.inherited_bytes)
                run(self.work, request)
        finally:
            if os.getpid() != self.pid:
                os._exit(BROKEN_OFF)  # whatever happens, a child never returns into the server's loop
        if stdin != self.null:
            os.close(stdin)
        for read, write in pipes:
            os.close(write)
            os.set_blocking(read, False)
            call.streams[read] = bytearray()
            self.by_stream[read] = call
            self.poll.register(read, select.POLLIN)
        call.pidfd = os.pidfd_open(call.pid)
        self.running[call.pid] = self.by_pidfd[call.pidfd] = call
        self.poll.register(call.pidfd, select.POLLIN)

    def unwatch(self, fd: int) -> None:
        """Wait for ``fd`` no longer."""
        if self.by_stream.pop(fd, None) is not None:
            self.poll.unregister(fd)

    def finish(self, call: Call) -> None:
        """The child has exited: end its group, read what is left, judge, reply."""
        call.kill()  # before it is reaped: until then its number can't name another group
        for fd in call.streams:
            while call.take(fd):
                pass
            self.unwatch(fd)
            os.close(fd)
        status = os.waitstatus_to_exitcode(os.waitpid(call.pid, 0)[1])
        seconds = time.monotonic() - call.started
        self.poll.unregister(call.pidfd)
        os.close(call.pidfd)
        del self.running[call.pid], self.by_pidfd[call.pidfd]
        self.kill_orphans()
        reply = judge(call, status)
        os.close(call.report)
        if call.verdict != "cancelled":
            self.reply(reply | {"id": call.id, "run_seconds": seconds})
        try:
            os.rmdir(call.directory)
        except FileNotFoundError:
            pass  # the code removed it
        except OSError:
            self.clean(call.directory)

    def clean(self, directory: str) -> None:
        """Remove what the code left, in a process of its own: a large tree takes long, and the loop has deadlines."""
        pid = os.fork()
        if pid == 0:
            try:
                set_signal(int(signal.SIGTERM), None)
                prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                remove_tree(directory)
            finally:
                os._exit(0)
        self.cleaners.add(pid)

    def kill_orphans(self, wait: int = os.WNOHANG) -> bool:
        """Kill and reap what children of ended calls left behind; False when there was nothing."""
        children = map(int, os.pread(self.children_file, READ_BYTES, 0).split())
        orphans = [pid for pid in children if pid not in self.running]
        for pid in orphans:
            if pid not in self.cleaners:
                os.kill(pid, signal.SIGKILL)
            if os.waitpid(pid, wait)[0]:
                self.cleaners.discard(pid)
        return bool(orphans)

    def kill_all(self) -> None:
        """Kill every process below this one, and wait for them."""
        for call in self.running.values():
            call.kill()
        self.running.clear()
        self.cleaners.clear()
        while self.kill_orphans(wait=0):
            pass  # the next generation has become ours


def judge(call: Call, status: int) -> dict[str, Any]:
    """The outcome: the server's own verdict, then the exit status, then the child's report.

    ``status`` is the exit code, or minus the signal that ended the child.
    """
    stdout, stderr = (cut(held.decode("utf-8", "replace"), call.output_bytes) for held in call.streams.values())
    report = os.pread(call.report, 5 * call.output_bytes + READ_BYTES, 0).decode("utf-8", "replace")
    outcome, _, result = report.partition("\n")
    if call.verdict:
        outcome = call.verdict
    elif status == -signal.SIGXCPU:
        outcome = "timeout"
    elif status < 0:
        outcome = "killed"
        stderr += f"The process was ended by signal {-status} ({signal.strsignal(-status)}).\n"
    elif outcome not in ("success", "error", "memory_limit"):
        outcome = "error"
        stderr += f"The process ended with status {status} before the code did.\n"
    value = result if outcome == "success" else ""
    return {"outcome": outcome, "stdout": stdout, "stderr": stderr, "value": value, "signal": max(0, -status)}


def memory_file(text: str) -> int:
    """A descriptor to read ``text`` from, however long, without anybody having to feed a pipe."""
    fd = os.memfd_create("stdin")
    with os.fdopen(fd, "wb", closefd=False) as file:
        file.write(text.encode("utf-8", "replace"))
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def remove_tree(directory: str) -> None:
    """Remove a directory, whatever the code made of its permissions."""
    import shutil

    shutil.rmtree(directory, ignore_errors=True)
    if os.path.lexists(directory):
        for parent, names, _ in os.walk(directory):
            for path in (os.path.join(parent, name) for name in names):
                if not os.path.islink(path):
                    os.chmod(path, 0o700)
        shutil.rmtree(directory, ignore_errors=True)


def warm_up(modules: list[str], *, checker: bool) -> None:
    """Import what calls will need, and make everything so far exempt from their garbage collections."""
    for module in modules:
        importlib.import_module(module)
    if checker:
        importlib.import_module("logging").disable()  # math-verify says once per process that it sets no alarm
        for gold, prediction in WARM_PAIRS:
            check_answer({"gold": gold, "prediction": prediction})
    gc.collect()
    gc.freeze()


def prepare(owner: int, farewell: Farewell, root: str, paths: list[str]) -> int:
    """Make this process a server; the descriptor of the link to its owner. Raises OwnerGone when that has died."""
    signal.signal(signal.SIGTERM, farewell.say)
    prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))  # and not SIGKILL: the directory is still to be removed
    if os.getppid() != owner:
        farewell.say()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    with open("/proc/self/oom_score_adj", "w") as score:
        score.write("500")  # when memory runs out, better a call than the owner
    link = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)  # what modules print when imported must not get between the frames
    for stream, errors in ((sys.stdin, "replace"), (sys.stdout, "backslashreplace")):
        stream.reconfigure(encoding="utf-8", errors=errors, line_buffering=True)  # type: ignore[union-attr]
    sys.path.remove(root)
    sys.path += paths
    sys.modules["__main__"] = MAIN
    # A call's home and its place for temporary files are its own directory: "./" is made absolute when it is used.
    os.environ["HOME"] = os.environ["TMPDIR"] = "./"
    return link


def main() -> None:
    """Warm up, say so, and serve. ``argv[1]`` is a JSON object: owner, directory, root, paths, modules, checker."""
    config = json.loads(sys.argv.pop())
    server, farewell = None, Farewell()
    try:
        link = prepare(config["owner"], farewell, config["root"], config["paths"])
        server = Server(link, farewell, config["directory"], check_answer if config["checker"] else run_code)
        try:
            warm_up(config["modules"], checker=config["checker"])
        except Exception:  # noqa: BLE001  the owner raises it
            server.reply({"failed": traceback.format_exc()})
        else:
            server.serve()
    except OwnerGone:
        pass
    finally:
        if server is None or server.pid == os.getpid():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if server is not None:
                server.kill_all()
            remove_tree(config["directory"])
