"""The interface of a journal's back end, which stores rows and payloads in transactions.

The rules are in journal.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from agent_rl.records.rows import FactRow, Row

R = TypeVar("R", bound=Row)


class JournalError(Exception):
    """The journal cannot be used; the message names the file and the remedy."""


class EmptyJournalError(JournalError):
    """The file holds no journal yet: the process that created it was killed."""


class Store(ABC):
    """Rows by type and key, and payloads by segment. A commit makes changes durable."""

    path: Path
    """What messages call the journal."""

    def fact(self, key: str) -> str | None:
        """A named fact, such as the epoch."""
        row = self._get(FactRow, key)
        return None if row is None else row.value

    def set_fact(self, key: str, value: str) -> None:
        """Set a named fact."""
        self._put(FactRow(key, value))

    @abstractmethod
    def _get(self, kind: type[R], *key: str | int) -> R | None:
        """The row of this key. Raises JournalError for a row that changed since it was written, as all readers do."""

    @abstractmethod
    def _select(self, kind: type[R], **where: Any) -> list[R]:
        """The rows whose columns have these values, by key. A tuple means any of its values."""

    @abstractmethod
    def _scan(self, kind: type[Row], columns: Sequence[str], **where: Any) -> Iterator[tuple[Any, ...]]:
        """Some columns of such rows in any order, without checksums: for counts."""

    @abstractmethod
    def _put(self, row: Row) -> None:
        """Insert the row, or replace the one of its key."""

    @abstractmethod
    def _delete(self, kind: type[Row], *key: str | int) -> None:
        """Delete the rows whose keys begin with these values."""

    @abstractmethod
    def _append(self, segment: int, payload: bytes) -> int:
        """Append a payload to a segment, which is created if needed; return the payload's offset."""

    @abstractmethod
    def _fetch(self, segment: int, offset: int, size: int) -> bytes | None:
        """A payload; None when the segment is missing or too short."""

    @abstractmethod
    def _let_go(self, segment: int) -> Callable[[], None]:
        """A function that removes a segment's payloads. It may take long, and may be called from any thread."""

    @abstractmethod
    def commit(self, *, flush: bool = False) -> None:
        """Make all changes since the last commit durable; with ``flush`` also against a loss of power.

        Raises DiskError when the disk is full, with all changes undone. Raises JournalError when the file was replaced.
        """

    @property
    @abstractmethod
    def dirty(self) -> bool:
        """Whether something waits for a commit."""

    @abstractmethod
    def abandon(self) -> None:
        """Close without committing, as the end of the process would."""

    @abstractmethod
    def look(self) -> None:
        """Check that the journal is in place and no other program wrote to it. Raises JournalError when not."""

    @abstractmethod
    def settle(self) -> None:
        """Flush what was committed so far to the disk, from any thread. The next flush then has less to do."""

    @abstractmethod
    def check_structure(self) -> None:
        """Check the store without reading every row. Raises JournalError."""

    @abstractmethod
    def verify(self, *, under_way: bool) -> tuple[int, list[str]]:
        """Read every byte; return the number of rows and the faults. ``under_way``: the run is writing."""

    @abstractmethod
    def _unusable(self, what: str) -> JournalError:
        """The error for a journal that is damaged, with the remedy."""
