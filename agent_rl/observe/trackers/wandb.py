"""Weights & Biases, configured by its environment variables: WANDB_PROJECT, WANDB_MODE=offline, WANDB_API_KEY, ..."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from agent_rl.observe.trackers.base import require

require("wandb")
AXES = dict.fromkeys(("train", "evaluation", "selection"), "policy_version") | {"supervised": "supervised_step"}
"""The horizontal axis of a figure, by the first part of its name."""


class WandbTracker:
    """A restart continues the run. Offline, ``wandb sync RUN/wandb/offline-run-*`` uploads the files of each start."""

    def __init__(self, *, directory: Path, run: str, identity: str) -> None:
        import wandb

        project = os.environ.get("WANDB_PROJECT", "agent_rl")
        self._run = wandb.init(project=project, name=run, id=identity, resume="allow", dir=directory)
        for place, axis in AXES.items():
            self._run.define_metric(axis)
            self._run.define_metric(f"{place}/*", step_metric=axis)

    def record(self, step: int, figures: Mapping[str, float]) -> None:
        """Log the figures with the step as one more figure: wandb's own steps must rise, and these need not."""
        axes = {AXES[name.partition("/")[0]]: step for name in figures}
        self._run.log({**figures, **axes})

    def close(self) -> None:
        """Finish the run for now, and wait for wandb's service, which writes the run."""
        import wandb

        self._run.finish()
        wandb.teardown()
