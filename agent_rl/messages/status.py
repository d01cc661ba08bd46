"""What actors and supervisors tell each other of their state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from agent_rl.figures import ActorFigures


@dataclass(frozen=True, slots=True)
class Metric:
    """One counter (which only grows while the process lives), gauge or histogram of an actor.

    ``values`` of a histogram: the counts of its buckets [len(bounds) + 1], not cumulative, and then the sum.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    values: tuple[float, ...]
    labels: dict[str, str] = field(default_factory=dict)
    bounds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ActorStatus:
    """The state of an actor, for the live table and the timeline.

    ``state`` is one word; ``detail`` may say more, also why the actor ended. ``waiting_for`` names the role and the
    thing that an idle actor waits for. Seconds are totals since the process started, ``cpu_seconds`` with children.
    ``metrics`` are for Prometheus only. ``missing`` names the peers of links that lead to nobody, or else
    what the user must mend (``Actor.alarm``).
    """

    actor: str
    role: str
    state: str
    detail: str
    figures: ActorFigures
    waiting_for: str
    busy_seconds: float
    cpu_seconds: float
    metrics: tuple[Metric, ...] = ()
    missing: str = ""


@dataclass(frozen=True, slots=True)
class ActorReport:
    """The newest status of an actor, as its supervisor passes it on.

    ``incarnation`` and ``number`` tell a new status from one that was passed on before.
    """

    status: ActorStatus
    incarnation: int
    number: int


@dataclass(frozen=True, slots=True)
class HostReport:
    """The statuses of all actors of a host that run there, from its supervisor to that of the main host."""

    actors: tuple[ActorReport, ...]


@dataclass(frozen=True, slots=True)
class Incarnations:
    """The incarnation of each actor of the sender's host, by node. Peers refuse a process that claims a higher one."""

    incarnations: dict[str, int]


@dataclass(frozen=True, slots=True)
class HostHello:
    """A supervisor greets another one, which answers with the same: each compares what both hosts must agree on.

    ``settings``: the topology by dotted key. ``wall``: the host's clock, in seconds since the epoch. ``refusal``: why
    the host does not start; empty for a host that runs.
    """

    release: str
    settings: dict[str, str]
    wall: float
    refusal: str


@dataclass(frozen=True, slots=True)
class RunState:
    """The supervisor of the learner's host tells the supervisors of other hosts to stop their actors (``ending``).

    ``exit_code`` is that of the whole run. ``finished``: nothing of the run is left to do.
    """

    ending: bool
    exit_code: int
    finished: bool


@dataclass(frozen=True, slots=True)
class ChangesInForce:
    """What was changed since the run began: the numbers of processes of roles with the key ``start``, and the swaps of
    roles, as ``KEY=VALUE`` of the topology.
    """

    numbers: dict[str, int]
    swaps: dict[str, tuple[str, ...]]
