"""The interface of trackers, and the figures of a row of ``metrics.jsonl`` that they get."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

UNTRACKED = frozenset({"kind", "stage", "step", "version", "wall", "environments", "parts"})


class Tracker(Protocol):
    """Sends a run's figures somewhere. A topology names its class: ``run.trackers = ["my_tracker:MyTracker"]``.

    A tracker has its own process, so it may block, raise or die, and the run continues. Rows that it missed are
    recorded after the next start. A row may come twice if the process died in between.
    """

    def __init__(self, *, directory: Path, run: str, identity: str) -> None:
        """``directory`` and ``run``: the run's directory and name. ``identity`` is unique, and stays after restarts."""

    def record(self, version: int, figures: Mapping[str, float]) -> None:
        """Record figures at a policy version. Versions of steps rise; an evaluation's may be before the last step."""

    def close(self) -> None:
        """All rows so far are recorded; the run has ended for now."""


def require(package: str) -> None:
    """Raise ModuleNotFoundError when a package is not installed. Only the tracker's process imports it."""
    if find_spec(package) is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def tracked(row: Mapping[str, Any]) -> tuple[int, dict[str, float]] | None:
    """The policy version and the finite figures of a row, under ``train/`` and ``evaluation/``; None for other rows.

    Figures of an environment have its name: ``train/maths/success``.
    """
    place = {"step": "train", "evaluation": "evaluation"}.get(row.get("kind", ""))
    version = row.get("version")
    if place is None or not isinstance(version, int):
        return None
    return version, {f"{place}/{name}": value for name, value in _figures(row)}


def _figures(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in row.items():
        if name not in UNTRACKED and isinstance(value, int | float) and math.isfinite(value):
            yield name, float(value)
    for part, value in row.get("parts", {}).items():
        yield f"part_{part}", float(value)
    for environment, means in row.get("environments", {}).items():
        yield from ((f"{environment}/{name}", value) for name, value in _figures(means))
