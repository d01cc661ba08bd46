"""Attacks on the totals of all calls: each call keeps its limits, all together want more than the host can spare."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio

from actors.sandbox.owner.client import ExecutionLimits, Sandbox
from agent_rl.environments.base import ToolOutput
from tests.actors.sandbox.running import eventually, groups_or_skip, living, named, require, run_with

MIB = 1 << 20
PATIENT = ExecutionLimits(wall_seconds=50, cpu_seconds=50)
PEAKS = ("memory.peak", "memory.max_usage_in_bytes")
NEIGHBOUR = "import time\nopen('mine', 'w').write('x')\ntime.sleep(2)\nprint(open('mine').read())"
BOMB = """
import os, time
def fill():
    x = []
    while len(x) < 400:
        x.append(bytearray(b"x") * 2**20)
    time.sleep(600)
for _ in range(31):
    if os.fork() == 0:
        fill()
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


HIDDEN = """
import mmap, os, time
def hide():
    for _ in range(4):
        held.append(mmap.mmap(-1, 64 << 20, mmap.MAP_SHARED))
        for at in range(0, 64 << 20, 4096):
            held[-1][at] = 1
            if at % (1 << 20) == 0:
                held[-1].madvise(mmap.MADV_DONTNEED)
        held[-1].madvise(mmap.MADV_DONTNEED)
    time.sleep(600)
held = []
for _ in range(3):
    if os.fork() == 0:
        hide()
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
"""Memory that is mapped and charged, but on no page that the kernel counts as the process' own when it looks for the
largest."""


async def beside(sandbox: Sandbox, *codes: str) -> list[ToolOutput]:
    """The results of attacks at once, beside a neighbour's call and before another one, both of which are unharmed."""
    results: dict[int, ToolOutput] = {}

    async def call(number: int, code: str) -> None:
        results[number] = await sandbox.execute(code, name=str(number))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call, 0, NEIGHBOUR)
        await trio.sleep(0.2)
        for number, code in enumerate(codes, 1):
            nursery.start_soon(call, number, code)
    assert (results[0].outcome, results[0].stdout) == ("success", "x\n")
    assert (await sandbox.execute("print(1)")).stdout == "1\n"
    assert sandbox.figures["restarts"] == 0
    return [results[number] for number in range(1, len(codes) + 1)]


def group(sandbox: Sandbox, controller: str) -> Path:
    return next(one.directory for one in sandbox.groups.groups if one.controller == controller)


def test_memory_that_counts_as_no_process_own_ends_calls_before_their_interpreter() -> None:
    """The kernel counts a victim as gone before its shared pages are free: the interpreter can be the next victim."""

    async def main(sandbox: Sandbox) -> None:
        result = await sandbox.execute(named("hidden-memory") + HIDDEN)
        assert result.outcome in ("success", "memory_limit"), result  # one of its processes has ended, or it has
        assert await eventually(lambda: living("hidden-memory") == 0)
        assert (await sandbox.execute("print(1)")).stdout == "1\n"
        assert sandbox.figures["restarts"] <= 1

    groups_or_skip("memory")
    run_with(Sandbox(memory_bytes=400 * MIB, limits=PATIENT), main)


def test_a_memory_bomb_of_32_processes_that_each_keep_their_limit() -> None:
    async def main(sandbox: Sandbox) -> None:
        [result] = await beside(sandbox, named("total-bomb") + BOMB)
        assert (result.outcome, result.stdout) == ("success", "-9\n")
        found = [group(sandbox, "memory") / peak for peak in PEAKS]
        assert [int(path.read_text()) <= 600 * MIB for path in found if path.exists()] in ([True], [])
        assert await eventually(lambda: living("total-bomb") == 0)

    require("strong")
    groups_or_skip("memory")
    run_with(Sandbox(isolation="strong", memory_bytes=600 * MIB, limits=PATIENT), main)


def test_a_call_that_uses_the_memory_of_all_up_is_told_so() -> None:
    async def main(sandbox: Sandbox) -> None:
        result, killed = await beside(
            sandbox, "x = []\nwhile True: x.append(bytearray(b'x') * 2**20)", "import os\nos.kill(os.getpid(), 9)"
        )
        assert (result.outcome, "memory of all calls" in result.stderr) == ("memory_limit", True)
        assert killed.outcome in ("killed", "memory_limit")  # the second where both happened at once
        assert (await sandbox.execute("import os\nos.kill(os.getpid(), 9)")).outcome == "killed"

    require("strong")
    groups_or_skip("memory")
    run_with(Sandbox(isolation="strong", memory_bytes=300 * MIB, limits=PATIENT), main)


def test_files_of_many_calls_in_memory_count_too() -> None:
    async def main(sandbox: Sandbox) -> None:
        code = "import time\nfor i in range(4): open(f'{i}', 'wb').write(bytes(15 * 2**20))\ntime.sleep(1)"
        await beside(sandbox, *[code] * 7)
        found = [group(sandbox, "memory") / peak for peak in PEAKS]
        assert [int(path.read_text()) <= 300 * MIB for path in found if path.exists()] in ([True], [])

    require("strong")
    groups_or_skip("memory")
    run_with(Sandbox(isolation="strong", memory_bytes=300 * MIB, limits=PATIENT), main)


@pytest.mark.parametrize("level", ["filtered", "limits"])
def test_a_fork_bomb_that_no_limit_of_the_user_binds(level: str) -> None:
    async def main(sandbox: Sandbox) -> None:
        code = named("bomb-in-total") + (
            "import os, time\nwhile True:\n    try:\n        if os.fork() == 0: time.sleep(60)\n"
            "    except BlockingIOError:\n        print('refused')\n        break"
        )
        [result] = await beside(sandbox, code)
        assert (result.outcome, result.stdout) == ("success", "refused\n")
        assert await eventually(lambda: living("bomb-in-total") == 0)

    require(level)
    groups_or_skip("pids")
    limits = replace(PATIENT, processes=8)
    run_with(Sandbox(isolation=level, children=4, sessions=0, limits=limits), main)  # type: ignore[arg-type]


def test_looking_for_the_groups() -> None:
    async def main(sandbox: Sandbox) -> str:
        code = (
            "import os\nprint([os.path.exists(path) for path in ('/sys', '/proc/self/cgroup', '/cgroup')])\n"
            "import ctypes\nprint(ctypes.CDLL(None).mount(b'x', b'/tmp', b'cgroup2', 0, None))\n"
            "print({'sys', 'proc', 'cgroup'} & set(os.listdir('/')))"
        )
        return (await beside(sandbox, code))[0].stdout

    require("strong")
    groups_or_skip()
    assert run_with(Sandbox(isolation="strong", limits=PATIENT), main) == "[False, False, False]\n-1\nset()\n"
