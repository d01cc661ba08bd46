"""The disk of a real run fills up: it stops with one clear message, loses nothing, and goes on once there is room."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_rl.records.checkpoint_files import read_position
from tests.end_to_end.processes import (
    balanced,
    finish,
    journal_of,
    processes_of,
    rows,
    start,
    steps_trained,
    wait_for,
)
from tests.end_to_end.topologies import write_half_right
from tests.full_disk import fill, small_disk

STEPS = 400
"""More than the run can take before its disk is full."""


def trained(directory: Path) -> dict[str, int]:
    """The step of every trained group."""
    with journal_of(directory) as journal:
        return {group: step.version for step in journal.steps() if step.trained for group in step.groups}


@pytest.mark.slow
@pytest.mark.parametrize("room", [pytest.param(0, id="at once"), pytest.param(120_000, id="after a while")])
def test_a_full_disk_stops_the_run_clearly_and_it_goes_on_once_there_is_room(tmp_path: Path, room: int) -> None:
    with small_disk(tmp_path / "small", "24M") as disk:
        path, directory = write_half_right(disk, steps=STEPS)
        process = start(path)
        wait_for(lambda: steps_trained(directory) >= 3, "three steps")
        filler = fill(disk, but=room)
        said = finish(process, 2).all
        stops = [line for line in said.splitlines() if "stopping the run: " in line]
        assert len(stops) == 1, said
        assert f" {directory}/" in stops[0]
        assert " cannot be written: No space left on device; make room on its disk, then run again" in stops[0]
        assert "Traceback" not in said
        assert "starting it again" not in said  # no restart would help
        lines = [line for line in said.splitlines() if "cannot be written" in line and not line.startswith("{")]
        assert len(lines) <= 2, said  # the report's line or the summary's is the other
        assert processes_of(path) == []

        filler.unlink()
        balanced(directory)
        before = trained(directory)
        assert len(before) >= 6
        checkpoints = sorted((directory / "checkpoints").glob("version-*"))
        assert all(read_position(checkpoint) for checkpoint in checkpoints)
        assert not list(directory.rglob(".*.partial"))
        assert all(row["kind"] for row in rows(directory / "metrics.jsonl"))  # no half line

        done = steps_trained(directory)
        said = finish(start(path, f"stages.0.steps={done + 3}"))
        balanced(directory, steps=done + 3)
        assert before.items() <= trained(directory).items()
        steps = [row["version"] for row in rows(directory / "metrics.jsonl") if row["kind"] == "step"]
        assert sorted(set(steps)) == list(range(1, done + 4))
