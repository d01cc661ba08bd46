"""Runs an attack on what a call can reach, beside an honest neighbour, and says whether it was held."""

from __future__ import annotations

import trio

from actors.sandbox.owner.client import ExecutionLimits, Sandbox
from agent_rl.environments.base import ToolOutput
from benchmarks.hostile import Attack, held

LIMITS = ExecutionLimits(wall_seconds=20, cpu_seconds=10, memory_bytes=128 << 20, output_bytes=10_000, processes=8)
NEIGHBOUR = "import os\nopen('mine', 'w').write('honest')\nprint(open('mine').read(), os.listdir('.'))"
VICTIMS = 3
"""Calls after the attack: children that wait in other slots take the first."""
HEAD_START_SECONDS = 0.1
"""How long an accomplice runs before the attack."""


async def failure(sandbox: Sandbox, attack: Attack) -> str:
    """Run the attack; what is wrong, empty if it was held and nobody else was harmed. The sandbox allows sessions."""
    results: dict[str, ToolOutput] = {}

    async def call(side: str, code: str) -> None:
        results[side] = await sandbox.execute(code, limits=LIMITS, name=f"{attack.name} {side}")

    async with trio.open_nursery() as nursery:
        if attack.in_session:
            results["accomplice"] = await sandbox.run_cell(attack.name, 1, attack.accomplice, limits=LIMITS)
        elif attack.accomplice:
            nursery.start_soon(call, "accomplice", attack.accomplice)
            await trio.sleep(HEAD_START_SECONDS)
        nursery.start_soon(call, "neighbour", NEIGHBOUR)
        await call("attack", attack.code)
        for number in range(VICTIMS if attack.victim else 0):
            await call(f"victim {number}", attack.victim)
    sandbox.end_session(attack.name)
    neighbour = results.pop("neighbour")
    if (neighbour.outcome, neighbour.stdout) != ("success", "honest ['mine']\n"):
        return f"the neighbour: {neighbour}"
    for side, result in results.items():
        ends = attack.ends if side == "attack" else ("success",)
        if result.outcome not in ends or not (held(result.stdout) or result.outcome != "success"):
            return f"{side}: {result.outcome} {result.stdout}{result.stderr}"
    return ""
