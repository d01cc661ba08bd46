"""Trackio: ``RUN/trackio``, which ``TRACKIO_DIR=RUN/trackio trackio show --project agent_rl`` shows; or what its
variables say: ``TRACKIO_DIR``, ``TRACKIO_SPACE_ID``, ``TRACKIO_SERVER_URL``, and ``TRACKIO_PROJECT`` for the project.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from agent_rl.observe.trackers.base import require

require("trackio")


class TrackioTracker:
    """A restart continues the run, whose name ends with the run's identity: Trackio knows runs by their names."""

    def __init__(self, *, directory: Path, run: str, identity: str) -> None:
        os.environ.setdefault("TRACKIO_DIR", str(directory.absolute() / "trackio"))  # read when trackio is imported
        import trackio

        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", "agent_rl"),
            name=f"{run}-{identity[:8]}",
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def record(self, step: int, figures: Mapping[str, float]) -> None:
        """Log the figures at the step."""
        self._run.log(dict(figures), step=step)

    def close(self) -> None:
        """Deliver what is not delivered yet."""
        self._run.finish()
