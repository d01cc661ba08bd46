"""A real run is analysed: its own checkpoints give the tokens the log-probabilities that they were sampled with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actors.cli.main import main
from tests.end_to_end.processes import balanced, finish, rows, start
from tests.end_to_end.topologies import write_half_right

KEPT = ('run.keep_trajectories="all"', "run.keep_checkpoints=9", "run.checkpoint_every=1", "algorithm.max_staleness=0")


@pytest.mark.slow
def test_each_step_of_a_run_is_computed_by_the_policy_that_sampled_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, directory = write_half_right(tmp_path, steps=5)
    finish(start(path, *KEPT))
    written = {int(path.name.split("-")[1]) for path in (directory / "checkpoints").glob("version-*")}
    steps = [step for step in (1, 2, 3, 4, 5) if step - 1 in written]  # one still being written postpones the next
    assert len(steps) >= 2
    for step in steps:
        assert main(["analyze", str(directory), "--rollouts", "6", "--step", str(step)]) == 0
        out = capsys.readouterr().out
        assert "note:" not in out
        found = json.loads(out.splitlines()[-1])
        assert (found["steps"], found["versions"], found["model_version"]) == ([step] * 2, [step - 1] * 2, step - 1)
        assert found["rollouts"] == 6
        assert found["gap"] < 1e-4  # engine and learner in float32
        assert 0 < found["entropy"] < 6
    assert (directory / "analysis.html").stat().st_size > 10_000


@pytest.mark.slow
def test_each_token_of_a_rollout_with_branches_is_trained_once_where_it_was_sampled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, directory = write_half_right(tmp_path, steps=3)
    branching = 'environments.0.rollout="tests.end_to_end.branching:rollout"'
    finish(start(path, *KEPT, branching, "stages.0.max_turns=5", "stages.0.max_response_tokens=120"))
    balanced(directory, steps=3)
    assert main(["export", str(directory)]) == 0
    capsys.readouterr()
    found = rows(directory / "trajectories.jsonl")
    assert all(sorted(cause for *_, cause in row["branches"]) == ["again", "rewrite", "sub_agent"] for row in found)
    for version, step in enumerate(row for row in rows(directory / "metrics.jsonl") if "trained_tokens" in row):
        kept = [row for row in found if row["kept"] and row["step"] == version]
        assert step["trained_tokens"] == sum(sum(row["loss_mask"]) for row in kept) > 0
        assert step["trained_rollouts"] == len(kept)
    assert main(["analyze", str(directory), "--rollouts", "6", "--step", "3"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["gap"] < 1e-4
    assert main(["export", str(directory), "--right"]) == 0
    right = rows(directory / "trajectories.jsonl")
    assert len(right) == 4 * sum(row["reward"] > 0 for row in found)
    assert all(not row["branches"] for row in right)
