"""Attacks on the totals of all calls: each call keeps its limits, all together want more than the host can spare."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.sandbox.owner.client import ExecutionLimits, Sandbox
from agent_rl.environments.base import ToolOutput
from tests.actors.sandbox.running import eventually, living, named, sandboxed

pytestmark = pytest.mark.real_time
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


def strong(groups: list[str], **settings: Any) -> AbstractAsyncContextManager[Sandbox]:
    """A strongly isolated sandbox, and these control groups."""
    return sandboxed("strong", groups=groups, limits=PATIENT, **settings)


def group(sandbox: Sandbox, controller: str) -> Path:
    return next(one.directory for one in sandbox.groups.groups if one.controller == controller)


def peak_is_below(sandbox: Sandbox, limit: int) -> None:
    """The most memory of all calls that their group has counted, where the kernel counts it."""
    found = [group(sandbox, "memory") / peak for peak in PEAKS]
    assert [int(path.read_text()) <= limit for path in found if path.exists()] in ([True], [])


async def test_memory_that_counts_as_no_process_own_ends_calls_before_their_interpreter() -> None:
    """The kernel counts a victim as gone before its shared pages are free: the interpreter can be the next victim."""
    async with sandboxed(groups=["memory"], memory_bytes=400 * MIB, limits=PATIENT) as sandbox:
        result = await sandbox.execute(named("hidden-memory") + HIDDEN)
        assert result.outcome in ("success", "memory_limit"), result  # one of its processes has ended, or it has
        assert await eventually(lambda: living("hidden-memory") == 0)
        assert (await sandbox.execute("print(1)")).stdout == "1\n"
        assert sandbox.figures["restarts"] <= 1


async def test_a_memory_bomb_of_32_processes_that_each_keep_their_limit() -> None:
    async with strong(["memory"], memory_bytes=600 * MIB) as sandbox:
        [result] = await beside(sandbox, named("total-bomb") + BOMB)
        assert (result.outcome, result.stdout) == ("success", "-9\n")
        peak_is_below(sandbox, 600 * MIB)
        assert await eventually(lambda: living("total-bomb") == 0)


async def test_a_call_that_uses_the_memory_of_all_up_is_told_so() -> None:
    kill = "import os\nos.kill(os.getpid(), 9)"
    async with strong(["memory"], memory_bytes=300 * MIB) as sandbox:
        result, killed = await beside(sandbox, "x = []\nwhile True: x.append(bytearray(b'x') * 2**20)", kill)
        assert (result.outcome, "memory of all calls" in result.stderr) == ("memory_limit", True)
        assert killed.outcome in ("killed", "memory_limit")  # the second where both happened at once
        assert (await sandbox.execute(kill)).outcome == "killed"


async def test_files_of_many_calls_in_memory_count_too() -> None:
    code = "import time\nfor i in range(4): open(f'{i}', 'wb').write(bytes(15 * 2**20))\ntime.sleep(1)"
    async with strong(["memory"], memory_bytes=300 * MIB) as sandbox:
        await beside(sandbox, *[code] * 7)
        peak_is_below(sandbox, 300 * MIB)


FORKS = """
import os, time
while True:
    try:
        if os.fork() == 0: time.sleep(60)
    except BlockingIOError:
        print('refused')
        break
"""


@pytest.mark.parametrize("level", ["filtered", "limits"])
async def test_a_fork_bomb_that_no_limit_of_the_user_binds(level: str) -> None:
    limits = replace(PATIENT, processes=8)
    async with sandboxed(level, groups=["pids"], children=4, sessions=0, limits=limits) as sandbox:
        [result] = await beside(sandbox, named("bomb-in-total") + FORKS)
        assert (result.outcome, result.stdout) == ("success", "refused\n")
        assert await eventually(lambda: living("bomb-in-total") == 0)


LOOK = """
import ctypes, os
print([os.path.exists(path) for path in ('/sys', '/proc/self/cgroup', '/cgroup')])
print(ctypes.CDLL(None).mount(b'x', b'/tmp', b'cgroup2', 0, None))
print({'sys', 'proc', 'cgroup'} & set(os.listdir('/')))
"""


async def test_looking_for_the_groups() -> None:
    async with strong([]) as sandbox:
        assert (await beside(sandbox, LOOK))[0].stdout == "[False, False, False]\n-1\nset()\n"
