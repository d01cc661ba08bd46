"""Attacks on the sandbox: `attacks.toml` has them, the tests and ``agent-rl bench hostile`` run the same ones.

`REACH` has the attacks on what a call can reach: other calls, later calls in the same slot, the executor, the host.
Each runs beside an honest neighbour's call, which has to succeed with the right output. `SHARES` has the attacks on
what calls share: processors, memory, locks and bookkeeping of the kernel, places for calls. Each goes on until its
deadline or a limit ends it; whether it took more than its share shows on its neighbours, not in what it prints.

In the file a ``said`` is an expression, and the attack holds when its value is one of ``errors`` (EPERM). ``{{NAME}}``
stands for an entry of ``parts``, or for a number of this machine. Each code follows the prelude of its table.
"""

from __future__ import annotations

import os
import platform
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from actors.sandbox.isolation.syscalls import (
    ALLOWED,
    ARCHITECTURES,
    CHECKED,
    ENTERING,
    IGNORED,
    MARKING,
    MISSING,
    REFUSED,
    SHORTENING,
    SIGNALLING,
    numbers,
)
from actors.sandbox.owner.client import ExecutionLimits, Sandbox
from agent_rl.environments.base import ToolOutput

MACHINE = platform.machine() if platform.machine() in ARCHITECTURES else "x86_64"
GROUPS = (*ALLOWED, *CHECKED, *SIGNALLING, IGNORED, MARKING, SHORTENING, ENTERING, MISSING, REFUSED)
NUMBERS = {name: number for group in GROUPS for name, number in numbers(group.calls, MACHINE).items()}
NUMBERS["futex_waitv"] = 449
CLONE = {"x86_64": 56}.get(MACHINE, 220)
ANYHOW = ("success", "error", "timeout", "killed", "memory_limit", "output_limit")
"""The outcomes of calls that a limit may end at any point."""
LIMITS = ExecutionLimits(wall_seconds=20, cpu_seconds=10, memory_bytes=128 << 20, output_bytes=10_000, processes=8)
NEIGHBOUR = "import os\nopen('mine', 'w').write('honest')\nprint(open('mine').read(), os.listdir('.'))"
VICTIMS = 3
"""Calls after the attack: children that wait in other slots take the first."""
HEAD_START_SECONDS = 0.1
"""How long an accomplice runs before the attack."""


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack.

    ``code`` is the Python source that a call runs. It prints HELD when the attack did not succeed, ``BROKEN: ...`` when
    it did. ``proof`` is a sentence: what the attacker has when the code prints BROKEN.

    Some attacks have more sides. ``accomplice`` is a second call of the attacker, which is started first and runs at
    the same time; with ``in_session`` it is the first cell of a session, and stands there, stopped, when ``code`` runs.
    ``victim`` is an honest call that runs right after ``code``, in the same interpreter and mostly in the same slot.
    Both print HELD or BROKEN too; an accomplice may print nothing.

    ``ends``: the outcomes with which the call may end; a call that ends with another outcome than success need not
    print HELD. ``levels``: the levels of isolation that hold against the attack.
    """

    name: str
    group: str
    code: str
    proof: str
    accomplice: str = ""
    victim: str = ""
    in_session: bool = False
    ends: tuple[str, ...] = ("success",)
    levels: tuple[str, ...] = ("strong", "filtered")


def load_attacks() -> tuple[tuple[Attack, ...], tuple[Attack, ...]]:
    """The attacks on what a call can reach, and those on what calls share."""
    data = tomllib.loads(Path(__file__).with_name("attacks.toml").read_text())
    parts = {**data["parts"], "NUMBERS": repr(NUMBERS), "CLONE": str(CLONE)}

    def filled(text: str) -> str:
        for name, part in parts.items():
            text = text.replace(f"{{{{{name}}}}}", part)
        return text

    preludes = {table: filled(text) for table, text in data["preludes"].items()}

    def attack(table: str, entry: Mapping[str, Any]) -> Attack:
        fields = {**entry, "levels": tuple(entry.get("levels", ("strong", "filtered")))}
        if fields.pop("needs_root", False) and os.geteuid() != 0:
            fields["levels"] = ()  # what the kernel counts by user is the slot's own where root gives each slot a user
        if said := fields.pop("said", None):
            errors = tuple(fields.pop("errors", ("EPERM",)))
            fields["code"] = f"said = {said}\nconclude(said in {errors!r}, said)\n"
        if taken := fields.pop("taken", None):
            fields["proof"] = f"Neighbours time out, or wait more than 10 times as long: the calls have {taken}."
            fields["ends"] = ANYHOW
        for side in ("code", "accomplice", "victim"):
            if side in fields:
                fields[side] = preludes[table] + filled(fields[side])
        return Attack(**{**fields, "ends": tuple(fields.get("ends", ("success",)))})

    reach, shares = (tuple(attack(table, entry) for entry in data[table]) for table in ("reach", "shares"))
    return reach, shares


REACH, SHARES = load_attacks()


async def failure(sandbox: Sandbox, attack: Attack) -> str:
    """Run the attack beside an honest neighbour; what is wrong, empty if it was held and nobody else was harmed.

    The sandbox allows sessions.
    """
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
        held = "HELD" in result.stdout.split() and "BROKEN" not in result.stdout
        if result.outcome not in ends or not (held or result.outcome != "success"):
            return f"{side}: {result.outcome} {result.stdout}{result.stderr}"
    return ""
