"""The attacks of attacks.toml, and others that use up what calls share. Each runs beside a neighbour's call."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.sandbox.isolation import kernel
from actors.sandbox.owner.client import ExecutionLimits, Sandbox
from benchmarks.hostile import REACH as CATALOGUE
from benchmarks.hostile import Attack, failure
from tests.actors.sandbox.conftest import Attacked
from tests.actors.sandbox.running import living, named, require, run_with, wait_until
from tests.actors.sandbox.test_attacks_host import REACHED
from tests.actors.sandbox.test_attacks_kernel import CALL

ATTACKS = tomllib.loads(Path(__file__).with_name("attacks.toml").read_text())["attack"]
PRELUDES = {"CALL": CALL, "REACHED": REACHED}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack["name"])
def test_an_attack_ends_as_it_must_and_harms_no_neighbour(attacked: Attacked, attack: dict[str, Any]) -> None:
    name = attack.get("named")
    code = PRELUDES.get(attack.get("prelude"), "") + (named(name) if name else "") + attack["code"]
    limits = ExecutionLimits(**attack["limits"]) if "limits" in attack else None
    result = attacked.by(code, limits=limits, beside=attack.get("beside", 0.1))
    outcomes = attack.get("outcome", result.outcome)
    assert result.outcome in ([outcomes] if isinstance(outcomes, str) else outcomes), result
    assert result.stdout == attack.get("stdout", result.stdout)
    assert result.value == attack.get("value", result.value)
    assert [text for text in attack.get("stdout_has", []) if text not in result.stdout] == []
    assert [text for text in attack.get("stderr", []) if text not in result.stderr] == []
    assert name is None or wait_until(lambda: living(name) == 0)


@pytest.mark.parametrize("stream", [1, 2])
def test_endless_output(attacked: Attacked, stream: int) -> None:
    result = attacked.by(f"import os\nwhile True: os.write({stream}, b'x' * 1000)", beside=0.3)
    assert result.outcome == "output_limit"
    assert len(result.stdout) + len(result.stderr) < 11_000


def test_a_line_of_a_gigabyte(attacked: Attacked) -> None:
    code = "import sys\nfor _ in range(1000): sys.stdout.write('x' * 10**6)"
    result = attacked.by(code, beside=0.3)
    assert result.outcome == "output_limit"
    assert attacked.by("print('x' * 10**9)").outcome == "memory_limit"


def test_a_value_of_a_gigabyte(attacked: Attacked) -> None:
    assert attacked.by("class A:\n    def __repr__(self): return 'x' * 10**9\nA()").outcome == "memory_limit"
    result = attacked.by("'x' * 10**7")
    assert (result.outcome, len(result.value) < 11_000) == ("success", True)


def test_an_output_that_is_made_to_look_huge(attacked: Attacked) -> None:
    result = attacked.by("import os\nos.ftruncate(1, 16 << 20)\nos.ftruncate(3, 15 << 20)")
    assert result.outcome == "output_limit"
    assert len(result.stdout) < 11_000


def test_ignoring_the_end_of_cpu_time(attacked: Attacked) -> None:
    code = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    result = attacked.by(code, limits=ExecutionLimits(wall_seconds=45, cpu_seconds=1))
    assert result.outcome == "timeout"
    assert result.run_seconds < 44


def test_an_expression_that_the_parser_dies_of(attacked: Attacked) -> None:
    assert attacked.by("(" * 100_000 + ")" * 100_000).outcome in ("error", "memory_limit", "killed")


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
    attacks = [attack for attack in CATALOGUE if level in attack.levels]

    async def main(sandbox: Sandbox) -> dict[str, str]:
        return await failures(sandbox, attacks)

    found = run_with(Sandbox(isolation=level), main)  # type: ignore[arg-type]
    assert found == {}
