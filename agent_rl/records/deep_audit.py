"""`agent-rl audit --deep`: read every byte of journal and checkpoints, and compare with the stored checksums.

::

    journal.sqlite         SQLite's integrity check (pages, trees, indexes), the schema, and the checksum of every row
    journal.trajectories   the checksum of every payload
    checkpoints            size and CRC-32 of every file, and the checksum of the state file
    all of them            whether the journal is older than the newest checkpoint or metrics.jsonl (a truncated log)

Changes in these places are not found, because no checksum covers them: bytes that no row uses (free pages, space
between rows, counters in the header, payloads whose commit a kill prevented). After a kill, the last commits are in
``journal.sqlite-wal``, and SQLite silently ends this log at a changed byte: the commits behind it are missed only if
metrics.jsonl or a checkpoint is newer. Logs, the timeline and report.html have no checksums.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agent_rl.records.checkpoint_files import CheckpointError, verify
from agent_rl.records.history import CHECKPOINTS, faults_between
from agent_rl.records.journal import read_journal
from agent_rl.records.run_directory import in_use


@dataclass(frozen=True, slots=True)
class DeepAudit:
    """The result: ``faults`` name bytes that changed or were lost, ``notes`` name what was not checked."""

    rows: int
    checkpoints: int
    faults: tuple[str, ...]
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """For people."""
        return [
            f"read again: {self.rows} rows of the journal, {self.checkpoints} checkpoints",
            *(f"note: {note}" for note in self.notes),
            *(f"FAULT {fault}" for fault in self.faults),
            "every byte is as it was written" if not self.faults else "NOT AS WRITTEN",
        ]


def deep_audit(directory: Path) -> DeepAudit:
    """Read a run directory again. Raises JournalError when the journal cannot be read at all."""
    under_way = in_use(directory)
    notes = ["the run is under way: journal and checkpoints were not compared"] if under_way else []
    journal = read_journal(directory)
    try:
        rows, faults = journal.verify()
        if not under_way:
            faults += faults_between(directory, journal)
    finally:
        journal.close()
    folders = sorted(path for name in ("best-*", "version-*") for path in (directory / CHECKPOINTS).glob(name))
    for folder in folders:
        try:
            verify(folder)
        except CheckpointError as error:
            faults.append(str(error))
    return DeepAudit(rows, len(folders), tuple(faults), tuple(notes))
