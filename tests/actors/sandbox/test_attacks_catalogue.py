"""The catalogue of attacks, each beside an honest neighbour's call, at each level that holds against it."""

from __future__ import annotations

import pytest
import trio

from actors.sandbox import kernel
from actors.sandbox.client import ExecutionLimits, ExecutionResult, Sandbox
from benchmarks.hostile import Attack, held
from benchmarks.hostile.reach import ATTACKS
from tests.actors.sandbox.running import require, run_with

LIMITS = ExecutionLimits(wall_seconds=8, cpu_seconds=6, memory_bytes=128 << 20, output_bytes=10_000, processes=8)
AT_ONCE = 4
NEIGHBOUR = "import os\nopen('mine', 'w').write('honest')\nprint(open('mine').read(), os.listdir('.'))"


async def fails(sandbox: Sandbox, attack: Attack) -> str:
    """Run the attack; what is wrong, empty if it was held and nobody else was harmed."""
    results: dict[str, ExecutionResult] = {}

    async def call(side: str, code: str) -> None:
        results[side] = await sandbox.execute(code, limits=LIMITS, name=f"{attack.name} {side}")

    async with trio.open_nursery() as nursery:
        if attack.in_session:
            results["accomplice"] = await sandbox.run_cell(attack.name, 1, attack.accomplice, limits=LIMITS)
        elif attack.accomplice:
            nursery.start_soon(call, "accomplice", attack.accomplice)
            await trio.sleep(0.1)
        nursery.start_soon(call, "neighbour", NEIGHBOUR)
        await call("attack", attack.code)
        if attack.victim:
            await call("victim", attack.victim)
    sandbox.end_session(attack.name)
    neighbour = results.pop("neighbour")
    if (neighbour.outcome, neighbour.stdout) != ("success", "honest ['mine']\n"):
        return f"the neighbour: {neighbour}"
    for side, result in results.items():
        ends = attack.ends if side == "attack" else ("success",)
        if result.outcome not in ends or not (held(result.stdout) or result.outcome != "success"):
            return f"{side}: {result.outcome} {result.stdout}{result.stderr}"
    return ""


async def failures(sandbox: Sandbox, attacks: list[Attack]) -> dict[str, str]:
    """What is wrong, by the name of the attack."""
    found: dict[str, str] = {}
    waiting = list(attacks)

    async def work() -> None:
        while waiting:
            attack = waiting.pop()
            said = await fails(sandbox, attack)
            if said:
                found[attack.name] = said

    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(work)
    assert sandbox.figures["restarts"] == 0
    return found


@pytest.mark.parametrize("level", ["strong", "filtered"])
def test_every_attack_is_held_and_its_neighbour_unharmed(level: str) -> None:
    require(level)
    if level == "filtered" and kernel.landlock_version() < kernel.LANDLOCK_WITH_SCOPES:
        pytest.skip("this kernel's Landlock does not confine signals")  # and these are sent by root where tests are
    attacks = [attack for attack in ATTACKS if level in attack.levels]

    async def main(sandbox: Sandbox) -> dict[str, str]:
        return await failures(sandbox, attacks)

    found = run_with(Sandbox(isolation=level), main)  # type: ignore[arg-type]
    assert found == {}
