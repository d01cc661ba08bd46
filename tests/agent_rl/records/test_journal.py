"""The journal: its rules, and what is said of folders and files that hold none."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from agent_rl.figures import StepFigures, TrainingFigures
from agent_rl.messages import Judgement
from agent_rl.records import sqlite
from agent_rl.records.audit import audit, audit_journal
from agent_rl.records.journal import Journal, JournalError
from agent_rl.records.rows import row_crc
from tests.agent_rl.records.journal_contract import JournalContract
from tests.agent_rl.records.journal_retention_contract import open_groups, readable, train


class TestRules(JournalContract):
    """Opened, committed, killed and opened again."""


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


def test_what_a_killed_compaction_left_to_be_removed_is_removed_at_the_next_start(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    journal.segment_bytes = 1
    for version in range(3):
        train(journal, version, open_groups(journal, range(4 * version, 4 * version + 4)))
    journal.keep_from(3)
    for _ in journal.compaction():
        journal.commit()  # and removes no file
    journal.close()
    folder = tmp_path / "journal.trajectories"
    assert len(list(folder.iterdir())) == 4
    Journal(tmp_path / "journal.sqlite").close()
    assert [path.name for path in folder.iterdir()] == ["00000003"]


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
