"""Trackers: what they keep, what they are given, and what becomes of a run whose tracker fails."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.runtime.tracking import Deadlines, Tracking
from agent_rl.config.load import load_topology
from agent_rl.config.plugins import resolve
from agent_rl.figures import ActorFigures, Fates, FilterFigures, LearnerFigures
from agent_rl.observe.trackers.base import tracked
from agent_rl.topology_checks.topology import check_topology
from agent_rl_contract.tracker import Kept, TrackerContract
from tests.event_files import scalars

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-trackers" / "bin" / "python"
ROW = {"kind": "step", "stage": "rl", "step": 1, "version": 1, "success": 0.5, "seconds": 3.0, "wall": 9.0}
MINE = """
import json, os, time

class Mine:
    '''Keeps what it is given in a file, and does what the file `behaviour` says.'''

    def __init__(self, *, directory, run, identity):
        self.directory = directory
        self.keep({"made": identity})
        if self.behaviour() == "raise at start":
            raise RuntimeError("no such server")

    def behaviour(self):
        file = self.directory / "behaviour"
        return file.read_text() if file.exists() else ""

    def keep(self, what):
        with (self.directory / "kept.jsonl").open("a") as file:
            file.write(json.dumps(what) + "\\n")

    def record(self, version, figures):
        match self.behaviour():
            case "raise": raise ValueError("a figure it does not like")
            case "hang": time.sleep(600)
            case "die": os._exit(7)
            case "talk": print("what no one asked for")
        self.keep({"version": version, **figures})

    def close(self):
        self.keep({"closed": True})
"""


class TestTensorBoard(TrackerContract):
    @property
    def tracker(self) -> Any:  # type: ignore[override]
        return resolve("tracker", "tensorboard")

    def read(self, directory: Path) -> Kept:
        return scalars(directory)


def logged(content: bytes) -> Iterator[bytes]:
    """The records of a log of LevelDB's format, behind a header of 7 bytes."""
    parts, at = b"", 7
    while at < len(content):
        if (room := 32768 - at % 32768) < 7:  # a block ends with zeros where no header fits
            at += room
            continue
        size, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        parts += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in {1, 4}:  # whole, or the last part
            yield parts
            parts = b""


class TestWandb(TrackerContract):
    @pytest.fixture(autouse=True)
    def _offline(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WANDB_MODE", "offline")
        monkeypatch.setenv("WANDB_SILENT", "true")

    @property
    def tracker(self) -> Any:  # type: ignore[override]
        return resolve("tracker", "wandb")

    def read(self, directory: Path) -> Kept:
        from wandb.proto.wandb_internal_pb2 import Record

        found: dict[str, list[tuple[int, float]]] = {}
        identities = set()
        for path in directory.glob("wandb/offline-run-*/*.wandb"):
            for record in map(Record.FromString, logged(path.read_bytes())):
                if record.run.run_id:
                    identities.add(record.run.run_id)
                items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
                for name, value in items.items():
                    if "/" in name:
                        axis = "supervised_step" if name.startswith("supervised/") else "policy_version"
                        found.setdefault(name, []).append((json.loads(items[axis]), json.loads(value)))
        assert identities == {"0123456789abcdef"}
        return {name: sorted(values) for name, values in found.items()}


def test_figures_are_named_by_what_they_are_of() -> None:
    maths = {"success": 1.0, "parts": {"x": 2.0}}
    row = {**ROW, "parts": {"tests": 0.25}, "environments": {"maths": maths}, "no": None}
    figures = {"success": 0.5, "seconds": 3.0, "part_tests": 0.25, "maths/success": 1.0, "maths/part_x": 2.0}
    assert tracked(row, ()) == (1, {f"train/{name}": value for name, value in figures.items()})
    assert tracked({**ROW, "kind": "evaluation", "success": float("nan")}, ()) == (1, {"evaluation/seconds": 3.0})
    assert tracked({"kind": "stage", "stage": 0}, ["rl"]) is None
    supervised = {"kind": "stage", "stage": 1, "steps": 9, "loss": 0.5, "tokens": 40}
    assert tracked(supervised, ["rl", "sft"]) == (9, {"supervised/sft/loss": 0.5, "supervised/sft/tokens": 40.0})


class Run:
    """A run directory whose rows are tracked by the class above."""

    def __init__(self, folder: Path) -> None:
        self.directory = folder / "run"
        self.directory.mkdir()
        (folder / "my_tracker.py").write_text(MINE)
        self.path = folder / "topology.toml"
        self.path.write_text(Path("examples/quickstart/quickstart.toml").read_text())
        overrides = [f"run.directory={self.directory}", 'run.trackers=["my_tracker:Mine"]']
        self.topology = load_topology(self.path, overrides)
        self.said: list[str] = []
        self.rows = 0

    def add(self, *versions: int) -> int:
        with (self.directory / "metrics.jsonl").open("a") as file:
            file.writelines(json.dumps({**ROW, "version": version}) + "\n" for version in versions)
        self.rows += len(versions)
        return self.rows

    @property
    def kept(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.directory / "kept.jsonl").read_text().splitlines()]

    def versions(self) -> list[int]:
        return [each["version"] for each in self.kept if "version" in each]

    async def until(self, version: int) -> None:
        """The tracker has the row of this version."""
        while not (self.directory / "kept.jsonl").exists() or version not in self.versions():  # noqa: ASYNC110
            await trio.sleep(0.05)  # what another process does is looked at

    @asynccontextmanager
    async def tracking(self, **seconds: float) -> AsyncIterator[Tracking]:
        """One start of the run."""
        tracking = Tracking(self.topology, self.path, self.said.append, Deadlines(**seconds))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tracking.run)
            yield tracking
            await tracking.finish()
            nursery.cancel_scope.cancel()

    async def track(self, **seconds: float) -> None:
        async with self.tracking(**seconds):
            pass


def written(rows: int) -> ActorFigures:
    """The filter's figures once it has written so many rows."""
    none = dict.fromkeys(("groups_open", "groups_waiting", "held_back_by", "trajectories", "queue", "checks_failed"), 0)
    return ActorFigures(filter=FilterFigures(**none, fates=Fates(), rows=rows))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


@pytest.mark.real_time
async def test_whole_rows_arrive_while_the_run_goes_and_a_restart_delivers_the_rest(run: Run) -> None:
    run.add(1, 2)
    async with run.tracking() as tracking:
        await run.until(2)
        tracking.observe(written(run.add(3)))
    assert run.kept[-1] == {"closed": True}
    assert run.versions() == [1, 2, 3]
    run.add(4)
    with (run.directory / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "step", "versi')
    await run.track()
    assert run.versions() == [1, 2, 3, 4]
    assert run.kept[-2] == {"version": 4, "train/success": 0.5, "train/seconds": 3.0}
    first, second = (each["made"] for each in run.kept if "made" in each)
    assert first == second
    assert run.said == []


@pytest.mark.real_time
async def test_supervised_steps_arrive_as_the_learner_reports_them(run: Run) -> None:
    async with run.tracking() as tracking:
        for step, loss in ((20, 0.75), (60, 0.5)):
            for _ in range(2):  # a status is repeated while a step lasts
                learner = LearnerFigures(stages=4, stage=0, step=step, steps=100, loss=loss)
                tracking.observe(ActorFigures(learner=learner))
            await run.until(step)
        tracking.observe(ActorFigures(learner=LearnerFigures(stages=4, stage=2, step=1, steps=9)))
    steps = [{"version": 20, "supervised/format/loss": 0.75}, {"version": 60, "supervised/format/loss": 0.5}]
    assert run.kept[1:] == [*steps, {"closed": True}]


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("raise at start", r"RuntimeError: no such server \(my_tracker.py, line \d+\)"),
        ("raise", r"ValueError: a figure it does not like \(my_tracker.py, line \d+\)"),
        ("die", "its process ended with status 7"),
        ("hang", "it took more than 2 s for a row"),
    ],
)
@pytest.mark.real_time
async def test_a_tracker_that_fails_is_named_once_and_the_next_start_delivers_what_it_missed(
    run: Run, behaviour: str, reason: str
) -> None:
    run.add(1, 2)
    (run.directory / "behaviour").write_text(behaviour)
    await run.track(row=2.0 if behaviour == "hang" else 60.0)
    (said,) = run.said
    assert re.match(rf"tracker 'my_tracker:Mine' has stopped: {reason}; the run goes on, and the next start", said)
    assert str(run.directory / "logs" / "tracker.my_tracker_Mine.stderr") in said
    (run.directory / "behaviour").write_text("talk")
    await run.track()
    assert run.versions() == [1, 2]
    assert len(run.said) == 1


@pytest.mark.real_time
async def test_a_run_does_not_wait_long_for_a_tracker_that_lags(run: Run) -> None:
    run.add(1)
    (run.directory / "behaviour").write_text("hang")
    began = time.monotonic()
    await run.track(close=1.5)
    assert time.monotonic() - began < 10
    (said,) = run.said
    assert "did not take the last rows within 1.5 s" in said


@pytest.mark.real_time
async def test_a_disk_that_takes_no_state_stops_the_tracker_alone(run: Run) -> None:
    run.add(1)
    (run.directory / "trackers").write_text("a file where the folder goes")
    await run.track()
    (said,) = run.said
    assert "has stopped: " in said


def test_trackers_that_cannot_be_had_are_refused_before_anything_starts(run: Run, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(str(run.path.parent))
    for name, message in (("tensorbord", "'tensorbord' is no tracker"), ("my_tracker:Yours", "has no class 'Yours'")):
        setting = [f'run.trackers=["{name}"]']
        faults = check_topology(load_topology(run.path, setting), run.path, setting)
        assert any(message in fault.message for fault in faults), faults


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="there is no .venv-trackers: make .venv-trackers/installed")
def test_mlflow_trackio_pandas_and_polars_as_they_are_keep_what_they_are_given() -> None:
    options = ("-q", "-W", "ignore", "-p", "no:cacheprovider")
    command = [PYTHON, "-m", "pytest", *options, "tests/agent_rl/observe/real_libraries.py"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-4000:]
