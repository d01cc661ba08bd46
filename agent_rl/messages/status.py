"""What actors and supervisors tell each other of their state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from agent_rl.figures import ActorFigures


@dataclass(frozen=True, slots=True)
class Metric:
    """One counter (which only grows while the process lives), gauge or histogram of an actor.

    ``values`` holds one value. For a histogram, ``values`` holds the counts of its buckets [len(bounds) + 1], not
    cumulative, and then the sum.
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
    thing that an idle actor waits for, as in ``"roc_filter: step 13"``; empty while the actor works. Seconds are totals
    since the process started: ``busy_seconds`` of the role's own work (see ``Actor.busy_seconds``), ``cpu_seconds`` of
    processor time, children included. ``metrics`` are further counts, for Prometheus only, and empty without
    ``run.metrics_port``. ``missing`` names, in words, the peers of links that lead to nobody, because all are lost or
    have left, or else what the user must mend (``Actor.alarm``).
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

    ``incarnation`` is that of the actor's process, and ``number`` counts its statuses: both tell a new status from one
    that was passed on before.
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
    """The incarnation of each actor, by node: each supervisor sends its actors' to the supervisors of other hosts.

    Peers refuse a process that claims a higher incarnation.
    """

    incarnations: dict[str, int]


@dataclass(frozen=True, slots=True)
class HostHello:
    """A supervisor greets another one, which answers with the same: each compares what both hosts must agree on.

    ``settings``: the values of the topology by dotted key (`agent_rl.config.agreement`). ``wall``: the host's clock, in
    seconds since the epoch. ``refusal``: why the host does not start; empty for a host that runs.
    """

    release: str
    settings: dict[str, str]
    wall: float
    refusal: str


@dataclass(frozen=True, slots=True)
class RunState:
    """The supervisor of the learner's host tells the supervisors of other hosts to stop their actors (``ending``).

    ``exit_code`` is the exit code of the whole run. ``finished`` says that nothing of the run is left to do.
    """

    ending: bool
    exit_code: int
    finished: bool


@dataclass(frozen=True, slots=True)
class ChangesInForce:
    """The supervisor of the learner's host tells all others what was changed since the run began.

    ``numbers``: how many processes a role has, for roles whose entry has the key ``start``.
    """

    numbers: dict[str, int]
