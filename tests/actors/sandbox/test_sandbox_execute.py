"""What model code experiences: outcomes, streams, values, limits. Real processes, real time."""

from __future__ import annotations

import pytest
import trio

from actors.sandbox.owner.client import ExecutionLimits, Weights
from tests.actors.sandbox.running import sandboxed

pytestmark = pytest.mark.real_time
TRACEBACK = """Traceback (most recent call last):
  File "<tool>", line 4, in <module>
    f()
  File "<tool>", line 3, in f
    return 1 / 0
           ~~^~~
ZeroDivisionError: division by zero
"""
AS_MAIN = """
from dataclasses import dataclass
import sys
@dataclass
class A:
    x: int = 1
if __name__ == '__main__':
    print(A(), A.__annotations__['x'], sys.modules['__main__'].A is A)
"""
SQLITE = """
import sqlite3
for mode in ('delete', 'wal'):
    with sqlite3.connect(f'{mode}.db') as base:
        said = base.execute(f'pragma journal_mode={mode}').fetchone()
        base.execute('create table t (x)')
        base.executemany('insert into t values (?)', [(i,) for i in range(100)])
    other = sqlite3.connect(f'{mode}.db')
    print(*said, *other.execute('select sum(x) from t').fetchone())
"""
READ = "import sys\nsys.stdin.read()"
# Code, perhaps with its input, the outcome, what is printed, the value, and how what is said on standard error ends.
OUTCOMES = [
    ("print(6 * 7)", "success", "42\n", "", ""),
    ("x = 6\nx * 7", "success", "", "42", ""),
    ("print('a')\n'b'", "success", "a\n", "'b'", ""),
    ("None", "success", "", "", ""),
    ("x = 42", "success", "", "", ""),
    (
        ("import sys\nprint(input(), len(sys.stdin.read()))", "héllo\n" + "x" * 500_000),
        "success",
        "héllo 500000\n",
        "",
        "",
    ),
    ("input()", "error", "", "", "EOFError: EOF when reading a line\n"),
    ("print('before')\ndef f():\n    return 1 / 0\nf()", "error", "before\n", "", TRACEBACK),
    ("x = [", "error", "", "", "SyntaxError: '[' was never closed\n"),
    ("x\0", "error", "", "", "null bytes\n"),
    ("\ud800 = 1", "error", "", "", "surrogates not allowed\n"),
    ("'\ud800'", "error", "", "", "surrogates not allowed\n"),
    ("\ufeffprint(1)", "error", "", "", "SyntaxError: invalid non-printable character U+FEFF\n"),
    ("print(1)\r\nprint(2)\x0c", "success", "1\n2\n", "", ""),
    ("# coding: rot13\nprint(1)", "success", "1\n", "", ""),
    ("class A:\n    def __repr__(self): raise ValueError('no')\nA()", "error", "", "", "ValueError: no\n"),
    ("print('\\ud800')", "success", "\\ud800\n", "", ""),
    ("class A:\n    def __repr__(self): return '\\ud800'\nA()", "success", "", "\\ud800", ""),
    ("import os\n_ = os.write(1, b'\\xff\\n')", "success", "\ufffd\n", "", ""),
    ((READ, "a\ud800\0b\n\r"), "success", "", r"'a?\x00b\n\r'", ""),
    (READ, "success", "", "''", ""),
    ("import sys\nprint('x')\nsys.exit()", "success", "x\n", "", ""),
    ("import sys\nsys.exit('enough')", "error", "", "", "SystemExit: enough\n"),
    ("import os\nprint('x')\nos._exit(3)", "error", "x\n", "", "ended with status 3 before the code did.\n"),
    ("import os\nos.abort()", "killed", "", "", "signal 6"),
    (AS_MAIN, "success", "A(x=1) <class 'int'> True\n", "", ""),
    ("from threading import Timer\nTimer(0.05, print, ['late']).start()", "success", "late\n", "", ""),
    (SQLITE, "success", "delete 4950\nwal 4950\n", "", ""),  # though record locks do nothing
]


async def test_outcomes_streams_and_values():
    async with sandboxed() as sandbox:
        for given, outcome, stdout, value, said in OUTCOMES:
            result = await sandbox.execute(*((given,) if isinstance(given, str) else given))
            assert (result.outcome, result.stdout, result.value) == (outcome, stdout, value), (given, result)
            assert said in result.stderr if outcome == "killed" else result.stderr.endswith(said), (given, result)
            assert bool(result.stderr) == bool(said), (given, result)
            assert result.stderr == TRACEBACK or said != TRACEBACK
            assert result.run_seconds > 0
            assert result.queue_seconds > 0


CUT = "\n[cut after 1000 {}]\n"
IGNORING = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nsignal.pause()"
# Code, other limits than a second, the outcome, what is printed, the value, and how standard error ends.
LIMITED = [
    ("print('started')\nwhile True: pass", {}, "timeout", "started\n", "", ""),
    ("10 ** 10 ** 8", {}, "timeout", "", "", ""),  # not interruptible by a Python signal handler
    (IGNORING, {}, "timeout", "", "", ""),
    ("while True: pass", {"wall_seconds": 40, "cpu_seconds": 0.5}, "timeout", "", "", ""),
    ("x = b'x' * 10**9", {}, "memory_limit", "", "", "MemoryError\n"),
    ("x = []\nwhile True: x.append(b'x' * 10**5)", {}, "memory_limit", "", "", ""),
    ("len(b'x' * 10**7)", {}, "success", "", "10000000", ""),
    ("while True: print('x' * 99)", {}, "output_limit", ("x" * 99 + "\n") * 10 + CUT.format("bytes"), "", ""),
    ("import sys\nwhile True: sys.stderr.write('x')", {}, "output_limit", "", "", CUT.format("bytes")),
    ("'x' * 5000", {}, "success", "", "'" + "x" * 999 + CUT.format("characters"), ""),
    ("open('big', 'wb').write(b'x' * 2_000_000)", {}, "error", "", "", "OSError: [Errno 27] File too large\n"),
    ("import os\nwhile True: os.dup(0)", {}, "error", "", "", "Too many open files\n"),
    # At which the kernel starts no program for a dump, and writes none.
    ("import resource\nresource.getrlimit(resource.RLIMIT_CORE)", {}, "success", "", "(1, 1)", ""),
]


async def test_limits():
    async with sandboxed() as sandbox:
        for code, more, outcome, stdout, value, said in LIMITED:
            given = {
                "wall_seconds": 1.0,
                "memory_bytes": 64 << 20,
                "output_bytes": 1000,
                "file_bytes": 1_000_000,
            } | more
            result = await sandbox.execute(code, limits=ExecutionLimits(**given))
            assert (result.outcome, result.stdout, result.value) == (outcome, stdout, value), (code, result)
            assert result.stderr.endswith(said), (code, result)
            assert result.run_seconds < 10
            assert outcome != "timeout" or more or 1.0 <= result.run_seconds < 3


OWN = """
import errno, os, sys, tempfile
def is_open(fd):
    try: os.fstat(fd)
    except OSError: return False
    return True
print([fd for fd in range(2000) if is_open(fd)])  # 3: the request and report, 4: the link
print(os.listdir(), tempfile.gettempdir() == os.getcwd(), sorted(os.environ))
print([name for name in ('trio', 'torch', 'numpy') if name in sys.modules])
"""
CHANGE = "import fcntl, os\nfcntl.fcntl(0, fcntl.F_SETFL, os.O_APPEND | os.O_NONBLOCK)"
LOOK = "import fcntl, os\nprint(fcntl.fcntl(0, fcntl.F_GETFL) & (os.O_APPEND | os.O_NONBLOCK))\ninput()"


@pytest.mark.parametrize(("level", "environment"), [("strong", []), ("filtered", ["HOME", "TMPDIR"])])
async def test_a_call_sees_only_its_own_descriptors_directory_and_environment_and_leaves_its_input(level, environment):
    async with sandboxed(level) as sandbox:
        assert (await sandbox.execute(OWN)).stdout == f"[0, 1, 2, 3, 4]\n[] True {environment}\n[]\n"
        await sandbox.execute(CHANGE)
        after = await sandbox.execute(LOOK)
        assert (after.stdout, after.stderr.splitlines()[-1]) == ("0\n", "EOFError: EOF when reading a line")


THREADS = """
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


async def test_threads_and_processes_of_a_call_work_beside_a_warm_module_that_prints():
    modules = ["threading", "concurrent.futures", "multiprocessing", "this"]
    async with sandboxed(warm_modules=modules) as sandbox:
        result = await sandbox.execute(THREADS)
        assert (result.outcome, result.stdout) == ("success", "[1, 2]\nTrue 2\n3 1\nlast\n"), result.stderr


RANDOM = {"random, sympy": "random.random()", "numpy": "numpy.random.rand()", "sympy": "sympy.core.random.random()"}


async def test_calls_share_neither_state_nor_random_numbers_and_sympy_is_warmed_up_without_numpy():
    share = "import builtins\nprint(hasattr(builtins, 'mark'), {})\nbuiltins.mark = 1"
    warm = "import sys, sympy\nprint('num' + 'py' in sys.modules, 'sympy' in sys.modules)"
    async with sandboxed(warm_modules=["numpy", "sympy"]) as sandbox:
        for modules, number in RANDOM.items():
            code = f"import {modules}\n{share.format(number)}"
            said = [(await sandbox.execute(code)).stdout for _ in range(3)]
            assert all(text.startswith("False 0.") for text in said)
            assert len({*said}) == 3
        assert (await sandbox.execute(warm)).stdout == "False True\n"


async def test_a_slow_call_holds_no_other_and_calls_beyond_the_limit_wait():
    async with sandboxed(children=2) as sandbox:
        order = []

        async def call(name, seconds):
            assert (await sandbox.execute(f"import time\ntime.sleep({seconds})")).outcome == "success"
            order.append(name)

        started = trio.current_time()
        async with trio.open_nursery() as nursery:
            for name, seconds in (("slow", 0.6), ("quick", 0), ("first", 0.2), ("second", 0)):
                nursery.start_soon(call, name, seconds)
                await trio.sleep(0.05 if name != "second" else 0.01)
            assert sandbox.figures["waiting"] == 1  # for a child: two are running
        assert order == ["quick", "first", "second", "slow"]
        assert trio.current_time() - started < 2


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
