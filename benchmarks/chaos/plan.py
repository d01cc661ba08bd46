"""The plan of a chaos run: which fault hits whom at which moment. Pure: the seed decides everything."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from agent_rl.config.addresses import supervisor_node

T = TypeVar("T")


class Kind(Enum):
    """What happens. The value is the name for people and figures."""

    KILL = "kill"
    """SIGKILL to one process."""
    DOUBLE = "double_kill"
    """SIGKILL to two processes, or to one and soon after to its next process."""
    STOP = "stop"
    """SIGSTOP, and SIGCONT after some seconds."""
    SUPERVISOR = "supervisor"
    """SIGKILL to a host's supervisor. The same command then continues the run."""
    HOST = "host"
    """SIGKILL to all of a host's processes at once, its janitor included. The same command then continues the run."""
    DISK = "full_disk"
    """The disk of the run directory is filled. Once the run has ended, there is room again, and it is continued."""
    CLOCK = "clock_jump"
    """The wall clock that the processes of a host read jumps. The host's own clock is left alone."""
    LINK = "link_down"
    """The network of a host is down for some seconds."""
    SLOW = "slow_link"
    """The network of a host carries 20 Mbit/s for some seconds."""
    PARTITION = "partition"
    """Two hosts do not reach each other for some seconds."""


ENDS_RUN = frozenset({Kind.SUPERVISOR, Kind.HOST, Kind.DISK})
"""After these the host's part of the run has to be started again; after a full disk, that of all hosts."""
NETWORK = frozenset({Kind.LINK, Kind.SLOW, Kind.PARTITION})
"""These need several hosts."""
LASTING = NETWORK | {Kind.STOP}


class Moment(Enum):
    """When it happens, in the order of a recipe. The value is the name for people and figures."""

    START = "start"
    SFT = "sft"
    STAGE_CHANGE = "stage_change"
    EVALUATION = "evaluation"
    STEP = "step"
    TRANSFER = "weight_transfer"
    CHECKPOINT = "checkpoint"


IN_RL = (Moment.STEP, Moment.TRANSFER, Moment.CHECKPOINT)
WEIGHTS = {
    Kind.KILL: 8,
    Kind.STOP: 4,
    Kind.DOUBLE: 3,
    Kind.SUPERVISOR: 2,
    Kind.HOST: 1,
    Kind.DISK: 1,
    Kind.CLOCK: 2,
    Kind.LINK: 2,
    Kind.SLOW: 1,
    Kind.PARTITION: 2,
}
"""How often a kind is drawn, relative to the others. Each kind also comes once before any comes at random."""
LASTING_SECONDS = (1.0, 6.0)
GAP_SECONDS = (0.0, 4.0)
"""Between the two signals of a double kill. A process needs some seconds to start, so the second may hit a start."""
CLOCK_SECONDS = (-86_400.0, -3_600.0, -30.0, 30.0, 3_600.0, 86_400.0)
DELAY_SECONDS = {Moment.START: 3.0, Moment.STAGE_CHANGE: 0.3, Moment.TRANSFER: 0.3, Moment.CHECKPOINT: 0.02}
"""The longest time from when a moment is seen until the fault; moments that last have the default."""
LONGEST_DELAY = 1.5
QUICK = 0.25
"""In a scripted run, whose processes start in a quarter of the time."""


@dataclass(frozen=True)
class Fault:
    """One fault. ``seconds`` is how long it lasts, the gap of a double kill, or by how much the clock jumps."""

    number: int
    kind: Kind
    moment: Moment
    delay: float
    """Seconds from when the moment is seen until the fault."""
    victims: tuple[str, ...]
    """Actors and supervisors, by the names of their nodes."""
    seconds: float = 0.0

    def __str__(self) -> str:
        """As lines for people say it."""
        sized = dict.fromkeys(LASTING, f" for {self.seconds:.1f} s")
        sized |= {Kind.DOUBLE: f" {self.seconds:.1f} s apart", Kind.CLOCK: f" by {self.seconds:.0f} s"}
        what = sized.get(self.kind, "")
        return f"fault {self.number}: {self.kind.value} of {', '.join(self.victims)}{what} at {self.moment.value}"


def make_plan(
    seed: int, faults: int, homes: Mapping[str, str], *, per_run: int, kinds: Sequence[Kind], quick: bool = False
) -> list[Fault]:
    """``faults`` faults, of which every run takes the next ``per_run``, `in_order`. ``homes``: the host of each actor.

    Every kind, and every actor as the victim of a single kill, comes once before any comes again. ``quick``: what
    lasts, and the time from a moment to its fault, is shorter by the factor `QUICK`.
    """
    draw = random.Random(seed)
    drawn_kinds = _dealt(draw, kinds, [WEIGHTS[kind] for kind in kinds], faults)
    actors = list(homes)
    killed = iter(_dealt(draw, actors, [1] * len(actors), faults))
    plan: list[Fault] = []
    for first in range(0, faults, per_run):
        block = drawn_kinds[first : first + per_run]
        for number, (kind, moment) in enumerate(zip(block, _moments(draw, len(block)), strict=True), first + 1):
            delay = draw.uniform(0.0, DELAY_SECONDS.get(moment, LONGEST_DELAY))
            victims, seconds = _victims(draw, kind, homes, killed)
            if quick:
                delay, seconds = delay * QUICK, seconds * (1.0 if kind is Kind.CLOCK else QUICK)
            plan.append(Fault(number, kind, moment, delay, victims, seconds))
    return plan


def each_once(homes: Mapping[str, str]) -> list[Fault]:
    """Every actor is killed once during reinforcement learning, then every supervisor."""
    kills: list[tuple[Kind, tuple[str, ...]]] = [(Kind.KILL, (actor,)) for actor in homes]
    kills += [(Kind.SUPERVISOR, whole_host(host, homes)) for host in dict.fromkeys(homes.values())]
    return [Fault(number, kind, Moment.STEP, 1.0, victims) for number, (kind, victims) in enumerate(kills, 1)]


def _dealt(draw: random.Random, what: Sequence[T], weights: Sequence[int], count: int) -> list[T]:
    """Each of them once in random order, then at random by weight; ``count`` in all."""
    first = list(what)
    draw.shuffle(first)
    return (first + draw.choices(what, weights, k=count))[:count]


def _moments(draw: random.Random, count: int) -> list[Moment]:
    """Where the faults of one run fall: a third before reinforcement learning, the rest within it."""
    early = (Moment.START, Moment.SFT, Moment.STAGE_CHANGE, Moment.EVALUATION)
    before = max(1, count // 3)
    return [draw.choice(early) for _ in range(before)] + [draw.choice(IN_RL) for _ in range(count - before)]


def in_order(faults: Sequence[Fault]) -> list[Fault]:
    """The faults of one run in the order of a recipe. Moments of reinforcement learning come in any order."""
    order = list(Moment)
    return sorted(faults, key=lambda fault: len(order) if fault.moment in IN_RL else order.index(fault.moment))


def _victims(
    draw: random.Random, kind: Kind, homes: Mapping[str, str], killed: Iterator[str]
) -> tuple[tuple[str, ...], float]:
    """Whom a fault of this kind hits, and its seconds. The first host is the main host."""
    actors, hosts = list(homes), list(dict.fromkeys(homes.values()))
    host = draw.choice(hosts)
    match kind:
        case Kind.KILL:
            return (next(killed),), 0.0
        case Kind.DOUBLE:
            return (draw.choice(actors), draw.choice(actors)), draw.uniform(*GAP_SECONDS)
        case Kind.STOP:
            return (draw.choice([*actors, supervisor_node(host)]),), draw.uniform(*LASTING_SECONDS)
        case Kind.CLOCK:
            return (supervisor_node(host),), draw.choice(CLOCK_SECONDS)
        case Kind.SUPERVISOR | Kind.HOST:
            return whole_host(host, homes), 0.0
        case Kind.DISK:
            return tuple(node for each in hosts for node in whole_host(each, homes)), 0.0
        case Kind.LINK | Kind.SLOW:
            return (supervisor_node(host),), draw.uniform(*LASTING_SECONDS)
        case Kind.PARTITION:
            return tuple(map(supervisor_node, draw.sample(hosts, 2))), draw.uniform(*LASTING_SECONDS)


def whole_host(host: str, homes: Mapping[str, str]) -> tuple[str, ...]:
    """The supervisor of a host, and its actors."""
    return (supervisor_node(host), *(actor for actor, home in homes.items() if home == host))
