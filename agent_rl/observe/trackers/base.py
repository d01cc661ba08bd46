"""The interface of trackers, and the figures of a row of ``metrics.jsonl`` that they get."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

UNTRACKED = frozenset({"kind", "stage", "step", "steps", "version", "wall", "environments", "parts"})

PLACES = {"step": "train", "evaluation": "evaluation", "selection": "selection"}
"""The first part of a figure's name, by the kind of its row."""


class Tracker(Protocol):
    """Sends a run's figures somewhere. A topology names its class: ``run.trackers = ["my_tracker:MyTracker"]``.

    A tracker has its own process, so it may block, raise or die, and the run continues. Rows that it missed are
    recorded after the next start. A row may come twice if the process died in between.
    """

    def __init__(self, *, directory: Path, run: str, identity: str) -> None:
        """``directory`` and ``run``: the run's directory and name. ``identity`` is unique, and stays after restarts."""

    def record(self, step: int, figures: Mapping[str, float]) -> None:
        """Record figures at a step: the policy version, and for ``supervised/...`` the step of the supervised stage.

        Steps need not rise: an evaluation's version may be before the last step's, and a stage that was killed goes on
        from its checkpoint.
        """

    def close(self) -> None:
        """All rows so far are recorded; the run has ended for now."""


def require(package: str) -> None:
    """Raise ModuleNotFoundError when a package is not installed. Only the tracker's process imports it."""
    if find_spec(package) is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def tracked(row: Mapping[str, Any], stages: Sequence[str]) -> tuple[int, dict[str, float]] | None:
    """The step and the finite figures of a row; None for a row without figures. ``stages`` are the recipe's names.

    The figures are under ``train/``, ``evaluation/``, ``selection/`` and ``supervised/STAGE/``. Those of an
    environment have its name: ``train/maths/success``.
    """
    match row:
        case {"kind": str(kind), "version": int(step)} if kind in PLACES:
            place = PLACES[kind]
        case {"kind": "stage", "stage": int(stage), "steps": int(step)}:  # a supervised stage, or its newest step
            place = f"supervised/{stages[stage]}"
        case _:
            return None
    return step, {f"{place}/{name}": value for name, value in _figures(row)}


def _figures(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in row.items():
        if name not in UNTRACKED and isinstance(value, int | float) and math.isfinite(value):
            yield name, float(value)
    for part, value in row.get("parts", {}).items():
        yield f"part_{part}", float(value)
    for environment, means in row.get("environments", {}).items():
        yield from ((f"{environment}/{name}", value) for name, value in _figures(means))
