"""Numbers that are not finite: how a step that meets them is undone and counted, and when the run stops for them.

::

    rl_step, sft_step --NotFiniteError--> SkippedSteps.skipped --(the third in a row)--> TrainingStoppedError
                      --figures---------> SkippedSteps.trained

A step either changes weights and optimizer wholly or leaves them bit for bit as they were. Weights that are not finite
themselves are never written: neither for the engines nor as a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

IN_A_ROW = 3
"""Steps skipped one after the other that stop a run."""
NAMED = 3
"""How many culprits a message names."""


class NotFiniteError(Exception):
    """A step's loss or gradient is not finite; weights and optimizer are as before the step. The message says where."""


class TrainingStoppedError(Exception):
    """Training cannot go on, and starting it again would not help; the message says why and what might."""


class SkippedSteps:
    """Counts skipped steps, and those in a row. Steps without groups say nothing: they are not told here."""

    def __init__(self) -> None:
        self.count = 0
        self.in_a_row: list[tuple[int, str]] = []
        """Step number and fault of each since the last that was trained."""

    def trained(self) -> None:
        """A step was trained."""
        self.in_a_row.clear()

    def skipped(self, step: int, fault: NotFiniteError) -> bool:
        """A step, counted from 1, was skipped; whether the run is to stop."""
        self.count += 1
        self.in_a_row.append((step, str(fault)))
        return len(self.in_a_row) >= IN_A_ROW

    def message(self, stage: str, checkpoint: Path | None) -> str:
        """For the user: which steps, what was not finite, and what to do. ``checkpoint`` is the newest."""
        before = f"the checkpoint {checkpoint}" if checkpoint else "the model the run began with"
        steps = "; ".join(f"step {step}: {fault}" for step, fault in self.in_a_row)
        return (
            f"{len(self.in_a_row)} steps of stage {stage!r} in a row were not finite and changed nothing ({steps}); "
            f"lower the stage's learning_rate or see to what is named, and run again: it goes on from {before}, which is "
            "from before them"
        )


class Snapshot:
    """Weights and optimizer state before a step of several updates, in host memory: as much again as both take."""

    def __init__(
        self, weights: Iterable[Tensor], optimizer: torch.optim.Optimizer, *, then: Callable[[], None] = lambda: None
    ) -> None:
        """``then`` is called when both were put back."""
        self._weights = [(weight, weight.detach().to("cpu", copy=True)) for weight in weights]
        self._optimizer = optimizer
        self._state = {p: {k: _copy(v) for k, v in state.items()} for p, state in optimizer.state.items()}
        self._then = then

    def put_back(self) -> None:
        """Make both as they were, bit for bit."""
        for weight, before in self._weights:
            weight.data.copy_(before)
        for parameter, state in list(self._optimizer.state.items()):
            if parameter not in self._state:  # its first update was the step's
                del self._optimizer.state[parameter]
                continue
            for key, value in self._state[parameter].items():
                if hasattr(value, "copy_"):
                    state[key].copy_(value)
                else:
                    state[key] = value
        self._then()


def _copy(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if hasattr(value, "detach") else value


def not_finite(tensors: Iterable[tuple[str, Tensor]]) -> list[str]:
    """The names of tensors that hold NaN or infinity."""
    return [name for name, tensor in tensors if tensor.is_floating_point() and not bool(tensor.isfinite().all())]


def refuse_not_finite(tensors: Mapping[str, Tensor], path: Path | str) -> None:
    """Raise TrainingStoppedError when any of what is to be written to ``path``, or sent under that name, is not finite."""
    wrong = not_finite(tensors.items())
    if wrong:
        raise TrainingStoppedError(
            f"{named(wrong)} of the model hold values that are not finite, so {path} is not written; if this is so "
            "before the first step, mend what model.path names, else lower the learning_rate and run again: "
            "the newest checkpoint is finite"
        )


def named(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
