"""What `agent-rl swap`, `scale` and `drain` ask of a run that is under way, and what the run answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SwapWanted:
    """Give a role another class or other settings: its processes stop in order, and new ones take their places.

    ``class_path``: ``module:Class``; empty: the class stays. ``settings``: ``key=value``, the value in TOML. The other
    settings stay, unless ``fresh``. ``only_check``: check whether the swap is possible, and stop nothing. The
    supervisor of the learner's host sends the message on to the other supervisors.
    """

    role: str
    class_path: str
    settings: tuple[str, ...]
    fresh: bool
    only_check: bool


@dataclass(frozen=True, slots=True)
class DrainWanted:
    """Stop all actors of a host in order, and do without them. The host's supervisor ends, if it has no other host."""

    host: str


@dataclass(frozen=True, slots=True)
class ScaleWanted:
    """Give a role another number of processes, of those that the file has: replicas with the highest numbers come last,
    and go first.
    """

    role: str
    number: int


@dataclass(frozen=True, slots=True)
class ReplicasWanted:
    """The supervisor of the learner's host asks that of another host to start and stop replicas of a role.

    ``number``: how many processes the role has from now on, on all hosts. ``starts``, ``stops``: replicas that start or
    stop, as ``role.number``.
    """

    role: str
    number: int
    starts: tuple[str, ...]
    stops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Changed:
    """Why a change was refused, or what was done; one line each."""

    refused: tuple[str, ...]
    done: tuple[str, ...]
