"""What `agent-rl audit --deep` reads: every byte of the journal and of the checkpoints, held against the checksums written with it.

::

    journal.sqlite-wal   the chain of checksums over its frames; SQLite itself silently ends the log at the first that is wrong
    journal.sqlite       SQLite's integrity check (pages, trees, indexes), the schema, and the checksum of every row
    checkpoints          size and CRC-32 of every file, and the checksum of the file that says so
    all of them          whether the journal is older than the newest checkpoint or metrics.jsonl: a log that was cut short is sound

Not found, because nothing is there to hold it against: bytes that no row uses (free pages, the room between rows, counters in the
header); the log's last transaction when the flipped byte makes it look like the rest of an older log (4 or 8 bytes a frame);
what changed before it was first written. Logs, the timeline and report.html have no checksums.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agent_rl.records.audit import journal_of
from agent_rl.records.checkpoint_files import CheckpointError, verify
from agent_rl.records.history import CHECKPOINTS, faults_between, known
from agent_rl.records.run_directory import in_use

LOG_HEADER, FRAME_HEADER = 32, 24
LOG_MAGIC = 0x377F0682
"""The last bit says in which order the checksum takes the bytes of a word. Format: SQLite, "The WAL File Format"."""


@dataclass(frozen=True, slots=True)
class DeepAudit:
    """What was found: ``faults`` are bytes that are not what was written or were lost, ``notes`` what could not be looked at."""

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
    journal = journal_of(directory)
    path = journal.path
    notes = []
    faults: list[str] = []
    log = path.with_name(f"{path.name}-wal")
    if in_use(directory):
        notes.append("the run is under way: its journal's log was not looked at")
    elif log.exists():
        faults += log_faults(log)
    try:
        known(journal)  # a file without tables has no byte to read, and is no journal
        faults += journal.structure_faults()
        faults += journal.schema_faults()
        rows, damaged = journal.damaged_rows()
        faults += damaged
        if not in_use(directory):
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


def log_faults(path: Path) -> Iterator[str]:
    """Where the chain of checksums of a write-ahead log breaks, though it goes on behind."""
    content = path.read_bytes()
    if len(content) < LOG_HEADER:
        return
    magic, _, page_size, _, *salts, first, second = struct.unpack_from(">8I", content)
    order = ">" if magic & 1 else "<"
    sums = _checksum(content[: LOG_HEADER - 8], (0, 0), order)
    if magic & ~1 != LOG_MAGIC or sums != (first, second):
        yield f"{path}: its header is not what was written, and SQLite ignores all of it"
        return
    size = FRAME_HEADER + page_size
    broken: int | None = None
    for frame, start in enumerate(range(LOG_HEADER, len(content) - size + 1, size)):
        *_, salt1, salt2, first, second = struct.unpack_from(">6I", content, start)
        ours = [salt1, salt2] == salts
        if broken is None and ours:
            sums = _checksum(content[start : start + 8], sums, order)
            sums = _checksum(content[start + FRAME_HEADER : start + size], sums, order)
            ours = sums == (first, second)
            if not ours:
                yield f"{path}: frame {frame} is not what was written; SQLite ignores it and all behind it"
                return
        elif broken is None:
            broken = frame  # the rest of an older log, if nothing of this one follows
        elif ours:
            yield f"{path}: frame {broken} is not what was written; SQLite ignores it and all behind it"
            return


def _checksum(content: bytes, sums: tuple[int, int], order: str) -> tuple[int, int]:
    one, other = sums
    words = struct.unpack(f"{order}{len(content) // 4}I", content)
    for index in range(0, len(words), 2):
        one = (one + words[index] + other) & 0xFFFFFFFF
        other = (other + words[index + 1] + one) & 0xFFFFFFFF
    return one, other
