"""Attacks from within a session's cell: on its next cells' results, on its control socket, on everybody else.

Beside each run another session and a plain call; both go on unharmed, and so does the attacker's own session: its next
cell finds the state before the attack, or after it, in time.
"""

import tomllib
from pathlib import Path

import pytest
import trio

from actors.sandbox.owner.client import ExecutionLimits, Sandbox
from agent_rl.environments.base import ToolOutput
from tests.actors.sandbox.running import eventually, living, named, require, run_with

LIMITS = ExecutionLimits(wall_seconds=5.0, cpu_seconds=2, memory_bytes=128 << 20, output_bytes=10_000, processes=8)
CELLS = tomllib.loads(Path(__file__).with_name("attacks.toml").read_text())["cells"]
IN_FRAMES = "import sys\nframe = sys._getframe()\nwhile frame.f_back: frame = frame.f_back\n"


@pytest.mark.parametrize("attack", CELLS.values(), ids=CELLS.keys())
def test_a_hostile_cell_harms_only_its_own_session(attack):
    require("strong")
    attack = attack.replace("{{named}}", named("outlives")).replace("{{frame}}", IN_FRAMES)

    async def main(sandbox: Sandbox) -> None:
        async def cell(session: str, number: int, code: str, *earlier: str) -> ToolOutput:
            return await sandbox.run_cell(session, number, code, earlier, limits=LIMITS)

        assert (await cell("other", 1, "x = 41\nopen('mine', 'w').write('y')")).kept
        mine = await cell("attacker", 1, "y = 1")
        results: list[ToolOutput] = []

        async def hostile() -> None:
            results.append(await cell("attacker", 2, attack, "y = 1"))

        async def neighbour() -> None:
            code = "import time, os\ntime.sleep(0.2)\nprint('mine', os.listdir('.'))"
            call = await sandbox.execute(code, limits=LIMITS)
            assert (call.outcome, call.stdout) == ("success", "mine []\n")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hostile)
            nursery.start_soon(neighbour)
        other = await cell("other", 2, "print(x + 1, open('mine').read())", "x = 41\nopen('mine', 'w').write('y')")
        assert (other.outcome, other.stdout, other.note) == ("success", "42 y\n", "")
        earlier = ("y = 1", attack) if results[0].kept else ("y = 1",)
        assert mine.kept
        with trio.fail_after(20):
            after = await cell("attacker", 3, "y", *earlier)
        if not results[0].kept:
            assert (after.outcome, after.value) == ("success", "1")
        sandbox.end_session("attacker")
        assert await eventually(lambda: living("outlives") == 0)
        assert (await sandbox.execute("1", limits=LIMITS)).value == "1"
        assert sandbox.figures["restarts"] == 0

    run_with(Sandbox(isolation="strong"), main)
