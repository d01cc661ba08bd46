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
from typing import Any, NoReturn, TypeAlias

from actors.sandbox.isolation.kernel import PR_SET_PDEATHSIG, Step, direct
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

Request: TypeAlias = dict[str, Any]
Work: TypeAlias = Callable[[Request], str]
REPORT = 3
"""The descriptor of the request, where the report goes too: its first line is the outcome, the rest the result."""
CONTROL = 4
"""The link to the server: where the call comes from, and a session's further cells. What is above it is closed in a single call."""
BROKEN_OFF = 70
"""Exit status of a child that could not even report."""
TAKEN = (REPORT, 1, 2, 0)
"""The numbers that a call's descriptors get, in the order in which they come."""
AFTER_INDENTATION = ("", " ", "\t", "\n", "#", ")", "]", "}")
"""What a line begins with that begins no statement without indentation."""
FIRST_READ = 8192
"""Bytes of a request that are read at once: most have no more."""
USER_FILE = "<tool>"

MAIN = types.ModuleType("__main__")
"""The module that model code is."""
MAIN.__dict__["__builtins__"] = builtins
THREADS = _thread._count  # noqa: SLF001
"""How many threads have been started from Python and not ended."""
RESEED = super(random.Random, random._inst).seed  # noqa: SLF001
"""Reseeds the standard generator; without arguments from the kernel. That of the class in C, which touches fewest pages."""


def leaving(control: ctypes.c_int) -> list[Step]:
    """The steps by which a child leaves the forker's group, and its descriptors but ``control`` and those up to REPORT.

    What the call brings takes the place of these, but mostly no input. That is opened anew: flags and locks of an open file are common
    to all who inherit it, so one call's would be the next one's too.
    """
    return [
        (direct.setsid, ()),
        (direct.close, (0,)),
        (direct.open, (os.devnull.encode(), os.O_RDONLY)),
        (direct.dup3, (control, CONTROL, os.O_CLOEXEC)),
        (os.closerange, (CONTROL + 1, 1 << 20)),
        # Once credentials no longer change, which would undo it:
        (direct.prctl, (PR_SET_PDEATHSIG, int(signal.SIGKILL))),
    ]


def take(steps: list[Step]) -> None:
    """Take each of the steps, or end the process where one fails."""
    for step, arguments in steps:
        if step(*arguments) == -1:
            os._exit(BROKEN_OFF)


def reseed() -> None:
    """Give this process random numbers of its own, where its code may look for them."""
    RESEED()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(int.from_bytes(os.urandom(4), "little"))
    if "sympy" in sys.modules:
        sys.modules["sympy.core.random"].rng.seed()


def run(work: Work, control: _socket.socket) -> NoReturn:
    """Wait for a call; do ``work`` on its request, report how it ended, and end the process, running nothing the code has registered.

    A session goes on with the next cell. The limits of a call hold from its arrival on.
    """
    limits = run_call(work, control)
    while True:
        try:
            control.send(DONE_SAID)
        except OSError:
            os._exit(0)  # the code has closed it: then the end of the process says so
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
    """Wait for a call, set its limits, run it, report. What came with it (see HAND_OVER)."""
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
    """Make the call's descriptors the report and the standard streams."""
    for at, fd in enumerate(fds):
        os.dup2(fd, TAKEN[at], TAKEN[at] < REPORT)
        os.close(fd)


def reopen_streams() -> None:
    """Give the cell standard streams that remember nothing of the last one's, nor of what it did to them."""
    for name, fd, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        stream = open(fd, mode, encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def run_once(work: Work, limits: bytes) -> None:
    """Do ``work`` on the request in the report's descriptor; the report takes its place.

    A traceback goes to stderr, as any interpreter's does.
    """
    outcome, result, note, request = "success", "", "", {}
    output_bytes = int.from_bytes(limits[OUTPUT], sys.byteorder)
    try:
        request = read_request()
        result = work(request)
    except SystemExit as end:
        if end.code not in (None, 0):
            outcome, note = "error", f"SystemExit: {end.code}\n"
    except BaseException as error:  # noqa: BLE001  it is not lost: it is what is reported
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
            pass  # the code closed it
    set_limit(limits, FILES_FOR_REPORT)
    data = f"{outcome}\n{cut(result, output_bytes)}".encode("utf-8", "backslashreplace")
    os.ftruncate(REPORT, 0)
    written = 0
    while written < len(data):
        written += os.pwrite(REPORT, data[written:], written)


def read_request() -> Request:
    """What the call is."""
    data = os.pread(REPORT, FIRST_READ, 0)
    if len(data) == FIRST_READ:
        size = os.fstat(REPORT).st_size
        while len(data) < size:
            data += os.pread(REPORT, size - len(data), len(data))
    if data.startswith(PLAIN_CODE):
        return {"code": data[1:].decode("utf-8", "surrogatepass")}
    request: Request = json.loads(data)
    return request


def cut(text: str, length: int) -> str:
    """At most ``length`` characters of ``text``, and a mark where the rest was."""
    return text if len(text) <= length else f"{text[:length]}\n[cut after {length} characters]\n"


def traceback_text(error: BaseException, request: Request) -> str:
    """The traceback as text, starting at the code's own first frame, or at that of the function called."""
    if "function" in request:
        called = error.__traceback__ and error.__traceback__.tb_next and error.__traceback__.tb_next.tb_next
        return "".join(traceback.format_exception(type(error), error, called))
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


def compiled_apart(code: str) -> tuple[types.CodeType, types.CodeType | None]:
    """Code without its last statement, and that, if it is an expression; otherwise all of it. Raises what ``compile`` does.

    Mostly the last statement begins where the last line does that is not indented. If both sides of that place compile, then so it is, and no
    tree of the whole code is needed, of which each node is memory that the child is the first to touch.
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


def call_function(request: Request) -> str:
    """Call the function that is named with the texts given; its result is a text, or nothing. It may take any time or memory."""
    module, _, name = request["function"].partition(":")
    result = getattr(importlib.import_module(module), name)(*request["arguments"])
    if not isinstance(result, str | None):
        raise TypeError(
            f"{request['function']} returned a value of type {type(result).__name__}; it must return a text"
        )
    return result or ""
