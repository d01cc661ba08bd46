"""Which rollouts an entropy study draws, and which model computes their entropies."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.roc_filter.stored import decode_stored
from agent_rl.analysis.moments import AnalysisError, Model, assign, nearest, read_sources, targets
from agent_rl.records.journal import JournalError
from tests.agent_rl.records.journal_retention_contract import forget
from tests.agent_rl.records.report_runs import RL, SyntheticRun


def test_the_moments_of_a_run() -> None:
    assert targets(1) == {"start": 0}
    assert targets(2) == {"start": 0, "end": 1}
    assert targets(3) == {"start": 0, "middle": 1, "end": 2}
    assert targets(510) == {"start": 0, "middle": 254, "end": 509}


def test_a_step_belongs_to_the_nearest_moment() -> None:
    moments = {"start": 0, "middle": 5, "end": 10}
    found = assign(moments, [0, 1, 2, 3, 7, 8, 9])
    assert found == {"start": [0, 1, 2], "middle": [3, 7], "end": [9, 8]}
    assert assign({"start": 0, "end": 2}, [1]) == {"start": [1], "end": []}  # as near to both


@given(st.integers(1, 60), st.data())
def test_every_stored_step_has_one_moment_and_none_is_nearer(steps: int, data: st.DataObject) -> None:
    moments = targets(steps)
    stored = data.draw(st.sets(st.integers(0, steps - 1)))
    found = assign(moments, stored)
    assert sorted(step for each in found.values() for step in each) == sorted(stored)
    for name, each in found.items():
        assert all(abs(step - moments[name]) <= min(abs(step - at) for at in moments.values()) for step in each)
        assert each == sorted(each, key=lambda step: abs(step - moments[name]))


def model(version: int, stage: int) -> Model:
    return Model(version, stage, Path(f"version-{version}-stage-{stage}"))


def test_the_nearest_model_on_the_same_side_of_supervised_training() -> None:
    began, formatted, later, end = model(0, 0), model(1, 1), model(40, 1), model(81, 3)
    models = [began, formatted, later, end]
    assert nearest(models, (1, 3), 1, {0}) == formatted
    assert nearest(models, (24, 30), 1, {0}) == later
    assert nearest(models, (79, 80), 1, {0}) == end
    assert nearest([began, later], (1, 1), 1, {0}) == later  # the model before stage 0 knows no format yet
    assert nearest([began, later], (1, 1), 1, ()) == began
    assert nearest([later, end], (79, 80), 1, {0, 2}) == later  # stage 2 has trained on conversations
    assert nearest([began], (1, 1), 1, {0}) is None
    assert nearest([model(2, 1), model(4, 1)], (3, 3), 1, ()) == model(4, 1)


def long_run(folder: Path, steps: int = 9) -> SyntheticRun:
    run = SyntheticRun(folder)
    run.version = 1
    run.enter(RL)
    for _ in range(steps):
        run.step([[0, 1, 0, 0], [0, 0, 0, 0], [1, 0, 1, 1]])
    run.journal.commit()
    return run


def test_each_moment_draws_its_own_step_and_spreads_over_its_groups(tmp_path: Path) -> None:
    run = long_run(tmp_path)
    found = read_sources(run.directory, decode_stored, rollouts=6, seed=0)
    assert [(each.name, each.step, each.first, each.last) for each in found.moments] == [
        ("start", 1, 1, 1),
        ("middle", 5, 5, 5),
        ("end", 9, 9, 9),
    ]
    assert found.notes == []
    assert found.supervised == {0}
    for moment in found.moments:
        groups = [each.trajectory.group for each in moment.rollouts]
        assert len(groups) == 6
        assert {groups.count(group) for group in groups} == {2}  # of each of the three, the dropped one too
        assert moment.versions == (7, 7)
        assert all(each.problem.startswith("What is") and each.reward in {0.0, 1.0} for each in moment.rollouts)
    again = read_sources(run.directory, decode_stored, rollouts=6, seed=0)
    other = read_sources(run.directory, decode_stored, rollouts=6, seed=1)
    assert drawn(found) == drawn(again) != drawn(other)


def drawn(sources) -> list[str]:
    return [each.trajectory.rollout for moment in sources.moments for each in moment.rollouts]


def test_neighbouring_steps_fill_a_moment_up_and_a_note_says_so(tmp_path: Path) -> None:
    found = read_sources(long_run(tmp_path).directory, decode_stored, rollouts=30, seed=0)
    middle = found.moments[1]
    assert (middle.first, middle.last, len(middle.rollouts)) == (4, 6, 30)
    assert any("middle is RL step 5, and its rollouts are of steps 4 to 6" in note for note in found.notes)


def test_what_was_not_kept_is_said_with_the_remedy(tmp_path: Path) -> None:
    run = long_run(tmp_path)
    run.journal.segment_bytes = 0
    run.journal.keep_from(run.version)
    forget(run.journal)  # as run.keep_trajectories = "replay" does after a checkpoint
    run.journal.commit()
    found = read_sources(run.directory, decode_stored, rollouts=64, seed=0)
    assert [each.name for each in found.moments] == ["start", "end"]
    missing = next(note for note in found.notes if note.startswith("middle is missing"))
    assert "near RL step 5" in missing
    assert "run.keep_trajectories" in missing
    assert any("start has 12 rollouts, not 64" in note for note in found.notes)


def test_a_directory_without_rl_steps_or_without_a_journal_is_refused(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    run.journal.commit()
    with pytest.raises(AnalysisError, match="has not trained an RL step"):
        read_sources(run.directory, decode_stored, rollouts=4, seed=0)
    with pytest.raises(JournalError, match="no journal here"):
        read_sources(tmp_path / "elsewhere", decode_stored, rollouts=4, seed=0)


def test_settings_that_cannot_be_read_are_noted(tmp_path: Path) -> None:
    run = long_run(tmp_path)
    (run.directory / "topology.json").write_text("{")
    found = read_sources(run.directory, decode_stored, rollouts=4, seed=0)
    assert any("topology.json cannot be read" in note for note in found.notes)
    assert found.temperature == 1.0
    (run.directory / "topology.local.toml").write_text("[algorithm]\ntemperature = 0.7\n")
    assert read_sources(run.directory, decode_stored, rollouts=4, seed=0).temperature == 0.7
