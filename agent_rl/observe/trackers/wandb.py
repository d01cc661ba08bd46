"""Weights & Biases, configured by its environment variables: WANDB_PROJECT, WANDB_MODE=offline, WANDB_API_KEY, ..."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from agent_rl.observe.trackers.base import require

require("wandb")
STEP = "policy_version"


class WandbTracker:
    """A restart continues the run. Offline, ``wandb sync RUN/wandb/offline-run-*`` uploads the files of each start."""

    def __init__(self, *, directory: Path, run: str, identity: str) -> None:
        import wandb

        project = os.environ.get("WANDB_PROJECT", "agent_rl")
        self._run = wandb.init(project=project, name=run, id=identity, resume="allow", dir=directory)
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)

    def record(self, version: int, figures: Mapping[str, float]) -> None:
        """Log the figures with the version, itself a figure: an evaluation's may be before the last step."""
        self._run.log({**figures, STEP: version})

    def close(self) -> None:
        """Finish the run for now, and wait for wandb's service, which writes the run."""
        import wandb

        self._run.finish()
        wandb.teardown()
