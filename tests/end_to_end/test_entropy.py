"""A real run is studied: its own checkpoints give the tokens the log-probabilities that they were sampled with."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.cli.main import main
from examples.entropy.entropy import study
from tests.end_to_end.processes import balanced, finish, rows, start
from tests.end_to_end.topologies import write_half_right

KEPT = ('run.keep_trajectories="all"', "run.keep_checkpoints=9", "run.checkpoint_every=1", "algorithm.max_staleness=0")


@pytest.mark.slow
def test_each_step_of_a_run_is_computed_by_the_policy_that_sampled_it(tmp_path: Path) -> None:
    path, directory = write_half_right(tmp_path, steps=5)
    finish(start(path, *KEPT))
    written = {int(path.name.split("-")[1]) for path in (directory / "checkpoints").glob("version-*")}
    steps = [step for step in (1, 2, 3, 4, 5) if step - 1 in written]  # one still being written postpones the next
    assert len(steps) >= 2
    for step in steps:
        found = study(directory, rollouts=6, step=step)
        assert (found["rollouts"], found["version"]) == (6, step - 1)
        assert Path(found["model"]).name.startswith(f"version-{step - 1:06d}")
        assert found["gap"] < 1e-4  # engine and learner in float32
        assert 0 < found["entropy"] < 6


@pytest.mark.slow
def test_each_token_of_a_rollout_with_branches_is_trained_once_where_it_was_sampled(tmp_path: Path) -> None:
    path, directory = write_half_right(tmp_path, steps=3)
    branching = 'environments.0.rollout="tests.end_to_end.branching:rollout"'
    finish(start(path, *KEPT, branching, "stages.0.max_turns=5", "stages.0.max_response_tokens=120"))
    balanced(directory, steps=3)
    assert main(["export", str(directory)]) == 0
    found = rows(directory / "trajectories.jsonl")
    assert all(sorted(cause for *_, cause in row["branches"]) == ["again", "rewrite", "sub_agent"] for row in found)
    for version, step in enumerate(row for row in rows(directory / "metrics.jsonl") if "trained_tokens" in row):
        kept = [row for row in found if row["kept"] and row["step"] == version]
        assert step["trained_tokens"] == sum(sum(row["loss_mask"]) for row in kept) > 0
        assert step["trained_rollouts"] == len(kept)
    assert study(directory, rollouts=6, step=3)["gap"] < 1e-4
    assert main(["export", str(directory), "--right"]) == 0
    right = rows(directory / "trajectories.jsonl")
    assert len(right) == 4 * sum(row["reward"] > 0 for row in found)
    assert all(not row["branches"] for row in right)
