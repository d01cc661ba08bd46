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
class HostHello:
    """A supervisor greets another one, which answers with the same: each compares what both hosts must agree on.

    ``settings``: the topology by dotted key. ``wall``: the host's clock, in seconds since the epoch. ``refusal``: why
    the host does not start; empty for a host that runs.
    """

    release: str
    settings: dict[str, str]
    wall: float
    refusal: str
