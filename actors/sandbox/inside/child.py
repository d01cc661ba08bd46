"""The child that a warm interpreter forks for one call or session: isolate, wait, run, report, end.

Standard library only. The fork itself is cheap. Each page that the child is the first to touch costs some microseconds.
So this module makes at import what it can make before the fork: functions of libc, the main module.
"""

# pathlib takes memory, and every fork would pay for it:
# ruff: noqa: PTH103, PTH109, PTH113, PTH120, PTH123, PTH202

from __future__ import annotations

import _socket
import _thread
import ast
import atexit
import binascii
import builtins
import ctypes
import importlib
import json
import linecache
import os
import random
import signal
import sys
import traceback
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn, TypeAlias

from actors.sandbox.isolation.kernel import PR_SET_PDEATHSIG, IsolationStep, direct
from actors.sandbox.isolation.rlimits import (
    FILES_FOR_REPORT,
    FILES_WHILE_RUNNING,
    HAND_OVER,
    LIMITS,
    MEMORY_FOR_REPORT,
    MEMORY_WHILE_RUNNING,
    OUTPUT,
    set_limit,
)
from actors.sandbox.wire import DONE_SAID, PLAIN_CODE, receive

CallRequest: TypeAlias = dict[str, Any]
Work: TypeAlias = Callable[[CallRequest], str]
REPORT = 3
"""The descriptor of the request. The report replaces the request: the outcome in the first line, then the result."""
CONTROL = 4
"""The link to the server. Calls come over it, and the further cells of a session. A single call closes all above it."""
BROKEN_OFF = 70
"""Exit status of a child that failed before it could report."""
TAKEN = (REPORT, 1, 2, 0)
"""The numbers that the descriptors of a call get, in the order of their arrival."""
AFTER_INDENTATION = ("", " ", "\t", "\n", "#", ")", "]", "}")
"""A line that begins with one of these cannot begin an unindented statement."""
FIRST_READ = 8192
"""Bytes of a request that are read first. Few requests are longer."""
USER_FILE = "<tool>"
PROGRAM_FILE = "main.py"
"""What a program gets as its own name. There is no such file: a slot without files can be used again."""

MAIN = types.ModuleType("__main__")
"""The module in which model code runs."""
MAIN.__dict__["__builtins__"] = builtins
THREADS = _thread._count  # noqa: SLF001
"""The number of threads that were started from Python and have not ended."""
RESEED = super(random.Random, random._inst).seed  # noqa: SLF001
"""Reseeds the standard generator, by default from the kernel. The C class touches the fewest pages."""


def leaving(control: ctypes.c_int) -> list[IsolationStep]:
    """The steps by which a child leaves the forker's group and closes descriptors, except ``control`` and 0 to REPORT.

    The call's descriptors replace these. Most calls bring no input, so stdin is opened anew: the processes that inherit
    an open file share its flags and locks, and one call would change them for the next.
    """
    return [
        (direct.setsid, ()),
        (direct.close, (0,)),
        (direct.open, (os.devnull.encode(), os.O_RDONLY)),
        (direct.dup3, (control, CONTROL, os.O_CLOEXEC)),
        (os.closerange, (CONTROL + 1, 1 << 20)),
        # After the last change of credentials, which would undo this:
        (direct.prctl, (PR_SET_PDEATHSIG, int(signal.SIGKILL))),
    ]


def take(steps: list[IsolationStep]) -> None:
    """Take each step. End the process when a step fails."""
    for step, arguments in steps:
        if step(*arguments) == -1:
            os._exit(BROKEN_OFF)


def reseed() -> None:
    """Seed the random generators that the call's code may use."""
    RESEED()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(int.from_bytes(os.urandom(4), "little"))
    if "sympy" in sys.modules:
        sys.modules["sympy.core.random"].rng.seed()


def run(work: Work, control: _socket.socket) -> NoReturn:
    """Wait for a call, do ``work`` on its request, report the end, and end the process without running exit handlers.

    A session continues with its next cell. The limits of a call apply from its arrival on.
    """
    limits = run_call(work, control)
    while True:
        try:
            control.send(DONE_SAID)
        except OSError:
            os._exit(0)  # the code has closed the link: the server sees the exit instead
        if not limits[0]:
            os._exit(0)
        _, fds = receive(control, 16)
        if len(fds) < 3:
            os._exit(0)
        if len(fds) == 3:
            fds.append(os.open(os.devnull, os.O_RDONLY))
        take_files(fds)
        for limit in (MEMORY_WHILE_RUNNING, FILES_WHILE_RUNNING):
            set_limit(limits, limit)
        reopen_streams()
        run_once(work, limits)


def run_call(work: Work, control: _socket.socket) -> bytes:
    """Wait for a call, set its limits, run it and report. Returns the data that came with the call (see HAND_OVER)."""
    data, fds = receive(control, HAND_OVER.size)
    if not data:
        os._exit(0)  # the server has ended
    take_files(fds)
    for limit in LIMITS:
        if not set_limit(data, limit):
            os._exit(BROKEN_OFF)
    run_once(work, data)
    return data


def take_files(fds: list[int]) -> None:
    """Install the call's descriptors as the report and the standard streams."""
    for at, fd in enumerate(fds):
        os.dup2(fd, TAKEN[at], TAKEN[at] < REPORT)
        os.close(fd)


def reopen_streams() -> None:
    """Give a cell new standard streams, without the state in which the last cell left them."""
    for name, fd, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        stream = open(fd, mode, encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def run_once(work: Work, limits: bytes) -> None:
    """Do ``work`` on the request in the report's descriptor. The report replaces the request.

    A traceback goes to stderr, as in any interpreter.
    """
    outcome, result, note, request = "success", "", "", {}
    output_bytes = int.from_bytes(limits[OUTPUT], sys.byteorder)
    try:
        request = read_request()
        result = work(request)
    except SystemExit as end:
        if end.code not in (None, 0):
            outcome, note = "error", f"SystemExit: {end.code}\n"
    except BaseException as error:  # noqa: BLE001  reported as the outcome
        outcome = "memory_limit" if isinstance(error, MemoryError) else "error"
        set_limit(limits, MEMORY_FOR_REPORT)
        note = cut(traceback_text(error, request), output_bytes // 4)
    for stream, text in ((sys.__stdout__, ""), (sys.__stderr__, note)):
        try:
            if stream is not None:
                if text:
                    stream.write(text)
                stream.flush()
        except (OSError, ValueError):
            pass  # the code closed the stream
    set_limit(limits, FILES_FOR_REPORT)
    data = f"{outcome}\n{cut(result, output_bytes)}".encode("utf-8", "backslashreplace")
    os.ftruncate(REPORT, 0)
    written = 0
    while written < len(data):
        written += os.pwrite(REPORT, data[written:], written)


def read_request() -> CallRequest:
    """Read the request."""
    data = os.pread(REPORT, FIRST_READ, 0)
    if len(data) == FIRST_READ:
        size = os.fstat(REPORT).st_size
        while len(data) < size:
            data += os.pread(REPORT, size - len(data), len(data))
    if data.startswith(PLAIN_CODE):
        return {"code": data[1:].decode("utf-8", "surrogatepass")}
    request: CallRequest = json.loads(data)
    return request


def cut(text: str, length: int) -> str:
    """At most ``length`` characters of ``text``, with a mark where text was cut."""
    return text if len(text) <= length else f"{text[:length]}\n[cut after {length} characters]\n"


def traceback_text(error: BaseException, request: CallRequest) -> str:
    """The traceback as text, from the first frame of the model's code or of the called function."""
    if "function" in request:
        called = error.__traceback__ and error.__traceback__.tb_next and error.__traceback__.tb_next.tb_next
        return "".join(traceback.format_exception(type(error), error, called))
    source = request.get("code", "")
    linecache.cache[USER_FILE] = (len(source), None, source.splitlines(keepends=True), USER_FILE)
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != USER_FILE:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))


def run_code(request: CallRequest) -> str:
    """Run model code as the main module. The result is the value of the last statement if that is an expression."""
    if "program" in request:
        return run_program(request)
    namespace = MAIN.__dict__
    for code in request.get("earlier", ()):  # cells of a lost session
        run_again(code, namespace)
    statements, expression = compiled_apart(request["code"])
    exec(statements, namespace)  # noqa: S102
    value = None if expression is None else eval(expression, namespace)  # noqa: S307
    result = "" if value is None else repr(value)
    if THREADS() and "threading" in sys.modules and not request.get("session"):
        threading = sys.modules["threading"]
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
    return result


def run_program(request: CallRequest) -> str:
    """Run code as ``python main.py`` does, between writing and reading files (base64, by path).

    The result is a JSON object: ``status``, that the process would have exited with, ``files``, and ``fault``, which
    says why a file could not be written or read.
    """
    files, fetch, most, seconds = request["program"]
    try:
        write_files(files)
    except (OSError, ValueError) as error:
        return json.dumps({"fault": f"files: {error}; give base64, by paths that begin at the working directory"})
    sys.argv[:] = [PROGRAM_FILE]
    sys.path.insert(0, os.getcwd())
    MAIN.__dict__["__file__"] = PROGRAM_FILE
    signal.setitimer(signal.ITIMER_REAL, seconds)  # exact: the server may see the time limit late, on a busy machine
    status = 0
    try:
        exec(compile(request["code"], USER_FILE, "exec", dont_inherit=True), MAIN.__dict__)  # noqa: S102
    except SystemExit as end:
        status = end.code & 0xFF if isinstance(end.code, int) else int(end.code is not None)
        if status and not isinstance(end.code, int):
            sys.stderr.write(f"{end.code}\n")
    except MemoryError:
        raise  # the limit must be raised before the traceback can be written
    except BaseException as error:  # noqa: BLE001  reported as the status
        status = 1
        sys.stderr.write(traceback_text(error, request))
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()  # noqa: SLF001
    atexit._run_exitfuncs()  # noqa: SLF001
    with suppress(OSError, ValueError, AttributeError):  # the code may have closed or replaced the stream
        sys.stdout.flush()
    try:
        return json.dumps({"status": status, "files": read_files(fetch, most)})
    except (OSError, ValueError) as error:
        return json.dumps({"status": status, "fault": f"fetch_files: {error}; fetch fewer or smaller files"})


def write_files(files: dict[str, str]) -> None:
    """Write files, which may be executed. Raises OSError, and ValueError for what is not base64."""
    for path, content in files.items():
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o700)
        with open(fd, "wb") as file:
            file.write(binascii.a2b_base64(content))


def read_files(paths: list[str], most: int) -> dict[str, str]:
    """Those of the files that exist, in at most ``most`` characters of base64. Raises OSError, ValueError."""
    found = {}
    for path in paths:
        if os.path.isfile(path):
            if os.path.getsize(path) * 4 // 3 > most:
                raise ValueError(f"they have more than {most} characters of base64 in all; {path!r} is one too many")
            with open(path, "rb") as file:
                found[path] = binascii.b2a_base64(file.read(), newline=False).decode()
            most -= len(found[path]) + 6 * len(path) + 8  # as JSON, at most
    return found


def compiled_apart(code: str) -> tuple[types.CodeType, types.CodeType | None]:
    """Compile code without its last statement, and that statement if it is an expression. Raises what ``compile`` does.

    Usually the last unindented line begins the last statement. If both parts compile, this split is right, and no
    syntax tree of the whole code is needed. Each node of a tree is memory that the child is the first to touch.
    """
    at = code.rfind("\n") + 1
    while at and code[at : at + 1] in AFTER_INDENTATION:
        at = code.rfind("\n", 0, at - 1) + 1
    if code[at : at + 1] not in AFTER_INDENTATION and "\r" not in code:  # else lines are not what they seem
        try:
            expression = compile("\n" * code.count("\n", 0, at) + code[at:], USER_FILE, "eval", dont_inherit=True)
            return compile(code[:at], USER_FILE, "exec", dont_inherit=True), expression
        except SyntaxError:
            pass
    tree = ast.parse(code, USER_FILE)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        return compile(tree, USER_FILE, "exec", dont_inherit=True), None
    tree.body.pop()
    expression = compile(ast.Expression(last.value), USER_FILE, "eval", dont_inherit=True)
    return compile(tree, USER_FILE, "exec", dont_inherit=True), expression


def run_again(code: str, namespace: dict[str, Any]) -> None:
    """Run an earlier cell of a session for its effect on the namespace. Its output and errors were reported before."""
    saved = [os.dup(fd) for fd in (0, 1, 2)]
    null = os.open(os.devnull, os.O_RDWR)
    try:
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        exec(compile(code, USER_FILE, "exec", dont_inherit=True), namespace)  # noqa: S102
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001, S110  reported when the cell ran first
        pass
    finally:
        os.close(null)
        for fd, old in enumerate(saved):
            os.dup2(old, fd)
            os.close(old)


def call_function(request: CallRequest) -> str:
    """Call the named function with the given texts. It returns a text or None, and may use any time or memory."""
    module, _, name = request["function"].partition(":")
    result = getattr(importlib.import_module(module), name)(*request["arguments"])
    if not isinstance(result, str | None):
        raise TypeError(
            f"{request['function']} returned a value of type {type(result).__name__}; it must return a text"
        )
    return result or ""
