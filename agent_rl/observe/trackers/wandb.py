"""Weights & Biases. Its own environment variables say where to: WANDB_PROJECT, WANDB_MODE=offline, WANDB_API_KEY, ..."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from agent_rl.observe.trackers.base import require

require("wandb")
STEP = "policy_version"


class WandbTracker:
    """A restart continues the run. Offline, ``wandb sync RUN/wandb/offline-run-*`` uploads what each start wrote."""

    def __init__(self, *, directory: Path, run: str, identity: str) -> None:
        import wandb

        project = os.environ.get("WANDB_PROJECT", "agent_rl")
        self._run = wandb.init(project=project, name=run, id=identity, resume="allow", dir=directory)
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)

    def record(self, version: int, figures: Mapping[str, float]) -> None:
        """Log the figures at the version, which is a figure too: an evaluation's may lie before the last step."""
        self._run.log({**figures, STEP: version})

    def close(self) -> None:
        """Finish the run for now, and wait for the service of wandb's that writes it."""
        import wandb

        self._run.finish()
        wandb.teardown()
