"""Attacks on the sandbox as data: the tests and ``agent-rl bench hostile`` run the same ones.

``reach.py`` has those on what a call can reach, ``shares.py`` those on what a call can take from its neighbours. Each
runs beside an honest neighbour's call, which has to succeed with the right output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Group: TypeAlias = Literal["descriptors", "files", "memory", "processes", "processor", "signals", "sockets", "timing"]
"""What an attack goes through."""
HELD, BROKEN = "HELD", "BROKEN"
"""The words that an attack's code prints: ``HELD`` when it did not succeed, ``BROKEN: ...`` when it did."""


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack.

    ``code`` is the Python source that a call runs. ``proof`` is a sentence: what the attacker has when the code prints
    BROKEN.

    Some attacks have more sides. ``accomplice`` is a second call of the attacker, which is started first and runs at
    the same time; with ``in_session`` it is the first cell of a session, and stands there, stopped, when ``code`` runs.
    ``victim`` is an honest call that runs right after ``code``, in the same interpreter and mostly in the same slot.
    Both print HELD or BROKEN too; an accomplice may print nothing.

    ``ends``: the outcomes with which the call may end; one that ends with another outcome than success need not print
    HELD. ``levels``: the levels of isolation that hold against it.
    """

    name: str
    group: Group
    code: str
    proof: str
    accomplice: str = ""
    victim: str = ""
    in_session: bool = False
    ends: tuple[str, ...] = ("success",)
    levels: tuple[str, ...] = ("strong", "filtered")


def held(said: str) -> bool:
    """Whether the output of an attack's code says that it did not succeed."""
    return HELD in said.split() and BROKEN not in said


def require_unique_names(attacks: Sequence[Attack]) -> None:
    """Raise ValueError where two attacks have one name."""
    names = [attack.name for attack in attacks]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"benchmarks/hostile: two attacks have the name {', '.join(twice)}: give each a name of its own"
        )
