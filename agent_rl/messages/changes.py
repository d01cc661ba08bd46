"""What `agent-rl swap`, `scale`, `drain` and `stop` ask of a run that is under way, and what the run answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SwapWanted:
    """Give a role another class or other settings: its processes stop in order, and new ones take their places.

    An empty ``class_path`` keeps the class. ``settings``: ``key=value``, the value in TOML; the others stay, unless
    ``fresh``. ``only_check``: say whether the swap is possible, and stop nothing.
    """

    role: str
    class_path: str
    settings: tuple[str, ...]
    fresh: bool
    only_check: bool


@dataclass(frozen=True, slots=True)
class TakeBackWanted:
    """Swap a role back: ``class_path`` with ``settings`` (JSON) keeps dying. A role that is another by now stays."""

    role: str
    class_path: str
    settings: str


@dataclass(frozen=True, slots=True)
class DrainWanted:
    """Stop all actors of a host in order, and do without them."""

    host: str


@dataclass(frozen=True, slots=True)
class StopWanted:
    """Stop the run in order, as SIGINT does."""


@dataclass(frozen=True, slots=True)
class ScaleWanted:
    """Give a role another number of processes: replicas with the highest numbers come last, and go first."""

    role: str
    number: int


@dataclass(frozen=True, slots=True)
class ReplicasWanted:
    """Start and stop replicas of a role (``role.number``), which has ``number`` of them from now on, on all hosts."""

    role: str
    number: int
    starts: tuple[str, ...]
    stops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Changed:
    """Why a change was refused, or what was done; one line each."""

    refused: tuple[str, ...]
    done: tuple[str, ...]
