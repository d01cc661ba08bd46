"""TensorBoard: an event file in ``RUN/tensorboard``, which ``tensorboard --logdir RUN`` shows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agent_rl.observe.trackers.base import require

require("tensorboardX")


class TensorBoardTracker:
    """A restart adds a file. TensorBoard shows all files as one run."""

    def __init__(self, *, directory: Path, run: str, identity: str) -> None:
        from tensorboardX import SummaryWriter

        del run, identity
        folder = directory / "tensorboard"
        starts = len(list(folder.glob("events.*")))  # two starts may share the second that a file's name has
        self._writer = SummaryWriter(str(folder), filename_suffix=f".{starts}")

    def record(self, step: int, figures: Mapping[str, float]) -> None:
        """Write a scalar for each figure, and flush the file."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
