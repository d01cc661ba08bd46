"""The journal: its rules, and what is said of folders and files that hold none."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from agent_rl.figures import SelectionFigures, StepFigures, TrainingFigures
from agent_rl.messages import Judgement
from agent_rl.records import sqlite
from agent_rl.records.audit import audit, audit_journal
from agent_rl.records.journal import Journal, JournalError, open_journal
from agent_rl.records.journal_rows import GroupRow, SampledRow, row_crc
from tests.agent_rl.records.journals import open_groups, raises, readable, train


def test_a_settled_group_does_not_change_again(journal: Journal) -> None:
    (group,) = open_groups(journal, 1)
    journal.drop(group, "stale", 0.0, 0, 0)
    journal.ready(group, [(0, 0)], [1.0], 0, 1)
    journal.evaluated(group)
    journal.open_group(group, 0, 0, "train", b"again")
    row = journal.group(group)
    assert row is not None
    assert (row.state, row.opened) == ("dropped", b"opened")
    for name in (group, "s0-g000009"):
        with raises("is not open"):
            journal.add_trajectory(name, 1, 0, "finished", b"")
    with raises("never closed"):
        journal.step_trained(9, TrainingFigures())


def test_the_audit_names_groups_that_break_the_rules(journal: Journal) -> None:
    a, b, c = open_groups(journal, 3)
    journal.ready(a, [(0, 0)], [1.0], 0, 1)
    for version in (0, 1):
        journal.close_step(version, 0, [a, b], [a, b], StepFigures())
        journal.step_trained(version, TrainingFigures())
    journal.evaluated(c)
    journal.open_group("s0-g000007", 0, 7, "train", b"")
    open_groups(journal, range(4, 5), stage=2, purpose="evaluate_sampled", at_step=10)
    faults = "\n".join(audit_journal(journal).faults)
    for name, purpose, state in (("s0-a", "train", "dropped"), ("s0-b", "evaluate_greedy", "trained")):
        journal._put(GroupRow(name, 0, None, 3, purpose, b"", 0, state=state))
    faults += "\n".join(audit_journal(journal).faults)
    for fault in (
        "s0-a: dropped without a reason",
        "s0-b: trained without a step",
        "s0-b: an evaluation group marked trained",
        f"{b}: open, yet in a step",
        f"{a}: in the steps at versions 0 and 1",
        f"{c}: a training group marked evaluated",
        "stage 0: 4 groups recorded, but numbers reach 8",
        "stage 2, its evaluation after 10 steps: 1 groups recorded, but numbers reach 5",
    ):
        assert fault in faults, faults
    assert "NOT BALANCED" in audit_journal(journal).lines()
    assert journal.lost_steps() == []


def test_the_audit_tells_what_became_of_sampled_tokens(journal: Journal) -> None:
    sent = StepFigures(delivered={"sampled": 9, "trained": 5, "equal_rewards": 4}, branches={"again": 2})
    for version in range(3):
        (name,) = open_groups(journal, range(version, version + 1))
        journal.ready(name, [(0, 0)], [1.0], 0, 1)
        journal.close_step(version, 0, [name], [name], sent)
    journal.step_trained(0, TrainingFigures(trained_tokens=5))
    journal.step_trained(1, TrainingFigures(skipped=True), dropped_for="not_finite")
    balance = audit_journal(journal)
    assert balance.balanced, balance.faults
    parts = {"trained": 5, "equal_rewards": 12, "step_skipped": 5, "waiting": 5}
    assert (balance.delivered, balance.branches) == ({"sampled": 27, **parts}, {"again": 6})
    assert any("27 = 5 trained + 22 excluded (12 equal_rewards" in line for line in balance.lines())
    for told in (TrainingFigures(trained_tokens=4), TrainingFigures(trained_rollouts=1)):
        journal.step_trained(2, told)
        (fault,) = audit_journal(journal).faults
        assert fault == f"step 2: 5 tokens were sent to be trained, and {told.trained_tokens} were"


def test_right_rollouts_of_evaluated_groups_are_counted_and_such_groups_alone_are_asked_again(journal: Journal) -> None:
    trained = open_groups(journal, 1)
    train(journal, 0, trained)
    asked = open_groups(journal, 3, stage=1, purpose="evaluate_greedy")
    for group, reward in zip(asked, (1.0, 0.0), strict=False):
        journal.judge(group, 0, 0, Judgement(reward, success=reward > 0))
    for group in asked:
        journal.evaluated(group)
    assert journal.judged(1) == dict(zip(asked, (1.0, 0.0, 0.0), strict=True))
    journal.ask_again([asked[0], *trained])
    assert readable(journal, [*trained, *asked]) == [*trained, *asked[1:]]


def test_a_selection_is_recorded_once_and_a_problem_that_is_asked_again_counts_no_more(
    journal: Journal, tmp_path: Path
) -> None:
    names = open_groups(journal, 4, stage=1, purpose="select")
    rows = [SampledRow(1, n, "maths" if n < 2 else "sql", f"p{n}", n, 4, 0, 9) for n in range(4)]
    for name, row in zip(names, rows, strict=True):
        journal.add_sampled(name, row)
    journal.add_sampled(names[0], replace(rows[0], right=4))
    journal.ask_again(names[3:])
    assert journal.sampled(1) == rows[:3]
    assert [row.id for row in journal.groups(stage=1, states=("open",))] == names[3:]
    assert journal.kept_problems(1) is None
    journal.add_sampled(names[3], rows[3])
    figures = SelectionFigures(
        name="hard", problems=4, kept=3, dropped={"always_solved": 1}, success=0.5, lost=0, response_tokens=9.0
    )
    assert journal.add_selection(1, (0, 1, 2), figures)
    assert not journal.add_selection(1, (0,), replace(figures, kept=1))
    assert audit_journal(journal).balanced
    journal.close()
    again = open_journal(tmp_path)
    assert again.kept_problems(1) == {"maths": ("p0", "p1"), "sql": ("p2",)}
    assert (again.selections(), again.selection(2)) == ([figures], None)
    again.close()


def test_a_journal_that_is_open_elsewhere_is_not_read_over_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    audit(tmp_path)
    monkeypatch.setattr("agent_rl.records.sqlite.network_file_system", lambda path: "nfs4")
    with pytest.raises(JournalError, match=r"network file system \(nfs4\).*read it on the host that keeps it"):
        audit(tmp_path)
    journal.close()
    audit(tmp_path)


def test_the_balance_is_told_in_words(journal: Journal) -> None:
    a, _ = open_groups(journal, 2)
    journal.drop(a, "equal_rewards", 1, 0, 1)
    lines = audit_journal(journal).lines()
    assert lines[0] == "training groups: 2 opened = 0 trained + 1 dropped (1 equal_rewards) + 1 open"
    assert lines[1] == "steps: 0, of which 0 without a group to train and 0 skipped as not finite"
    assert lines[-1] == "balanced"


def test_a_group_that_was_trained_with_too_much_staleness_is_a_fault(journal: Journal) -> None:
    names = open_groups(journal, 3)
    for name, oldest in zip(names, (6, 5, 5), strict=True):
        journal.ready(name, [(0, 0)], [1.0], oldest, 1)
    journal.close_step(7, 0, names[:2], names[:2], StepFigures(staleness_max=2, staleness_limit=1))
    journal.step_trained(7, TrainingFigures())
    balance = audit_journal(journal)
    assert balance.faults == (f"{names[1]}: trained at version 7 with staleness 2, beyond its limit of 1",)
    assert balance.lines()[-1] == "NOT BALANCED"
    journal.drop(names[2], "stale", 0.0, 5, 0)  # decided, and too old for the next step
    assert (audit_journal(journal).dropped, audit_journal(journal).open) == ({"stale": 1}, 0)


def test_a_skipped_step_whose_groups_count_as_trained_is_a_fault(journal: Journal) -> None:
    names = open_groups(journal, 2)
    train(journal, 7, names)
    step = journal.step(7)
    assert step is not None
    journal._put(replace(step, skipped=True))
    assert [fault.split(":")[0] for fault in audit_journal(journal).faults] == names


def test_payloads_that_were_removed_while_the_run_went_end_it(tmp_path: Path, journal: Journal) -> None:
    open_groups(journal, 1)
    journal.commit()
    shutil.rmtree(tmp_path / "journal.trajectories")
    with pytest.raises(JournalError, match=r"a file of \S+ was removed while the run was going"):
        journal.look()


def test_a_flushed_commit_writes_payloads_before_rows_and_both_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, order = Journal(tmp_path / "journal.sqlite"), []
    open_groups(journal, 1)
    monkeypatch.setattr(sqlite, "sync", lambda path: order.append(path.name))
    journal._db.set_trace_callback(order.append)
    journal.commit(flush=True)
    assert order == ["00000000", "journal.sqlite-wal", "COMMIT", "journal.sqlite-wal"]
    journal.close()


def test_the_checksum_of_a_row_knows_types_and_where_columns_end() -> None:
    rows = [*((value, "a") for value in (1, "1", 1.0, True, b"1", None, "None")), ("1a", ""), ("", "1a")]
    assert len({row_crc(row) for row in rows}) == len(rows)


def test_a_start_after_a_loss_of_power_asks_again_for_what_the_disk_lost(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    journal = Journal(path)
    first, second = open_groups(journal, 2)
    journal.commit()
    shutil.copytree(tmp_path, tmp_path / "after", ignore=shutil.ignore_patterns("after"))
    journal.close()
    (payloads,) = (tmp_path / "after" / "journal.trajectories").iterdir()
    os.truncate(payloads, payloads.stat().st_size - 1)
    again = Journal(tmp_path / "after" / "journal.sqlite")
    assert readable(again, [first, second]) == [first]
    again.close()


def test_a_rollout_of_an_open_group_is_written_once_and_nothing_is_read(journal: Journal) -> None:
    """The filter does this for each rollout: reading rows back made it twice as slow."""
    open_groups(journal, 1)
    statements: list[str] = []
    journal._db.set_trace_callback(statements.append)
    judgement = Judgement(1.0, success=True)
    journal.add_trajectory("s0-g000000", 1, 0, "finished", b"payload", judgement)
    journal.judge("s0-g000000", 1, 0, judgement)
    journal.add_trajectory("s0-g000000", 1, 0, "finished", b"twice")
    assert [statement.split()[0] for statement in statements] == ["INSERT"]
