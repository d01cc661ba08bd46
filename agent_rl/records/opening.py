"""Which back end a run's journal has: the one place that says so."""

from __future__ import annotations

from pathlib import Path

from agent_rl.records.journal import Journal, JournalError
from agent_rl.records.sqlite import SqliteJournal

JOURNAL = "journal.sqlite"


def open_journal(directory: Path) -> Journal:
    """The journal of a run directory, to be written; it is made if there is none. Raises JournalError."""
    return SqliteJournal(directory / JOURNAL)


def read_journal(directory: Path) -> Journal:
    """The journal of a run directory, to be read, also while it is written. Raises JournalError when there is none."""
    path = directory / JOURNAL
    if not path.is_file():
        raise JournalError(f"{path}: no journal here; give the directory of a run")
    return SqliteJournal(path, read_only=True)
