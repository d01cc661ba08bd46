"""Attacks on the totals of all calls: each call keeps its limits, all together want more than the host can spare."""

import tomllib
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
TOTALS = tomllib.loads(Path(__file__).with_name("attacks.toml").read_text())["totals"]


async def beside(sandbox: Sandbox, *codes: str) -> list[ToolOutput]:
    """The results of attacks at once, beside a neighbour's call and before another one, both of which are unharmed."""
    results: dict[int, ToolOutput] = {}

    async def call(number: int, code: str) -> None:
        results[number] = await sandbox.execute(code, name=str(number))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call, 0, TOTALS["neighbour"])
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


async def test_memory_that_counts_as_no_process_own_ends_calls_before_their_interpreter():
    """The kernel counts a victim as gone before its shared pages are free: the interpreter can be the next victim."""
    async with sandboxed(groups=["memory"], memory_bytes=400 * MIB, limits=PATIENT) as sandbox:
        result = await sandbox.execute(named("hidden-memory") + TOTALS["hidden"])
        assert result.outcome in ("success", "memory_limit"), result  # one of its processes has ended, or it has
        assert await eventually(lambda: living("hidden-memory") == 0)
        assert (await sandbox.execute("print(1)")).stdout == "1\n"
        assert sandbox.figures["restarts"] <= 1


async def test_a_memory_bomb_of_32_processes_that_each_keep_their_limit():
    async with strong(["memory"], memory_bytes=600 * MIB) as sandbox:
        [result] = await beside(sandbox, named("total-bomb") + TOTALS["bomb"])
        assert (result.outcome, result.stdout) == ("success", "-9\n")
        peak_is_below(sandbox, 600 * MIB)
        assert await eventually(lambda: living("total-bomb") == 0)


async def test_a_call_that_uses_the_memory_of_all_up_is_told_so():
    kill = "import os\nos.kill(os.getpid(), 9)"
    async with strong(["memory"], memory_bytes=300 * MIB) as sandbox:
        result, killed = await beside(sandbox, "x = []\nwhile True: x.append(bytearray(b'x') * 2**20)", kill)
        assert (result.outcome, "memory of all calls" in result.stderr) == ("memory_limit", True)
        assert killed.outcome in ("killed", "memory_limit")  # the second where both happened at once
        assert (await sandbox.execute(kill)).outcome == "killed"


async def test_files_of_many_calls_in_memory_count_too():
    code = "import time\nfor i in range(4): open(f'{i}', 'wb').write(bytes(15 * 2**20))\ntime.sleep(1)"
    async with strong(["memory"], memory_bytes=300 * MIB) as sandbox:
        await beside(sandbox, *[code] * 7)
        peak_is_below(sandbox, 300 * MIB)


@pytest.mark.parametrize("level", ["filtered", "limits"])
async def test_a_fork_bomb_that_no_limit_of_the_user_binds(level):
    limits = replace(PATIENT, processes=8)
    async with sandboxed(level, groups=["pids"], children=4, sessions=0, limits=limits) as sandbox:
        [result] = await beside(sandbox, named("bomb-in-total") + TOTALS["forks"])
        assert (result.outcome, result.stdout) == ("success", "refused\n")
        assert await eventually(lambda: living("bomb-in-total") == 0)


async def test_looking_for_the_groups():
    async with strong([]) as sandbox:
        assert (await beside(sandbox, TOTALS["look"]))[0].stdout == "[False, False, False]\n-1\nset()\n"
