"""What model code experiences: outcomes, streams, values, limits. Real processes, real time."""

import tomllib
from pathlib import Path

import pytest
import trio

from actors.sandbox.owner.client import ExecutionLimits, Weights
from tests.actors.sandbox.running import sandboxed

pytestmark = pytest.mark.real_time
DATA = tomllib.loads(Path(__file__).with_name("executed.toml").read_text())
READ = "import sys\nsys.stdin.read()"
# What no file of text holds: half characters, and inputs and outputs of some length.
OUTCOMES = [
    *DATA["outcome"],
    {"code": "\ud800 = 1", "outcome": "error", "said": "surrogates not allowed\n"},
    {"code": "'\ud800'", "outcome": "error", "said": "surrogates not allowed\n"},
    {"code": READ, "input": "a\ud800\0b\n\r", "outcome": "success", "value": r"'a?\x00b\n\r'"},
    {
        "code": "import sys\nprint(input(), len(sys.stdin.read()))",
        "input": "héllo\n" + "x" * 500_000,
        "outcome": "success",
        "stdout": "héllo 500000\n",
    },
]
CUT = "\n[cut after 1000 {}]\n"
LIMITED = [
    *DATA["limited"],
    {"code": "'x' * 5000", "outcome": "success", "value": "'" + "x" * 999 + CUT.format("characters")},
    {
        "code": "while True: print('x' * 99)",
        "outcome": "output_limit",
        "stdout": ("x" * 99 + "\n") * 10 + CUT.format("bytes"),
    },
]


async def test_outcomes_streams_and_values():
    async with sandboxed() as sandbox:
        for row in OUTCOMES:
            result = await sandbox.execute(row["code"], row.get("input", ""))
            wanted, said = (row["outcome"], row.get("stdout", ""), row.get("value", "")), row.get("said", "")
            assert (result.outcome, result.stdout, result.value) == wanted, (row, result)
            killed = result.outcome == "killed"
            assert said in result.stderr if killed else result.stderr.endswith(said), (row, result)
            assert bool(result.stderr) == bool(said), (row, result)
            assert result.stderr == said or not said.startswith("Traceback"), (row, result)
            assert result.run_seconds > 0
            assert result.queue_seconds > 0


async def test_limits():
    given = {"wall_seconds": 1.0, "memory_bytes": 64 << 20, "output_bytes": 1000, "file_bytes": 1_000_000}
    async with sandboxed() as sandbox:
        for row in LIMITED:
            more = row.get("limits", {} if row["outcome"] == "timeout" else {"wall_seconds": 30.0})
            result = await sandbox.execute(row["code"], limits=ExecutionLimits(**given | more))
            wanted = row["outcome"], row.get("stdout", ""), row.get("value", "")
            assert (result.outcome, result.stdout, result.value) == wanted, (row, result)
            assert result.stderr.endswith(row.get("said", "")), (row, result)
            assert result.run_seconds < 10
            assert result.outcome != "timeout" or more or result.run_seconds >= 1.0


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
    async with sandboxed(children=2, limits=ExecutionLimits(wall_seconds=30)) as sandbox:
        order = []

        async def call(name, seconds):
            assert (await sandbox.execute(f"import time\ntime.sleep({seconds})")).outcome == "success"
            order.append(name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, "slow", 4)
            await call("quick", 0)
            for name, seconds in (("first", 1.5), ("second", 0)):
                nursery.start_soon(call, name, seconds)
                await trio.testing.wait_all_tasks_blocked()
            assert sandbox.figures["waiting"] == 1  # for a child: two are running
        assert order == ["quick", "first", "second", "slow"]


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
