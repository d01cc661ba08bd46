"""Numbers that are not finite: a step with such numbers is undone and counted, and several in a row stop the run.

::

    rl_step, sft_step --NotFiniteError--> SkippedSteps.skipped --(the third in a row)--> TrainingStoppedError
                      --figures---------> SkippedSteps.trained

A step either changes weights and optimizer completely or leaves every bit as it was. Weights that are not finite are
never written, neither for the engines nor as a checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

IN_A_ROW = 3
"""So many skipped steps in a row stop a run."""
NAMED = 3
"""How many culprits a message names."""


class NotFiniteError(Exception):
    """A step's loss or gradient is not finite; weights and optimizer are as before the step. The message says where."""


class TrainingStoppedError(Exception):
    """Training cannot continue, and a restart would not help; the message says why and what to do."""


class SkippedSteps:
    """Counts skipped steps, and skipped steps in a row. Steps without groups are not reported here."""

    def __init__(self) -> None:
        self.count = 0
        self.in_a_row: list[tuple[int, str]] = []
        """Step number and fault of each step skipped since the last trained step."""

    def trained(self) -> None:
        """A step was trained."""
        self.in_a_row.clear()

    def skipped(self, step: int, fault: NotFiniteError) -> bool:
        """Count a skipped step (numbered from 1); return whether the run must stop."""
        self.count += 1
        self.in_a_row.append((step, str(fault)))
        return len(self.in_a_row) >= IN_A_ROW

    def message(self, stage: str, checkpoint: Path | None) -> str:
        """The message for the user: the steps, the faults, the remedy. ``checkpoint`` is the newest."""
        before = f"the checkpoint {checkpoint}" if checkpoint else "the model the run began with"
        steps = "; ".join(f"step {step}: {fault}" for step, fault in self.in_a_row)
        return (
            f"{len(self.in_a_row)} steps of stage {stage!r} in a row were not finite and changed nothing ({steps}); "
            f"lower the stage's learning_rate or see to what is named, and run again: it goes on from {before}, which "
            "is from before them"
        )


def not_finite(tensors: Iterable[tuple[str, Tensor]]) -> list[str]:
    """The names of tensors that hold NaN or infinity."""
    return [name for name, tensor in tensors if tensor.is_floating_point() and not is_finite(tensor)]


def is_finite(tensor: Tensor) -> bool:
    """Whether a floating-point tensor holds neither NaN nor infinity.

    A sum is read once and allocates nothing, where `isfinite` writes a mask several times. NaN and infinity stay in any
    sum. A sum of finite numbers may overflow, so only a sum that is not finite needs the exact check.
    """
    return math.isfinite(tensor.detach().sum().item()) or bool(tensor.isfinite().all())


def refuse_not_finite(tensors: Mapping[str, Tensor], path: Path | str) -> None:
    """Raise TrainingStoppedError when a tensor that is to be written to ``path``, or sent, is not finite."""
    wrong = not_finite(tensors.items())
    if wrong:
        raise TrainingStoppedError(
            f"{named(wrong)} of the model hold values that are not finite, so {path} is not written; if this is so "
            "before the first step, repair the model that model.path names, else lower the learning_rate and run "
            "again: the newest checkpoint is finite"
        )


def named(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
