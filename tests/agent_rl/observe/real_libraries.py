"""MLflow, trackio, pandas and polars as they are: `test_trackers.py` runs this file in an environment with them."""

from __future__ import annotations

import importlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from agent_rl import load_run
from agent_rl.config.plugins import resolve
from agent_rl_contract.tracker import Kept, TrackerContract
from tests.agent_rl.records.report_runs import whole


class TestMlflow(TrackerContract):
    @property
    def tracker(self) -> Any:  # type: ignore[override]
        return resolve("tracker", "mlflow")

    def read(self, directory: Path) -> Kept:
        from mlflow import MlflowClient

        uri = f"sqlite:///{directory}/mlflow.db"
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        (run,) = client.search_runs([client.get_experiment_by_name("agent_rl").experiment_id])
        assert (run.info.run_name, run.info.status) == ("demo", "FINISHED")
        return {
            name: sorted((each.step, each.value) for each in client.get_metric_history(run.info.run_id, name))
            for name in run.data.metrics
        }

    def test_figures_that_mlflow_would_refuse_are_renamed_and_many_are_sent_in_parts(self, tmp_path: Path) -> None:
        tracker = self.make(tmp_path)
        tracker.record(1, {"train/übung@2": 0.5, **{f"train/part_{index}": 1.0 for index in range(1200)}})
        tracker.close()
        kept = self.read(tmp_path)
        assert kept["train/_bung_2"] == [(1, 0.5)]
        assert len(kept) == 1201


class TestTrackio(TrackerContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Trackio reads its folder once a process; each run of a topology has a process of its own."""
        import trackio.sqlite_storage as storage
        from trackio import utils

        monkeypatch.setattr(utils, "TRACKIO_DIR", tmp_path / "trackio")
        monkeypatch.setattr(storage, "TRACKIO_DIR", tmp_path / "trackio", raising=False)

    @property
    def tracker(self) -> Any:  # type: ignore[override]
        return resolve("tracker", "trackio")

    def read(self, directory: Path) -> Kept:
        with sqlite3.connect(directory / "trackio" / "agent_rl.db") as database:
            rows = database.execute("SELECT run_name, step, metrics FROM metrics").fetchall()
        assert {name for name, *_ in rows} == {"demo-01234567"}
        found: dict[str, list[tuple[int, float]]] = {}
        for _, step, metrics in rows:
            for name, value in json.loads(metrics).items():
                found.setdefault(name, []).append((step, value))
        return {name: sorted(values) for name, values in found.items()}


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_tables_hold_the_rows_with_their_missing_values(tmp_path: Path, library: str) -> None:
    importlib.import_module(library)
    run = load_run(whole(tmp_path))
    for rows in (run.steps, run.evaluations, run.groups, run.trajectories, run.calls, run.timeline, run.alarms):
        table, expected = getattr(rows, library)(), list(rows.dicts())
        assert list(table.columns) == list(rows.columns)
        assert len(table) == len(expected)
        for name in rows.columns if expected else ():
            values = table[name].to_list() if library == "polars" else table[name].astype(object).to_list()
            plain = [
                None if library == "pandas" and value is importlib.import_module("pandas").NA else value
                for value in values
            ]
            assert plain == [row[name] for row in expected], name
