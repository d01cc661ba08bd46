"""The plans of runs: which fault hits whom, and when; which actor is swapped or scaled. Pure: the seed decides.

`faults.toml` has the kinds of faults and the moments.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from agent_rl.config.addresses import supervisor_node

T = TypeVar("T")

_DATA = tomllib.loads(Path(__file__).with_name("faults.toml").read_text())
KINDS: Mapping[str, Mapping[str, Any]] = _DATA["kinds"]
MOMENTS: Mapping[str, float] = _DATA["moments"]
"""The longest delay of each, in the order of a recipe."""
ENDS_RUN = frozenset(name for name, kind in KINDS.items() if kind.get("ends_run"))
CHANGES = frozenset(name for name, kind in KINDS.items() if kind.get("change"))
"""Kinds that are changes by commands, of scripted runs."""
NETWORK = frozenset(name for name, kind in KINDS.items() if kind.get("network"))
EARLY = ("start", "sft", "stage_change", "evaluation")
IN_RL = ("step", "weight_transfer", "checkpoint")
QUICK = 0.25
"""By this factor delays and durations are shorter in a scripted run, whose processes start in a quarter of the time."""


@dataclass(frozen=True)
class Fault:
    """One fault. ``seconds`` is how long it lasts, the gap of a double kill, or by how much the clock jumps."""

    number: int
    kind: str
    moment: str
    delay: float
    """Seconds from when the moment is seen until the fault."""
    victims: tuple[str, ...]
    """Actors and supervisors, by the names of their nodes."""
    seconds: float = 0.0

    def __str__(self) -> str:
        """A line for people."""
        says = KINDS[self.kind].get("says", " for {0:.1f} s" if self.seconds else "")
        return (
            f"fault {self.number}: {self.kind} of {', '.join(self.victims)}{says.format(self.seconds)} at {self.moment}"
        )


def make_plan(
    seed: int, faults: int, homes: Mapping[str, str], *, per_run: int, kinds: Sequence[str], quick: bool = False
) -> list[Fault]:
    """``faults`` faults, of which every run takes the next ``per_run``, `in_order`. ``homes``: the host of each actor.

    Every kind, and every actor as the victim of a single kill, comes once before any comes again. ``quick``: as
    `QUICK` says.
    """
    draw = random.Random(seed)
    drawn_kinds = _dealt(draw, kinds, [KINDS[kind]["weight"] for kind in kinds], faults)
    actors = list(homes)
    killed = iter(_dealt(draw, actors, [1] * len(actors), faults))
    plan: list[Fault] = []
    for first in range(0, faults, per_run):
        block = drawn_kinds[first : first + per_run]
        for number, (kind, moment) in enumerate(zip(block, _moments(draw, len(block)), strict=True), first + 1):
            delay = draw.uniform(0.0, MOMENTS[moment])
            victims = _victims(draw, kind, homes, killed)
            seconds = 0.0
            if "seconds" in KINDS[kind]:
                seconds = draw.uniform(*KINDS[kind]["seconds"]) * (QUICK if quick else 1.0)
            elif "choices" in KINDS[kind]:
                seconds = draw.choice(KINDS[kind]["choices"])
            plan.append(Fault(number, kind, moment, delay * (QUICK if quick else 1.0), victims, seconds))
    return plan


def each_once(homes: Mapping[str, str]) -> list[Fault]:
    """Every actor is killed once during reinforcement learning, then every supervisor."""
    kills: list[tuple[str, tuple[str, ...]]] = [("kill", (actor,)) for actor in homes]
    kills += [("supervisor", whole_host(host, homes)) for host in dict.fromkeys(homes.values())]
    return [Fault(number, kind, "step", 1.0, victims) for number, (kind, victims) in enumerate(kills, 1)]


def in_order(faults: Sequence[Fault]) -> list[Fault]:
    """The faults of one run in the order of a recipe. Moments of reinforcement learning come in any order."""
    order = list(MOMENTS)
    return sorted(faults, key=lambda fault: len(order) if fault.moment in IN_RL else order.index(fault.moment))


def _dealt(draw: random.Random, what: Sequence[T], weights: Sequence[int], count: int) -> list[T]:
    """Each of them once in random order, then at random by weight; ``count`` in all."""
    first = list(what)
    draw.shuffle(first)
    return (first + draw.choices(what, weights, k=count))[:count]


def _moments(draw: random.Random, count: int) -> list[str]:
    """Where the faults of one run fall: a third before reinforcement learning, the rest within it."""
    before = max(1, count // 3)
    return [draw.choice(EARLY) for _ in range(before)] + [draw.choice(IN_RL) for _ in range(count - before)]


def _victims(draw: random.Random, kind: str, homes: Mapping[str, str], killed: Iterator[str]) -> tuple[str, ...]:
    """The actors and supervisors that a fault of this kind hits. The first host is the main host."""
    actors, hosts = list(homes), list(dict.fromkeys(homes.values()))
    host = draw.choice(hosts)
    match kind:
        case "kill":
            return (next(killed),)
        case "double_kill":
            return draw.choice(actors), draw.choice(actors)
        case "stop":
            return (draw.choice([*actors, supervisor_node(host)]),)
        case "supervisor" | "host":
            return whole_host(host, homes)
        case "full_disk":
            return tuple(node for each in hosts for node in whole_host(each, homes))
        case "partition":
            return tuple(map(supervisor_node, draw.sample(hosts, 2)))
        case "swap" | "swap_back" | "refused" | "second" | "kill_within":
            return (f"{draw.choice([*WITHOUT_MODEL])}.0",)
        case "scale":
            return (f"{draw.choice(SCALED)}.0",)
        case "drain":
            return whole_host(draw.choice(hosts[1:] or hosts), homes)
        case _:
            return (supervisor_node(host),)


def whole_host(host: str, homes: Mapping[str, str]) -> tuple[str, ...]:
    """The supervisor of a host, and its actors."""
    return (supervisor_node(host), *(actor for actor, home in homes.items() if home == host))


# Changes -------------------------------------------------------------------------------------------------------------

OWN = "benchmarks.chaos.actors"
WITHOUT_MODEL = {
    "kv_scheduler": ("actors.kv_scheduler:KVScheduler", "group_affinity_scheduler:GroupAffinityScheduler"),
    "roc_filter": ("actors.roc_filter:RoCFilter", "shortest_correct_filter:ShortestCorrectFilter"),
    "learner": (f"{OWN}:ScriptedLearner", f"{OWN}:OtherScriptedLearner"),
    "rollout_generator": (f"{OWN}:ScriptedGenerator", f"{OWN}:OtherScriptedGenerator"),
    "tool_executor": ("actors.tool_executor:ToolExecutor", f"{OWN}:OtherExecutor"),
}
"""By role: the class that a run begins with, and the one that takes turns with it."""
BROKEN = {role: f"{OWN}:Broken{role.title().replace('_', '')}" for role in WITHOUT_MODEL}
"""By role, a class that any check takes, and that does not start."""
SCALED = ("rollout_generator", "tool_executor")
"""Roles of which there may be several."""
MOST_REPLICAS = 3


@dataclass(frozen=True)
class Change:
    """A swap of a role for a class, or with ``number`` another number of its processes; or a ``host`` leaves."""

    role: str
    class_path: str = ""
    number: int = 0
    host: str = ""

    def words(self, directory: str) -> list[str]:
        """The arguments of ``agent-rl``."""
        if self.host:
            return ["drain", directory, self.host]
        if self.number:
            return ["scale", directory, self.role, str(self.number)]
        return ["swap", directory, self.role, "--class", self.class_path]

    def __str__(self) -> str:
        if self.host:
            return f"drain {self.host}"
        return f"scale {self.role} {self.number}" if self.number else f"swap {self.role} {self.class_path}"
