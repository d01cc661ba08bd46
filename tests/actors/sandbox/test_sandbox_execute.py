"""What model code experiences: outcomes, streams, values, limits. Real processes, real time."""

from __future__ import annotations

import pytest
import trio

from actors.sandbox.owner.client import ExecutionLimits, Sandbox, Weights
from actors.sandbox.owner.interpreter import WarmUpError
from agent_rl.environments.base import ToolOutput
from tests.actors.sandbox.running import execute_all, require, run_with

SHORT = ExecutionLimits(wall_seconds=0.4)


def execute(code: str, stdin: str = "", limits: ExecutionLimits | None = None) -> ToolOutput:
    return run_with(Sandbox(), lambda sandbox: sandbox.execute(code, stdin, limits=limits))


def test_what_is_printed_and_the_value_of_the_last_expression_come_back() -> None:
    printed, value, both, nothing, no_expression = execute_all(
        ["print(6 * 7)", "x = 6\nx * 7", "print('a')\n'b'", "None", "x = 42"]
    )
    assert (printed.outcome, printed.stdout, printed.value) == ("success", "42\n", "")
    assert (value.outcome, value.stdout, value.value) == ("success", "", "42")
    assert (both.stdout, both.value) == ("a\n", "'b'")
    assert (nothing.value, no_expression.value) == ("", "")
    assert printed.stderr == ""
    assert printed.run_seconds > 0
    assert printed.queue_seconds > 0


def test_standard_input_is_the_given_text_however_long() -> None:
    result = execute("import sys\nfirst = input()\nprint(first, len(sys.stdin.read()))", "héllo\n" + "x" * 500_000)
    assert result.stdout == "héllo 500000\n"
    assert execute("input()").stderr.endswith("EOFError: EOF when reading a line\n")


def test_a_traceback_starts_at_the_code_and_shows_its_lines() -> None:
    result = execute("print('before')\ndef f():\n    return 1 / 0\nf()")
    assert result.outcome == "error"
    assert result.stdout == "before\n"
    assert result.stderr == (
        "Traceback (most recent call last):\n"
        '  File "<tool>", line 4, in <module>\n'
        "    f()\n"
        '  File "<tool>", line 3, in f\n'
        "    return 1 / 0\n"
        "           ~~^~~\n"
        "ZeroDivisionError: division by zero\n"
    )


def test_code_that_is_no_code_is_an_error() -> None:
    unclosed, nul, surrogate, bad_repr = execute_all(
        ["x = [", "x\0", "\ud800 = 1", "class A:\n    def __repr__(self): raise ValueError('no')\nA()"]
    )
    assert {result.outcome for result in (unclosed, nul, surrogate, bad_repr)} == {"error"}
    assert "SyntaxError: '[' was never closed" in unclosed.stderr
    assert "null bytes" in nul.stderr
    assert "surrogates not allowed" in surrogate.stderr
    assert bad_repr.stderr.endswith("ValueError: no\n")


def test_text_that_utf8_cannot_hold_does_not_break_the_framing() -> None:
    printed, value, bytes_, stdin = execute_all(
        [
            "print('\\ud800')",
            "class A:\n    def __repr__(self): return '\\ud800'\nA()",
            "import os\n_ = os.write(1, b'\\xff\\n')",
            "import sys\nsys.stdin.read()",
        ]
    )
    assert printed.stdout == "\\ud800\n"
    assert value.value == "\\ud800"
    assert bytes_.stdout == "\ufffd\n"
    assert stdin.outcome == "success"
    assert execute("import sys\nsys.stdin.read()", "a\ud800\0b").value == r"'a?\x00b'"


def test_exits_are_told_apart() -> None:
    zero, message, hard, signalled = execute_all(
        [
            "import sys\nprint('x')\nsys.exit()",
            "import sys\nsys.exit('enough')",
            "import os\nprint('x')\nos._exit(3)",
            "import os\nos.abort()",
        ]
    )
    assert (zero.outcome, zero.stdout) == ("success", "x\n")
    assert (message.outcome, message.stderr) == ("error", "SystemExit: enough\n")
    assert (hard.outcome, hard.stdout) == ("error", "x\n")
    assert "status 3" in hard.stderr
    assert signalled.outcome == "killed"
    assert "signal 6" in signalled.stderr


def test_code_runs_as_the_main_module_without_what_the_server_imports_from_the_future() -> None:
    result = execute(
        "from dataclasses import dataclass\n"
        "@dataclass\nclass A:\n    x: int = 1\n"
        "import sys\n"
        "if __name__ == '__main__':\n    print(A(), A.__annotations__['x'], sys.modules['__main__'].A is A)"
    )
    assert result.stdout == "A(x=1) <class 'int'> True\n"


def test_a_thread_that_still_prints_is_waited_for() -> None:
    code = "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.05), print('late'))).start()"
    assert execute(code).stdout == "late\n"


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        ("print('started')\nwhile True: pass", "started\n"),
        ("10 ** 10 ** 8", ""),  # not interruptible by a Python signal handler
        ("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nsignal.pause()", ""),
    ],
)
def test_code_beyond_its_time_is_stopped_and_what_it_printed_kept(code: str, printed: str) -> None:
    result = execute(code, limits=SHORT)
    assert (result.outcome, result.stdout, result.value) == ("timeout", printed, "")
    assert 0.4 <= result.run_seconds < 2


def test_cpu_time_is_limited_too() -> None:
    limits = ExecutionLimits(wall_seconds=40, cpu_seconds=0.5)
    result = execute("import itertools\nfor _ in itertools.count(): pass", limits=limits)
    assert result.outcome == "timeout"
    assert result.run_seconds < 39


def test_memory_is_limited() -> None:
    at_once, piecemeal, fine = execute_all(
        ["x = b'x' * 10**9", "x = []\nwhile True: x.append(b'x' * 10**5)", "len(b'x' * 10**7)"],
        ExecutionLimits(memory_bytes=64 << 20),
    )
    assert at_once.outcome == piecemeal.outcome == "memory_limit"
    assert at_once.stderr.endswith("MemoryError\n")
    assert (fine.outcome, fine.value) == ("success", "10000000")


def test_a_flood_of_output_is_stopped_and_cut() -> None:
    limits = ExecutionLimits(output_bytes=1000)
    flood, errors, value = execute_all(
        ["while True: print('x' * 99)", "import sys\nwhile True: sys.stderr.write('x')", "'x' * 5000"], limits
    )
    assert flood.outcome == errors.outcome == "output_limit"
    assert flood.run_seconds < 10
    assert flood.stdout == ("x" * 99 + "\n") * 10 + "\n[cut after 1000 bytes]\n"
    assert errors.stderr.endswith("[cut after 1000 bytes]\n")
    assert (value.outcome, len(value.value)) == ("success", 1000 + len("\n[cut after 1000 characters]\n"))


def test_files_and_descriptors_are_limited() -> None:
    file, descriptors, core = execute_all(
        [
            "open('big', 'wb').write(b'x' * 2_000_000)",
            "files = [open('/dev/null') for _ in range(100)]",
            "import resource\nresource.getrlimit(resource.RLIMIT_CORE)",
        ],
        ExecutionLimits(file_bytes=1_000_000),
    )
    assert file.stderr.endswith("OSError: [Errno 27] File too large\n")
    assert "Too many open files" in descriptors.stderr
    assert core.value == "(1, 1)"  # at which the kernel starts no program for a dump, and writes none


@pytest.mark.parametrize("level", ["strong", "filtered", "limits"])
def test_a_call_sees_only_its_own_descriptors_directory_and_environment(level: str) -> None:
    require(level)
    code = (
        "import errno, os, sys, tempfile\n"
        "def is_open(fd):\n"
        "    try: os.fstat(fd)\n"
        "    except OSError: return False\n"
        "    return True\n"
        "print([fd for fd in range(2000) if is_open(fd)])\n"
        "print(os.listdir(), tempfile.gettempdir() == os.getcwd(), sorted(os.environ))\n"
        "print([name for name in ('trio', 'torch', 'numpy') if name in sys.modules])"
    )
    [result] = execute_all([code], isolation=level)
    environment = [] if level == "strong" else ["HOME", "TMPDIR"]
    assert result.stdout == f"[0, 1, 2, 3, 4]\n[] True {environment}\n[]\n"  # 3: the request and report, 4: the link


@pytest.mark.parametrize(
    ("module", "number"), [("numpy", "numpy.random.rand()"), ("sympy", "sympy.core.random.random()")]
)
def test_calls_have_random_numbers_of_their_own_from_warm_modules_too(module: str, number: str) -> None:
    results = execute_all([f"import {module}\nprint({number})"] * 3, warm_modules=[module])
    assert len({result.stdout for result in results}) == 3


@pytest.mark.parametrize("level", ["strong", "filtered", "limits"])
def test_what_a_call_does_to_its_empty_input_is_gone_with_it(level: str) -> None:
    require(level)
    change = "import fcntl, os\nfcntl.fcntl(0, fcntl.F_SETFL, os.O_APPEND | os.O_NONBLOCK)"
    look = "import fcntl, os\nprint(fcntl.fcntl(0, fcntl.F_GETFL) & (os.O_APPEND | os.O_NONBLOCK))\ninput()"
    _, after = execute_all([change, look], isolation=level)
    assert after.stdout == "0\n"
    assert after.stderr.endswith("EOFError: EOF when reading a line\n")


def test_threads_and_processes_of_a_call_work() -> None:
    code = """
import os, threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
with ThreadPoolExecutor(2) as pool:
    print(list(pool.map(abs, [-1, -2])))
thread = threading.Thread(target=lambda: print(threading.main_thread().is_alive(), threading.active_count()))
thread.start()
thread.join()
child = get_context("fork").Process(target=lambda: os._exit(3))
child.start()
child.join()
print(child.exitcode, threading.active_count())
threading.Timer(0.05, print, ["last"]).start()
"""
    [result] = execute_all([code], warm_modules=["threading", "concurrent.futures", "multiprocessing"])
    assert (result.outcome, result.stdout) == ("success", "[1, 2]\nTrue 2\n3 1\nlast\n"), result.stderr


def test_calls_share_neither_state_nor_random_numbers() -> None:
    async def main(sandbox: Sandbox) -> list[ToolOutput]:
        code = "import builtins, random\nprint(hasattr(builtins, 'mark'), random.random())\nbuiltins.mark = 1"
        return [await sandbox.execute(code) for _ in range(3)]

    results = run_with(Sandbox(warm_modules=["random"]), main)
    assert all(result.stdout.startswith("False 0.") for result in results)
    assert len({result.stdout for result in results}) == 3


def test_a_slow_call_holds_no_other_and_calls_beyond_the_limit_wait() -> None:
    async def main(sandbox: Sandbox) -> tuple[list[str], float, float]:
        order: list[str] = []

        async def call(name: str, seconds: float) -> None:
            assert (await sandbox.execute(f"import time\ntime.sleep({seconds})")).outcome == "success"
            order.append(name)

        started = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, "slow", 0.6)
            await trio.sleep(0.05)
            nursery.start_soon(call, "quick", 0)
            await trio.sleep(0.05)
            nursery.start_soon(call, "first", 0.2)
            await trio.sleep(0.05)
            nursery.start_soon(call, "second", 0)  # waits for a child: two are running
            await trio.sleep(0.01)
            waiting = sandbox.figures["waiting"]
        return order, waiting, trio.current_time() - started

    order, waiting, seconds = run_with(Sandbox(children=2), main)
    assert order == ["quick", "first", "second", "slow"]
    assert waiting == 1
    assert seconds < 2


def test_figures_count_outcomes() -> None:
    async def main(sandbox: Sandbox) -> dict[str, float]:
        for code in ("1", "1", "1/0"):
            await sandbox.execute(code)
        return sandbox.figures

    figures = run_with(Sandbox(interpreters=2), main)
    assert {name: figures[name] for name in ("calls", "success", "error", "interpreters", "in_flight")} == {
        "calls": 3,
        "success": 2,
        "error": 1,
        "interpreters": 2,
        "in_flight": 0,
    }


def test_a_module_that_cannot_be_imported_stops_the_sandbox() -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        run_with(Sandbox(warm_modules=["no_such_module"]), lambda sandbox: sandbox.execute("1"))
    matching, others = caught.value.split(WarmUpError)
    assert matching is not None
    assert others is None
    while isinstance(matching, BaseExceptionGroup):
        matching = matching.exceptions[0]
    assert "No module named 'no_such_module'" in str(matching)


def test_a_module_that_prints_when_imported_does_no_harm() -> None:
    result = run_with(Sandbox(warm_modules=["this"]), lambda sandbox: sandbox.execute("print(1)"))
    assert result.stdout == "1\n"


def test_files_of_sqlite_work_though_record_locks_do_nothing() -> None:
    code = (
        "import sqlite3\nfor mode in ('delete', 'wal'):\n    with sqlite3.connect(f'{mode}.db') as base:\n"
        "        said = base.execute(f'pragma journal_mode={mode}').fetchone()\n        base.execute('create table t "
        "(x)')\n"
        "        base.executemany('insert into t values (?)', [(i,) for i in range(100)])\n"
        "    other = sqlite3.connect(f'{mode}.db')\n    print(*said, *other.execute('select sum(x) from t').fetchone())"
    )
    assert execute(code).stdout == "delete 4950\nwal 4950\n"


MODULES = ("numpy", "sympy", "os.path")
CODES = {
    "print(1)": (),
    "import numpy as np": ("numpy",),
    "from sympy import *": ("sympy",),
    "x.sympy_like, numpyish": (),
    "import os.path": ("os.path",),
    "import sympy, numpy": ("numpy", "sympy"),
    "from sympy import lambdify": ("numpy", "sympy"),
    "import sympy\nimport os.path": MODULES,
}


@pytest.mark.parametrize(("code", "modules"), CODES.items())
def test_code_goes_to_the_lightest_interpreter_that_has_what_it_names(code, modules):
    weights = Weights(MODULES)
    assert weights.sets[weights.lightest(code)] == modules


def test_interpreters_are_few():
    assert Weights(()).sets == [()]
    assert Weights("abcdef").sets[-1] == tuple("abcdef")
    assert len(Weights("abcdef").sets) == 12


def test_sympy_is_warmed_up_without_numpy():
    from tests.actors.sandbox.running import execute_all

    code = "import sys, sympy\nprint('numpy' in sys.modules, 'sympy' in sys.modules)"
    [result] = execute_all([code.replace("numpy", "num' 'py")], warm_modules=["numpy", "sympy"])
    assert result.stdout == "False True\n"
