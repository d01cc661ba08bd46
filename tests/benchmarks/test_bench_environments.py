"""The benchmark of environments: the earlier commit's files, its figures, and a short measurement of the agent loop."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

from benchmarks import bench_environments
from benchmarks.bench_environments import BEFORE, ROOT, SUCCESS, files_of, loop_shares
from benchmarks.command import call


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def _history() -> None:
    if shutil.which("git") is None or git("cat-file", "-e", BEFORE).returncode:
        pytest.skip(f"the history of the repository up to {BEFORE} is not here")


@pytest.mark.usefixtures("_history")
def test_the_earlier_commit_is_part_of_the_history_and_leaves_nothing_in_git() -> None:
    assert git("merge-base", "--is-ancestor", BEFORE, "HEAD").returncode == 0
    worktrees = git("worktree", "list").stdout
    with files_of(BEFORE) as tree:
        assert tree is not None
        assert (tree / "benchmarks" / "rollout_loop.py").is_file()
        assert not (tree / "agent_rl" / "environments" / "base.py").exists()
        assert git("worktree", "list").stdout == worktrees
    assert not tree.exists()


def test_a_commit_that_is_not_there_is_not_measured(capsys: pytest.CaptureFixture[str]) -> None:
    with files_of("0" * 40) as tree:
        assert tree is None
    assert "git fetch --unshallow" in capsys.readouterr().out


def test_a_game_has_the_figures_of_its_median_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def play(seed: int, overrides: Any) -> dict[str, float]:
        assert overrides == ("run.name=short",)
        return {**{name: 0.1 * number + seed for number, name in enumerate(SUCCESS)}, "minutes": 2.0 + seed}

    monkeypatch.setattr(bench_environments, "play", play)
    assert call("environments", ["--rounds", "0", "--gigabytes", "0", "--set", "run.name=short"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {
        "game.success_before": 1.0,
        "game.success_before_greedy": 1.1,
        "game.success_after": 1.2,
        "game.success_after_greedy": 1.3,
        "game.minutes": 3.0,
    }


@pytest.mark.slow
@pytest.mark.usefixtures("_history")
def test_the_loop_is_measured_of_both_trees() -> None:
    shares = loop_shares(1, 16, BEFORE)
    assert list(shares) == ["loop_share_of_engine_before", "loop_share_of_engine"]
    assert all(share is not None and 0 < share < 1 for share in shares.values()), shares
