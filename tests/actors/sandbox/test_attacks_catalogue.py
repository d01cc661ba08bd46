"""The catalogue of attacks, each beside an honest neighbour's call, at each level that holds against it."""

from __future__ import annotations

import pytest
import trio

from actors.sandbox.isolation import kernel
from actors.sandbox.owner.client import Sandbox
from benchmarks.hostile import REACH, Attack, failure
from tests.actors.sandbox.running import require, run_with

AT_ONCE = 4


async def failures(sandbox: Sandbox, attacks: list[Attack]) -> dict[str, str]:
    """What is wrong, by the name of the attack."""
    found: dict[str, str] = {}
    waiting = list(attacks)

    async def work() -> None:
        while waiting:
            attack = waiting.pop()
            said = await failure(sandbox, attack)
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
    attacks = [attack for attack in REACH if level in attack.levels]

    async def main(sandbox: Sandbox) -> dict[str, str]:
        return await failures(sandbox, attacks)

    found = run_with(Sandbox(isolation=level), main)  # type: ignore[arg-type]
    assert found == {}
