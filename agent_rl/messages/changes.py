"""What `agent-rl swap` and `agent-rl drain` ask of a run that is under way, and what the run answers."""

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
class Changed:
    """Why a change was refused, or what was done; one line each."""

    refused: tuple[str, ...]
    done: tuple[str, ...]
