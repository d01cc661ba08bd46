"""What happens in the child that a warm interpreter forks for one call: seal it off, run, report, end.

Standard library only. A fork costs little; what costs is each page that the child is the first to touch after it (some
microseconds). So what can be made before the fork is made here at import: functions of libc, the main module.
"""

# pathlib is memory that every fork would pay for:
# ruff: noqa: PTH123

from __future__ import annotations

import ast
import builtins
import ctypes
import importlib
import linecache
import os
import resource
import signal
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

Request: TypeAlias = dict[str, Any]
Work: TypeAlias = Callable[[Request], str]
REPORT = 3
"""The descriptor a child reports on: a file in memory. Its first line is the outcome, the rest the result."""
REPORTING_BYTES = 64 << 20
"""Address space a child gets on top of its limit once its code has ended, so that it can report having run out."""
BROKEN_OFF = 70
"""Exit status of a child that could not even report."""
USER_FILE = "<tool>"
PR_SET_PDEATHSIG = 1

prctl = ctypes.CDLL(None).prctl
set_signal = ctypes.CDLL(None).signal
MAIN = types.ModuleType("__main__")
"""The module that model code is."""
MAIN.__dict__["__builtins__"] = builtins


def leave_server(server: int, fds: tuple[int, ...], directory: str) -> None:
    """Leave everything of the server's behind except its memory. ``fds`` become 0, 1, 2 and the report."""
    set_signal(int(signal.SIGTERM), None)
    os.setsid()
    prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != server:
        os._exit(BROKEN_OFF)
    for target, fd in enumerate(fds):  # none of the sources is below 3, so none is overwritten before its turn
        os.dup2(fd, target, target != REPORT)
    os.closerange(REPORT + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    os.chdir(directory)


def set_limits(limits: dict[str, Any], inherited_bytes: int) -> None:
    """Set the resource limits of this process; CPU in whole seconds, as the kernel has it."""
    cpu = max(1, int(-(-limits["cpu_seconds"] // 1)))
    memory = inherited_bytes + limits["memory_bytes"]
    files = limits["file_bytes"]
    bounds = [
        (resource.RLIMIT_CPU, cpu, cpu + 1),
        (resource.RLIMIT_AS, memory, memory + REPORTING_BYTES),
        (resource.RLIMIT_FSIZE, files, max(files, 8 * limits["output_bytes"])),
        (resource.RLIMIT_NOFILE, limits["open_files"], limits["open_files"]),
        (resource.RLIMIT_CORE, 0, 0),
    ]
    if os.geteuid() != 0:  # root is exempt from it
        # The kernel counts all of the user's tasks: the room is what the machine has now and the limit on top.
        with open("/proc/loadavg") as load:
            tasks = int(load.read().split()[3].split("/")[1]) + limits["processes"]
        bounds.append((resource.RLIMIT_NPROC, tasks, tasks))
    for limit, soft, hard in bounds:
        ceiling = resource.getrlimit(limit)[1]
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)  # noqa: PLW2901
        resource.setrlimit(limit, (soft, hard))


def run(work: Work, request: Request) -> NoReturn:
    """Do ``work``, report how it ended, and end the process, running nothing the code has registered.

    A traceback goes to stderr, as any interpreter's does.
    """
    outcome, result, note = "success", "", ""
    try:
        result = work(request)
    except SystemExit as end:
        if end.code not in (None, 0):
            outcome, note = "error", f"SystemExit: {end.code}\n"
    except BaseException as error:  # noqa: BLE001  it is not lost: it is what is reported
        outcome = "memory_limit" if isinstance(error, MemoryError) else "error"
        raise_limit(resource.RLIMIT_AS)
        note = cut(traceback_text(error, request), request["limits"]["output_bytes"] // 4)
    for stream, text in ((sys.__stdout__, ""), (sys.__stderr__, note)):
        try:
            if stream is not None:
                stream.write(text)
                stream.flush()
        except (OSError, ValueError):
            pass  # the code closed it
    raise_limit(resource.RLIMIT_FSIZE)
    data = f"{outcome}\n{cut(result, request['limits']['output_bytes'])}".encode("utf-8", "backslashreplace")
    while data:
        data = data[os.write(REPORT, data) :]
    os._exit(0)


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
    if "numpy" in sys.modules:  # the standard library reseeds its own generator after a fork
        sys.modules["numpy"].random.seed()
    tree = ast.parse(request["code"], USER_FILE)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, USER_FILE, "exec", dont_inherit=True), namespace)  # noqa: S102
    value = None
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), USER_FILE, "eval", dont_inherit=True), namespace)  # noqa: S307
    result = "" if value is None else repr(value)
    if "threading" in sys.modules:
        threading = sys.modules["threading"]
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
    return result


def check_answer(request: Request) -> str:
    """Judge a prediction: method and verdict. Runs no code, but a parser may take any time or memory."""
    rewards = importlib.import_module("agent_rl.rewards")
    equal, method = rewards.exactly_equal(request["gold"], request["prediction"]), "exact"
    if equal is None:
        equal, method = rewards.answers_equal(request["gold"], request["prediction"]), "symbolic"
    return f"{method} {'equal' if equal else 'different'}"
