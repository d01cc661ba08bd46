"""What a tracker is, and which figures it gets of a row of ``metrics.jsonl``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

UNTRACKED = frozenset({"kind", "stage", "step", "version", "wall", "environments", "parts"})


class Tracker(Protocol):
    """Takes a run's figures somewhere. A topology names its class: ``run.trackers = ["my_tracker:MyTracker"]``.

    It is made and called in a process of its own, so it may block, raise or die: the run goes on. What was not recorded when it
    fails is recorded after the next start. A row may come twice, when the process died in between.
    """

    def __init__(self, *, directory: Path, run: str, identity: str) -> None:
        """``directory`` is the run's, ``run`` its name. ``identity`` is the same after each restart, and no other run's."""

    def record(self, version: int, figures: Mapping[str, float]) -> None:
        """Figures at a policy version. The versions of training steps rise; an evaluation's may lie before the last step."""

    def close(self) -> None:
        """Everything was recorded, for now."""


def require(package: str) -> None:
    """Raise ModuleNotFoundError where a package is not installed; it is imported in the tracker's process alone."""
    if find_spec(package) is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def tracked(row: Mapping[str, Any]) -> tuple[int, dict[str, float]] | None:
    """The policy version of a row and its finite figures, under ``train/`` and ``evaluation/``; None for other rows.

    Figures of one environment are named with it: ``train/maths/success``.
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
