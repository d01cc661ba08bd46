"""Which trajectories stay in the journal, and which leave it."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_rl.messages import Evaluation
from agent_rl.records.audit import audit_journal
from agent_rl.records.journal import Journal, open_journal
from agent_rl.records.journal_rows import SampledRow
from agent_rl.records.retention import SELECTED_TOGETHER, Retention
from agent_rl_contract.builders import evaluated
from tests.agent_rl.records.journals import forget, open_groups, readable, train


@pytest.fixture(autouse=True)
def each_step_begins_a_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Retention, "segment_bytes", 1)


def test_compaction_forgets_only_what_no_replay_needs(journal: Journal) -> None:
    names = []
    for version in range(4):
        groups = open_groups(journal, range(5 * version, 5 * version + 5))
        train(journal, version, groups[:3], groups[3:])
        names += groups
    open_ones = open_groups(journal, range(20, 22))
    journal.keep_from(2)
    assert journal.fact("kept_from") == "2"
    forget(journal)
    sampled = [names[0], names[1], names[3]]
    assert readable(journal, names) == sampled + names[10:]
    journal.keep_from(4)
    forget(journal)
    kept = [*sampled, names[15], names[16], names[18]]
    assert readable(journal, names) == kept == journal.samples()
    assert journal.left() == len(names) - len(kept)
    assert readable(journal, open_ones) == open_ones
    assert audit_journal(journal).balanced
    train(journal, 4, open_ones)
    journal.keep_from(5)
    forget(journal)
    assert readable(journal, [*names, *open_ones]) == sampled + open_ones


def test_more_steps_can_be_kept_for_reading(journal: Journal) -> None:
    """``keep`` counts the last steps trained; a replay's trajectories stay in any case."""
    groups = []
    for version in range(6):
        groups += open_groups(journal, range(version, version + 1))
        train(journal, version, groups[-1:])
    journal.keep_from(1)
    forget(journal, keep=3)
    assert readable(journal, groups) == groups  # the first is a sample
    journal.keep_from(2)
    forget(journal, keep=3)
    assert readable(journal, groups) == [groups[0], *groups[2:]]
    journal.keep_from(6)
    forget(journal, keep=3)
    assert readable(journal, groups) == [groups[0], *groups[3:]]


def test_a_dropped_group_that_the_next_step_counts_stays_until_the_stage_is_left(journal: Journal) -> None:
    counted, other = open_groups(journal, 2)
    journal.drop(counted, "equal_rewards", 1.0, 0, 1)
    forget(journal)
    assert readable(journal, [counted, other]) == [counted, other]  # the other is open
    journal.drop(other, "stale", 1.0, 0, 0)
    forget(journal)
    assert readable(journal, [counted, other]) == [counted, other]  # a segment leaves as a whole
    journal.set_fact("stage", "1")
    journal.leave_stages(but=1, reason="stage_boundary")
    forget(journal)
    assert readable(journal, [counted, other]) == []


def test_evaluations_leave_when_they_are_complete_within_an_rl_stage_alone(journal: Journal) -> None:
    stays = open_groups(journal, 2, stage=1, purpose="evaluate_greedy")
    first = open_groups(journal, 2, stage=2, purpose="evaluate_sampled", at_step=10)
    for group in (*stays, *first):
        journal.evaluated(group)
    journal.add_evaluation(Evaluation(1), evaluated(0.0))
    journal.add_evaluation(Evaluation(2, 10), evaluated(0.0))
    second = open_groups(journal, 2, stage=2, purpose="evaluate_sampled", at_step=20)
    journal.evaluated(second[0])
    forget(journal)
    assert readable(journal, [*stays, *first, *second]) == [*stays, *second]


def test_problems_of_a_select_stage_leave_as_they_are_counted(journal: Journal) -> None:
    early = open_groups(journal, 2, stage=3, purpose="select")
    late = open_groups(journal, range(SELECTED_TOGETHER, SELECTED_TOGETHER + 2), stage=3, purpose="select")
    for number, group in zip((0, 1, SELECTED_TOGETHER), (*early, late[0]), strict=True):
        journal.add_sampled(group, SampledRow(3, number, "maths", f"problem {number}", 1, 2, 0, 7))
    forget(journal)
    assert readable(journal, [*early, *late]) == late
    assert [row.number for row in journal.sampled(3)] == [0, 1, SELECTED_TOGETHER]


@pytest.mark.parametrize("remove_files", [True, False])
def test_a_compaction_that_was_cut_short_anywhere_is_ended_by_the_next(tmp_path: Path, *, remove_files: bool) -> None:
    for cut in range(1, 99):
        folder = tmp_path / str(cut)
        folder.mkdir()
        journal = open_journal(folder)
        names = []
        for version in range(3):
            names += open_groups(journal, range(4 * version, 4 * version + 4))
            train(journal, version, names[-4:])
        journal.keep_from(3)
        journal.commit()
        done = forget(journal, pieces=cut, remove_files=remove_files)
        journal.abandon()
        again = open_journal(folder)
        if done < cut:  # a start removes the files that were left
            assert [path.name for path in (folder / "journal.trajectories").iterdir()] == ["00000003"]
        forget(again)
        assert readable(again, names) == again.samples() == [names[0], names[1], names[8], names[9]]
        again.close()
        if done < cut:
            return
    raise AssertionError("a compaction of three steps does not end")


def test_the_filter_goes_on_while_trajectories_leave(journal: Journal) -> None:
    names = open_groups(journal, 4)
    train(journal, 0, names)
    names += open_groups(journal, range(4, 8))
    train(journal, 1, names[4:])
    journal.keep_from(2)
    number = 8
    for remove in journal.compaction():
        names += open_groups(journal, range(number, number + 1))
        number += 1
        journal.commit()
        if remove is not None:
            remove()
    assert readable(journal, names) == [names[0], names[1], names[4], names[5], *names[8:]]
    assert number == 12
