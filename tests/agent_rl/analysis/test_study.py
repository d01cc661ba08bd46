"""Which rollouts an entropy study draws, and which model computes their entropies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.roc_filter.replay import decode_stored
from agent_rl.analysis.study import AnalysisError, Drawn, draw, temperature_of
from agent_rl.messages import Trajectory
from agent_rl.records.journal import JournalError
from tests.agent_rl.records.journal_retention_contract import forget
from tests.agent_rl.records.report_runs import RL, SyntheticRun


def drawn(run: SyntheticRun, rollouts: int, step: int | None = None, seed: int = 0) -> Drawn:
    return draw(run.directory, decode_stored, rollouts=rollouts, step=step, seed=seed)


@pytest.fixture
def run(tmp_path: Path) -> SyntheticRun:
    made = SyntheticRun(tmp_path)
    made.version = 1
    made.enter(RL)
    for _ in range(9):
        made.step([[0, 1, 0, 0], [0, 0, 0, 0], [1, 0, 1, 1]])
    made.journal.commit()
    return made


@pytest.mark.parametrize(("step", "of"), [(None, 9), (1, 1), (5, 5)])
def test_rollouts_of_a_step_are_spread_over_its_groups(run: SyntheticRun, step: int | None, of: int) -> None:
    found = drawn(run, 6, step)
    assert found.steps == (of, of)
    assert found.notes == []
    assert found.versions == (of, of)
    groups = [trajectory.group for trajectory, _ in found.rollouts]
    assert {groups.count(group) for group in groups} == {2}  # of each of the three, the dropped one too
    assert all(problem.startswith("What is") for _, problem in found.rollouts)
    names = [[each.rollout for each, _ in drawn(run, 6, step, seed).rollouts] for seed in (0, 0, 1)]
    assert names[0] == names[1] != names[2]


def test_neighbouring_steps_fill_up_and_a_note_says_so(run: SyntheticRun) -> None:
    found = drawn(run, 30, 5)
    assert found.steps == (4, 6)
    assert len(found.rollouts) == 30
    assert "30 rollouts of RL steps 4 to 6, not 30 of step 5" in found.notes[0]


def test_what_was_not_kept_is_said_with_the_remedy(run: SyntheticRun) -> None:
    run.journal.segment_bytes = 0
    run.journal.keep_from(run.version)
    forget(run.journal)  # as run.keep_trajectories = "replay" does after a checkpoint
    run.journal.commit()
    found = drawn(run, 64, 4)
    assert found.steps == (1, 9)
    assert "run.keep_trajectories" in found.notes[0]


def test_a_directory_without_rl_steps_or_without_a_journal_is_refused(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    run.journal.commit()
    with pytest.raises(AnalysisError, match="holds no trajectory of an RL step: none was trained"):
        drawn(run, 4)
    with pytest.raises(JournalError, match="no journal here"):
        draw(tmp_path / "elsewhere", decode_stored, rollouts=4, step=None, seed=0)


def test_the_temperature_is_the_runs(tmp_path: Path) -> None:
    assert temperature_of(tmp_path) == 1.0
    (tmp_path / "topology.local.toml").write_text("[algorithm]\ntemperature = 0.7\n")
    assert temperature_of(tmp_path) == 0.7


def test_a_damaged_body_is_named_by_its_group(run: SyntheticRun) -> None:
    def damaged(payload: bytes) -> Any:
        message = decode_stored(payload)
        return replace(message, body=message.body[:-1]) if isinstance(message, Trajectory) else message

    with pytest.raises(JournalError, match=r"journal\.sqlite: s2-g\d+ cannot be read: "):
        draw(run.directory, damaged, rollouts=4, step=None, seed=0)
