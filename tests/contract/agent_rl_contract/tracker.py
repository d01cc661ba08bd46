"""The contract of trackers, as tests: derive from `TrackerContract`, name the class, and read back what it recorded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Kept = Mapping[str, list[tuple[int, float]]]
"""Figures by name, each as (step, value) in the order of steps."""


class TrackerContract(ABC):
    """The suite. ``tracker`` is the class."""

    tracker: Any

    @abstractmethod
    def read(self, directory: Path) -> Kept:
        """The recorded figures of the run in ``directory``."""

    def make(self, directory: Path) -> Any:
        """The tracker, as the supervisor makes it at each start of the run."""
        return self.tracker(directory=directory, run="demo", identity="0123456789abcdef")

    def test_each_figure_is_kept_at_its_step(self, tmp_path: Path) -> None:
        """Steps may have gaps, and an evaluation's version may be before the last step's."""
        tracker = self.make(tmp_path)
        tracker.record(20, {"supervised/begin/loss": 0.75})
        tracker.record(1, {"train/success": 0.25, "train/loss": -1.5})
        tracker.record(4, {"train/success": 0.5})
        tracker.record(2, {"evaluation/success_after_greedy": 1.0})
        tracker.close()
        kept = self.read(tmp_path)
        assert kept["supervised/begin/loss"] == [(20, 0.75)]
        assert kept["train/success"] == [(1, 0.25), (4, 0.5)]
        assert kept["train/loss"] == [(1, -1.5)]
        assert kept["evaluation/success_after_greedy"] == [(2, 1.0)]

    def test_a_restart_goes_on_in_the_same_run(self, tmp_path: Path) -> None:
        """Also for a tracker that was not closed, as after a power failure."""
        first = self.make(tmp_path)
        first.record(1, {"train/success": 0.25})
        first.close()
        second = self.make(tmp_path)
        second.record(2, {"train/success": 0.5})
        second.close()
        assert self.read(tmp_path)["train/success"] == [(1, 0.25), (2, 0.5)]
