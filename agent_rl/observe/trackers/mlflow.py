"""MLflow: a run of the server that ``MLFLOW_TRACKING_URI`` names, or of ``RUN/mlflow.db``. MLflow's other variables
hold too, such as ``MLFLOW_EXPERIMENT_NAME`` and ``MLFLOW_TRACKING_TOKEN``.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from agent_rl.observe.trackers.base import require

require("mlflow")
IDENTITY = "agent_rl.identity"
"""The tag by which a restart finds its run."""
REFUSED = re.compile(r"[^\w./ :-]", re.ASCII)
"""Characters that MLflow refuses in the name of a figure."""
BATCH = 1000
"""Figures of one request: the most that MLflow takes."""


class MlflowTracker:
    """A restart continues the run. ``mlflow ui --backend-store-uri sqlite:///RUN/mlflow.db`` shows it."""

    def __init__(self, *, directory: Path, run: str, identity: str) -> None:
        from mlflow import MlflowClient

        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{directory.absolute()}/mlflow.db"
        self._client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "agent_rl")
        known = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if known is None else known.experiment_id
        found = self._client.search_runs([experiment], f"tags.`{IDENTITY}` = '{identity}'", max_results=1)
        if found:
            self._run = found[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
        else:
            self._run = self._client.create_run(experiment, run_name=run, tags={IDENTITY: identity}).info.run_id

    def record(self, step: int, figures: Mapping[str, float]) -> None:
        """Log the figures at the step."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(REFUSED.sub("_", name), value, now, step) for name, value in figures.items()]
        for begin in range(0, len(metrics), BATCH):
            self._client.log_batch(self._run, metrics=metrics[begin : begin + BATCH])

    def close(self) -> None:
        """The run has ended for now."""
        self._client.set_terminated(self._run)
