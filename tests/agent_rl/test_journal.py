"""The journal: every group is exactly one thing, and the audit notices when it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_rl.records.audit import audit, audit_journal
from agent_rl.records.journal import Journal, JournalError


@pytest.fixture
def journal(tmp_path: Path):
    made = Journal(tmp_path / "journal.sqlite")
    yield made
    made.close()


def open_groups(journal: Journal, count: int, *, stage: int = 0, purpose: str = "train") -> list[str]:
    names = [f"s{stage}-g{number:06d}" for number in range(count)]
    for number, name in enumerate(names):
        journal.open_group(name, stage, number, purpose, b"opened")
    return names


def test_a_groups_life_balances_at_every_moment(journal: Journal) -> None:
    trained, equal, late, still = open_groups(journal, 4)
    assert audit_journal(journal).figures() == {
        "groups_opened": 4,
        "groups_trained": 0,
        "groups_dropped": 0,
        "groups_open": 4,
    }
    journal.ready(trained, [(0, 0), (2, 1)], [1.0, 0.0], oldest=3, order=1)
    journal.drop(equal, "equal_rewards", 40.0, 1.0, 0, order=2)
    journal.drop(late, "stale", 90.0, 0.5, 0, order=0)
    journal.close_step(7, 0, [trained], [trained, equal], {"success": 0.5})
    assert audit_journal(journal).balanced
    assert journal.step_trained(7, {"loss": 0.1}) is True
    assert journal.step_trained(7, {"loss": 0.1}) is False  # a replay
    balance = audit_journal(journal)
    assert balance.balanced, balance.faults
    assert (balance.opened, balance.trained, balance.open) == (4, 1, 1)
    assert balance.dropped == {"equal_rewards": 1, "stale": 1}
    row = journal.group(trained)
    assert row is not None
    assert (row.state, row.step, row.kept, row.rewards) == ("trained", 7, ((0, 0), (2, 1)), (1.0, 0.0))
    assert journal.group(still).state == "open"  # type: ignore[union-attr]


def test_a_settled_group_does_not_change_again(journal: Journal) -> None:
    (group,) = open_groups(journal, 1)
    journal.drop(group, "stale", 0.0, 0.0, 0, 0)
    journal.ready(group, [(0, 0)], [1.0], 0, 1)
    journal.evaluated(group)
    assert journal.group(group).state == "dropped"  # type: ignore[union-attr]


def test_the_audit_names_groups_that_break_the_rules(journal: Journal) -> None:
    a, b = open_groups(journal, 2)
    journal.ready(a, [(0, 0)], [1.0], 0, 1)
    journal.close_step(0, 0, [a, b], [a, b], {})
    journal.step_trained(0, {})
    balance = audit_journal(journal)
    assert not balance.balanced
    assert any(b in fault and "open" in fault for fault in balance.faults)
    assert "NOT BALANCED" in balance.lines()


def test_a_missing_number_is_a_fault(journal: Journal) -> None:
    journal.open_group("s0-g000001", 0, 1, "train", b"")
    assert not audit_journal(journal).balanced


def test_one_group_in_two_steps_is_a_fault(journal: Journal) -> None:
    (group,) = open_groups(journal, 1)
    journal.ready(group, [(0, 0)], [1.0], 0, 1)
    for version in (0, 1):
        journal.close_step(version, 0, [group], [group], {})
        journal.step_trained(version, {})
    assert any("in the steps at versions 0 and 1" in fault for fault in audit_journal(journal).faults)


def test_what_is_committed_survives_and_what_is_not_does_not(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    first = Journal(path)
    open_groups(first, 1)
    first.commit()
    first.set_fact("epoch", "5")
    second = Journal(path)  # a reader beside the writer
    assert second.group("s0-g000000") is not None
    assert second.fact("epoch") is None
    second.close()
    first.close()


def test_other_stages_leave_nothing_ready_behind(journal: Journal) -> None:
    a, b = open_groups(journal, 2)
    journal.ready(a, [(0, 0)], [1.0], 0, 1)
    journal.ready(b, [(0, 0)], [1.0], 0, 2)
    journal.close_step(0, 0, [a], [a], {})
    assert journal.leave_stages(but=1, reason="stage_boundary") == 2
    balance = audit_journal(journal)
    assert balance.balanced, balance.faults
    assert balance.dropped == {"stage_boundary": 2}


def test_compaction_forgets_only_what_no_replay_needs(journal: Journal) -> None:
    first, a, b, c = open_groups(journal, 4)
    for order, group in enumerate((first, a, b, c)):
        journal.add_trajectory(group, 0, 0, "finished", b"payload")
        journal.ready(group, [(0, 0)], [1.0], 0, order + 1)
    for version, group in enumerate((first, a, b)):
        journal.close_step(version, 0, [group], [group], {})
        journal.step_trained(version, {})
    journal.compact(before_version=2)
    assert [len(journal.trajectories(group)) for group in (a, b, c)] == [0, 1, 1]


def test_compaction_keeps_a_few_groups_of_a_stages_first_and_last_step_for_people_to_read(journal: Journal) -> None:
    names = open_groups(journal, 15)
    for version in range(3):
        decided = names[5 * version : 5 * version + 5]
        for group in decided:
            journal.add_trajectory(group, 0, 0, "finished", b"payload")
        for group in decided[:3]:
            journal.ready(group, [(0, 0)], [1.0], 0, 1)
        for group in decided[3:]:
            journal.drop(group, "equal_rewards", 1.0, 1.0, 0, 1)
        journal.close_step(version, 0, decided[:3], decided, {})
        journal.step_trained(version, {})
    journal.compact(before_version=3)
    kept = [name for name in names if journal.trajectories(name)]
    assert kept == journal.samples() == [names[0], names[1], names[3], names[10], names[11], names[13]]


def test_what_people_are_told_of_groups(journal: Journal) -> None:
    a, b, right, wrong = open_groups(journal, 4)
    journal.ready(a, [(0, 0), (1, 0)], [1.0, 0.0], 0, 1)
    journal.ready(b, [(0, 0), (1, 0)], [1.0, 1.0], 0, 2)
    journal.drop(right, "equal_rewards", 1.0, 1.0, 0, 3)
    journal.drop(wrong, "equal_rewards", 1.0, 0.0, 0, 4)
    journal.close_step(7, 0, [a, b], [a, b, right, wrong], {})
    assert journal.kept_rewards() == {}
    journal.step_trained(7, {})
    assert journal.kept_rewards() == {7: 0.75}
    assert sorted(journal.fates()) == [
        (7, "dropped", "equal_rewards", False, 1),
        (7, "dropped", "equal_rewards", True, 1),
        (7, "trained", "", False, 2),
    ]


def test_the_verdicts_of_an_evaluation(journal: Journal) -> None:
    right, wrong, lost = open_groups(journal, 3, stage=1, purpose="evaluate_greedy")
    for group, reward in ((right, 1.0), (wrong, 0.0)):
        journal.add_trajectory(group, 0, 0, "finished", b"payload")
        journal.reward(group, 0, 0, reward)
    journal.add_trajectory(lost, 0, 0, "failed", b"payload")
    for group in (right, wrong, lost):
        journal.evaluated(group)
    assert journal.judged(1) == {right: 1.0, wrong: 0.0, lost: 0.0}
    assert journal.judged(0) == {}


def test_evaluation_groups_are_counted_apart(journal: Journal) -> None:
    (group,) = open_groups(journal, 1, purpose="evaluate_greedy")
    journal.evaluated(group)
    balance = audit_journal(journal)
    assert (balance.opened, balance.evaluated, balance.balanced) == (0, 1, True)


def test_a_folder_without_a_journal_and_a_file_that_is_none_are_named(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="no journal here"):
        audit(tmp_path)
    (tmp_path / "journal.sqlite").write_bytes(b"not a database, but long enough to look like a file " * 20)
    with pytest.raises(JournalError, match="not a usable journal"):
        audit(tmp_path)


def test_another_layout_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    journal.set_fact("layout", "0")
    journal.close()
    with pytest.raises(JournalError, match="layout 0"):
        Journal(tmp_path / "journal.sqlite")


def test_the_balance_is_told_in_words(journal: Journal) -> None:
    a, _ = open_groups(journal, 2)
    journal.drop(a, "equal_rewards", 1, 1, 0, 1)
    lines = audit_journal(journal).lines()
    assert lines[0] == "training groups: 2 opened = 0 trained + 1 dropped (1 equal_rewards) + 1 open"
    assert lines[-1] == "balanced"


def a_closed_step(journal: Journal) -> list[str]:
    names = open_groups(journal, 2)
    for order, name in enumerate(names, start=1):
        journal.ready(name, [(0, 0)], [1.0], 0, order)
    journal.close_step(7, 0, names, names, {"groups_trained": 2})
    return names


def test_the_groups_of_a_skipped_step_are_dropped_for_that_reason(journal: Journal) -> None:
    names = a_closed_step(journal)
    assert journal.step_trained(7, {"skipped": 1.0}, dropped_for="not_finite") is True
    balance = audit_journal(journal)
    assert balance.balanced, balance.faults
    assert (balance.trained, balance.dropped, balance.steps, balance.skipped_steps) == (0, {"not_finite": 2}, 1, 1)
    assert "steps: 1, of which 0 without a group to train and 1 skipped as not finite" in balance.lines()
    assert journal.step_trained(7, {"trained_tokens": 0.0}) is False  # followed by a restarted learner: still skipped
    assert journal.steps()[0].skipped
    assert [journal.group(name).state for name in names] == ["dropped"] * 2  # type: ignore[union-attr]


def test_a_replay_that_ends_otherwise_is_what_counts(journal: Journal) -> None:
    a_closed_step(journal)
    assert journal.step_trained(7, {"skipped": 0.0}) is True
    assert journal.step_trained(7, {"skipped": 1.0}, dropped_for="not_finite") is False
    balance = audit_journal(journal)
    assert balance.balanced, balance.faults
    assert (balance.trained, balance.dropped) == (0, {"not_finite": 2})


def test_a_skipped_step_whose_groups_count_as_trained_is_a_fault(journal: Journal) -> None:
    names = a_closed_step(journal)
    journal.step_trained(7, {}, dropped_for="not_finite")
    journal._write("UPDATE groups SET state = 'trained', reason = ''")
    assert [fault.split(":")[0] for fault in audit_journal(journal).faults] == names
