"""A journal that is damaged, locked or no journal: one message and exit code 2, whoever reads it."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from actors.cli.evaluation import _finished as finished
from actors.cli.main import main
from agent_rl.records import sqlite
from agent_rl.records.journal import Journal, JournalError


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def other_text(path: Path) -> None:
    path.write_bytes(b"no database at all " * 1000)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def another_database(path: Path) -> None:
    path.unlink()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE recipes (name TEXT)")
    other.close()


def zeros_within(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096 : len(content) // 2] = bytes(len(content) // 2 - 4096)
    path.write_bytes(content)


def endless(path: Path) -> None:
    """A table becomes a view of as many rows as anybody reads."""
    with sqlite3.connect(path) as database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(facts)")]
        database.execute("ALTER TABLE facts RENAME TO former")
        counted = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
        database.execute(
            f"CREATE VIEW facts AS {counted} SELECT {', '.join(f'i AS {name}' for name in columns)} FROM n"
        )
    database.close()


DAMAGES = (truncated, other_text, empty, another_database, zeros_within, endless)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("PRAGMA locking_mode = EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        holder.close()


def refused(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert main(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("command", ["audit", "report"])
def test_a_damaged_journal_is_one_message(
    directory: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None], command: str
) -> None:
    path = directory / "journal.sqlite"
    damage(path)
    line = refused(capsys, command, str(directory))
    assert f"{path}: not a usable journal (" in line
    assert "put back a whole copy" in line


@pytest.mark.parametrize("command", ["report", "audit"])
def test_pipes_and_devices_in_place_of_files_are_not_waited_for(directory: Path, command: str) -> None:
    for path in [path for path in directory.rglob("*") if path.is_file() and path.name != "journal.sqlite"]:
        path.unlink()
        if "wal" in path.name:
            continue
        os.mkfifo(path) if path.name < "s" else path.symlink_to("/dev/zero")
    for name in ("end.json", "topology.json", "timeline.jsonl.1"):
        (directory / name).unlink(missing_ok=True)
        os.mkfifo(directory / name)
    signal.alarm(20)
    try:
        assert main([command, str(directory), *(["--deep"] if command == "audit" else [])]) in (0, 1, 2)
    finally:
        signal.alarm(0)


@pytest.mark.parametrize("damage", [truncated, other_text])
def test_an_evaluation_whose_journal_is_damaged_says_so(directory: Path, damage: Callable[[Path], None]) -> None:
    """`agent-rl eval` ends with this message and exit code 2; what it can open, its run looks at."""
    damage(directory / "journal.sqlite")
    with pytest.raises(JournalError, match="not a usable journal"):
        finished(directory)


@pytest.mark.parametrize("command", ["audit", "report"])
def test_a_locked_journal_is_said_to_be(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.1)
    with locked(directory / "journal.sqlite"):
        assert "is locked by another program" in refused(capsys, command, str(directory))
        with pytest.raises(JournalError, match="is locked by another program"):
            Journal(directory / "journal.sqlite")


def test_a_journal_of_another_user_is_not_said_to_be_damaged(directory: Path) -> None:
    (directory / "journal.sqlite").chmod(0)
    for each in directory.parents:  # root reads all, nobody only what lies in the open
        if each.owner() == "root" and each != Path("/"):
            each.chmod(each.stat().st_mode | 0o011)
    user = os.geteuid()
    os.seteuid(65534 if user == 0 else user)
    try:
        with pytest.raises(JournalError, match=r"journal\.sqlite may not be read by this user; be the user \w+, or"):
            Journal(directory / "journal.sqlite", read_only=True)
    finally:
        os.seteuid(user)


def test_a_journal_that_another_program_locks_while_it_is_written(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.1)
    journal = Journal(directory / "journal.sqlite")
    holder = sqlite3.connect(directory / "journal.sqlite", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(JournalError, match="is locked by another program"):
        journal.set_fact("a", "b")
    with pytest.raises(JournalError, match="is locked"):  # nothing may follow
        journal.set_fact("c", "d")
    holder.close()
    journal.close()


def test_who_reads_leaves_the_run_directory_as_it_was(directory: Path) -> None:
    before = sorted((path.name, path.stat().st_mtime_ns) for path in directory.iterdir())
    Journal(directory / "journal.sqlite", read_only=True).close()
    assert main(["audit", str(directory)]) == 0
    assert sorted((path.name, path.stat().st_mtime_ns) for path in directory.iterdir()) == before


def test_who_reads_sees_what_a_living_writer_has_committed(tmp_path: Path) -> None:
    writer = Journal(tmp_path / "journal.sqlite")
    writer.set_fact("stage", "7")
    writer.commit()
    reader = Journal(tmp_path / "journal.sqlite", read_only=True)
    assert reader.fact("stage") == "7"
    reader.close()
    writer.set_fact("stage", "8")
    writer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["journal.sqlite"]


def test_a_journal_of_another_layout_is_refused_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    Journal(path).close()
    other = sqlite3.connect(path)
    other.execute("UPDATE facts SET value = '1' WHERE key = 'layout'")
    other.commit()
    other.close()
    for read_only in (True, False):
        with pytest.raises(
            JournalError, match=r"another version of agent_rl \(layout 1, .* start again in another run.directory"
        ):
            Journal(path, read_only=read_only)
