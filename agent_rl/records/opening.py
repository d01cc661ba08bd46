"""Open the journal of a run directory. Only this module chooses the back end."""

from __future__ import annotations

from pathlib import Path

from agent_rl.records.journal import Journal, JournalError
from agent_rl.records.sqlite import SqliteJournal

JOURNAL = "journal.sqlite"


def open_journal(directory: Path) -> Journal:
    """Open the journal of a run directory for writing; create it if there is none. Raises JournalError."""
    return SqliteJournal(directory / JOURNAL)


def read_journal(directory: Path) -> Journal:
    """Open the journal of a run directory for reading; the run may be under way.

    Raises JournalError when there is none.
    """
    path = directory / JOURNAL
    if not path.is_file():
        raise JournalError(f"{path}: no journal here; give the directory of a run")
    return SqliteJournal(path, read_only=True)
