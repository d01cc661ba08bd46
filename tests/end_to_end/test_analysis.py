"""A real run is analysed: its own checkpoints give the tokens the log-probabilities that they were sampled with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actors.cli.main import main
from tests.end_to_end.processes import finish, start
from tests.end_to_end.topologies import write_half_right

KEPT = ('run.keep_trajectories="all"', "run.keep_checkpoints=9", "run.checkpoint_every=1", "algorithm.max_staleness=0")


@pytest.mark.slow
def test_each_moment_of_a_run_is_computed_by_the_policy_that_sampled_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, directory = write_half_right(tmp_path, steps=5)
    code, out, err = finish(start(path, *(word for setting in KEPT for word in ("--set", setting))))
    assert code == 0, out + err
    assert main(["analyze", str(directory), "--rollouts", "6"]) == 0
    out = capsys.readouterr().out
    found = json.loads(out.splitlines()[-1])["moments"]
    assert {name: (each["step"], each["versions"], each["model_version"]) for name, each in found.items()} == {
        "start": (1, [0, 0], 0),
        "middle": (3, [2, 2], 2),
        "end": (5, [4, 4], 4),
    }
    assert "note:" not in out
    for each in found.values():
        assert each["rollouts"] == 6
        assert each["gap"] < 1e-4  # engine and learner in float32
        assert 0 < each["entropy"] < 6
    assert (directory / "analysis.html").stat().st_size > 10_000
