"""What happens in the child that a warm interpreter forks for one call or session: seal it off, wait, run, report, end.

Standard library only. A fork costs little; what costs is each page that the child is the first to touch after it (some
microseconds). So what can be made before the fork is made here at import: functions of libc, the main module.
"""

# pathlib is memory that every fork would pay for:

from __future__ import annotations

import _socket
import _thread
import ast
import builtins
import importlib
import json
import linecache
import os
import random
import resource
import signal
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, TypeAlias

from actors.sandbox.kernel import PR_SET_PDEATHSIG, prctl, set_signal
from actors.sandbox.wire import DONE_SAID, HAND_OVER, PLAIN_CODE, receive

Request: TypeAlias = dict[str, Any]
Work: TypeAlias = Callable[[Request], str]
REPORT = 3
"""The descriptor of the request, where the report goes too: its first line is the outcome, the rest the result."""
CONTROL = 4
"""The link to the server: where the call comes from, and a session's further cells. What is above it is closed in a single call."""
REPORTING_BYTES = 64 << 20
"""Address space a child gets on top of its limit once its code has ended, so that it can report having run out."""
BROKEN_OFF = 70
"""Exit status of a child that could not even report."""
SESSION_CPU_SECONDS = 3600
"""CPU time of a whole session; each of its cells has the call's wall limit."""
USER_FILE = "<tool>"

MAIN = types.ModuleType("__main__")
"""The module that model code is."""
MAIN.__dict__["__builtins__"] = builtins
THREADS = _thread._count  # noqa: SLF001
"""How many threads have been started from Python and not ended."""
RESEED = super(random.Random, random._inst).seed  # noqa: SLF001
"""Reseeds the standard generator; without arguments from the kernel. That of the class in C, which touches fewest pages."""


class Bounds(NamedTuple):
    """The limits of a call as a request carries them."""

    wall_seconds: float
    cpu_seconds: int
    memory_bytes: int
    output_bytes: int
    file_bytes: int
    open_files: int
    processes: int


def leave_server(control: int, null: int) -> None:
    """Leave the server's terminal, group and descriptors. What is left are the link to it, and nothing to read or write."""
    set_signal(int(signal.SIGTERM), None)
    os.setsid()
    for target in (0, 1, 2, REPORT):  # neither source is below 5, so none is overwritten before its turn
        os.dup2(null, target, target < REPORT)
    os.dup2(control, CONTROL, False)
    os.closerange(CONTROL + 1, 1 << 20)


def reseed() -> None:
    """Give this process random numbers of its own, where its code may look for them."""
    RESEED()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(int.from_bytes(os.urandom(4), "little"))


def die_with_parent() -> None:
    """Ask to be killed when the server ends: to be called once credentials no longer change, which would undo it."""
    prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))


def set_limits(
    bounds: Bounds, inherited_bytes: int, processes: int | None, cpu_seconds: int, most: dict[int, int]
) -> None:
    """Set the resource limits of this process. ``processes`` is the user's new total of tasks, None where it can't bind.

    ``most``: the limits that may not be exceeded, as ``ceilings`` found them.
    """
    memory, files = inherited_bytes + bounds.memory_bytes, bounds.file_bytes
    limits = [
        (resource.RLIMIT_CPU, cpu_seconds, cpu_seconds + 1),
        (resource.RLIMIT_AS, memory, memory + REPORTING_BYTES),
        (resource.RLIMIT_FSIZE, files, max(files, 8 * bounds.output_bytes)),
        (resource.RLIMIT_NOFILE, bounds.open_files, bounds.open_files),
    ]
    if processes is not None:
        limits.append((resource.RLIMIT_NPROC, processes, processes))
    for limit, soft, hard in limits:
        if limit in most:
            soft, hard = min(soft, most[limit]), min(hard, most[limit])  # noqa: PLW2901
        resource.setrlimit(limit, (soft, hard))


def ceilings() -> dict[int, int]:
    """What this process may not exceed, by limit; and set what its children have none of, once for all of them."""
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_MSGQUEUE):
        resource.setrlimit(limit, (0, 0))
    limits = (
        resource.RLIMIT_CPU,
        resource.RLIMIT_AS,
        resource.RLIMIT_FSIZE,
        resource.RLIMIT_NOFILE,
        resource.RLIMIT_NPROC,
    )
    hard = {limit: resource.getrlimit(limit)[1] for limit in limits}
    return {limit: most for limit, most in hard.items() if most != resource.RLIM_INFINITY}


def run(work: Work, inherited_bytes: int, most: dict[int, int]) -> NoReturn:
    """Wait for a call; do ``work`` on its request, report how it ended, and end the process, running nothing the code has registered.

    A session goes on with the next cell. The limits of a call hold from its arrival on.
    """
    control = _socket.socket(fileno=CONTROL)
    data, fds = receive(control, HAND_OVER.size)
    if not data:
        os._exit(0)  # the server has ended
    is_session, *limits, processes = HAND_OVER.unpack(data)
    bounds = Bounds(*limits)
    take_files(fds)
    cpu_seconds = SESSION_CPU_SECONDS if is_session else bounds.cpu_seconds
    set_limits(bounds, inherited_bytes, None if processes < 0 else processes, cpu_seconds, most)
    soft = [
        (limit, resource.getrlimit(limit)[0]) for limit in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE) if is_session
    ]
    while True:
        run_once(work, bounds.output_bytes)
        try:
            control.send(DONE_SAID)
        except OSError:
            os._exit(0)  # the code has closed it: then the end of the process says so
        if not is_session:
            os._exit(0)
        _, fds = receive(control, 16)
        if len(fds) < 3:
            os._exit(0)
        if len(fds) == 3:
            fds.append(os.open(os.devnull, os.O_RDONLY))
        take_files(fds)
        for limit, value in soft:
            resource.setrlimit(limit, (value, resource.getrlimit(limit)[1]))
        reopen_streams()


def take_files(fds: list[int]) -> None:
    """Make the call's descriptors the report and the standard streams."""
    for target, fd in zip((REPORT, 1, 2, 0), fds, strict=False):
        os.dup2(fd, target, target < REPORT)
    for fd in fds:
        os.close(fd)


def reopen_streams() -> None:
    """Give the cell standard streams that remember nothing of the last one's, nor of what it did to them."""
    for name, fd, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        stream = open(fd, mode, encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def run_once(work: Work, output_bytes: int) -> None:
    """Do ``work`` on the request in the report's descriptor; the report takes its place.

    A traceback goes to stderr, as any interpreter's does.
    """
    outcome, result, note, request = "success", "", "", {}
    try:
        request = read_request()
        result = work(request)
    except SystemExit as end:
        if end.code not in (None, 0):
            outcome, note = "error", f"SystemExit: {end.code}\n"
    except BaseException as error:  # noqa: BLE001  it is not lost: it is what is reported
        outcome = "memory_limit" if isinstance(error, MemoryError) else "error"
        raise_limit(resource.RLIMIT_AS)
        note = cut(traceback_text(error, request), output_bytes // 4)
    for stream, text in ((sys.__stdout__, ""), (sys.__stderr__, note)):
        try:
            if stream is not None:
                stream.write(text)
                stream.flush()
        except (OSError, ValueError):
            pass  # the code closed it
    raise_limit(resource.RLIMIT_FSIZE)
    data = f"{outcome}\n{cut(result, output_bytes)}".encode("utf-8", "backslashreplace")
    os.ftruncate(REPORT, 0)
    written = 0
    while written < len(data):
        written += os.pwrite(REPORT, data[written:], written)


def read_request() -> Request:
    """What the call is."""
    size = os.fstat(REPORT).st_size
    data = os.pread(REPORT, size, 0)
    while len(data) < size:
        data += os.pread(REPORT, size - len(data), len(data))
    if data.startswith(PLAIN_CODE):
        return {"code": data[1:].decode("utf-8", "surrogatepass")}
    request: Request = json.loads(data)
    return request


def raise_limit(limit: int) -> None:
    """Give this process what was kept in reserve for reporting."""
    hard = resource.getrlimit(limit)[1]
    resource.setrlimit(limit, (hard, hard))


def cut(text: str, length: int) -> str:
    """At most ``length`` characters of ``text``, and a mark where the rest was."""
    return text if len(text) <= length else f"{text[:length]}\n[cut after {length} characters]\n"


def traceback_text(error: BaseException, request: Request) -> str:
    """The traceback as text, starting at the code's own first frame."""
    source = request.get("code", "")
    linecache.cache[USER_FILE] = (len(source), None, source.splitlines(keepends=True), USER_FILE)
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != USER_FILE:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))


def run_code(request: Request) -> str:
    """Run model code as the main module; its result is the value of its last statement, where that is an expression."""
    namespace = MAIN.__dict__
    for code in request.get("earlier", ()):  # a session that is rebuilt
        run_again(code, namespace)
    tree = ast.parse(request["code"], USER_FILE)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, USER_FILE, "exec", dont_inherit=True), namespace)  # noqa: S102
    value = None
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), USER_FILE, "eval", dont_inherit=True), namespace)  # noqa: S307
    result = "" if value is None else repr(value)
    if THREADS() and "threading" in sys.modules and not request.get("session"):
        threading = sys.modules["threading"]
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
    return result


def run_again(code: str, namespace: dict[str, Any]) -> None:
    """Run an earlier cell of a session for its effect on the namespace: what it prints, or raises, was told then."""
    held = [os.dup(fd) for fd in (0, 1, 2)]
    null = os.open(os.devnull, os.O_RDWR)
    try:
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        exec(compile(code, USER_FILE, "exec", dont_inherit=True), namespace)  # noqa: S102
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001, S110  the model was told when it ran the cell
        pass
    finally:
        os.close(null)
        for fd, old in enumerate(held):
            os.dup2(old, fd)
            os.close(old)


def check_answer(request: Request) -> str:
    """Judge a prediction: method and verdict. Runs no code, but a parser may take any time or memory."""
    rewards = importlib.import_module("agent_rl.rewards")
    equal, method = rewards.exactly_equal(request["gold"], request["prediction"]), "exact"
    if equal is None:
        equal, method = rewards.answers_equal(request["gold"], request["prediction"]), "symbolic"
    return f"{method} {'equal' if equal else 'different'}"
