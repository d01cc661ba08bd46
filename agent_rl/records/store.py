"""What a back end of the journal does: it stores rows and payloads, in transactions. The rules are in journal.py."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from agent_rl.records.rows import Row

R = TypeVar("R", bound=Row)


class JournalError(Exception):
    """The journal cannot be used; the message names the file and the remedy."""


class EmptyJournalError(JournalError):
    """The file holds no journal yet: the process that began to make it was killed."""


class Store(ABC):
    """Rows by type and key, and payloads by segment. What is changed is durable once it is committed."""

    path: Path
    """What messages call the journal."""

    @abstractmethod
    def _get(self, kind: type[R], *key: str | int) -> R | None:
        """The row of this key. Raises JournalError, as all that read rows, for one that is not what was written."""

    @abstractmethod
    def _select(self, kind: type[R], **where: Any) -> list[R]:
        """The rows whose columns have these values (of a tuple: one of them), in the order of their keys."""

    @abstractmethod
    def _scan(self, kind: type[Row], columns: Sequence[str], **where: Any) -> Iterator[tuple[Any, ...]]:
        """Some columns of such rows in any order, unchecked: for counts and the like."""

    @abstractmethod
    def _put(self, row: Row) -> None:
        """Insert the row, or replace the one of its key."""

    @abstractmethod
    def _delete(self, kind: type[Row], *key: str | int) -> None:
        """Delete the rows whose keys begin with these values."""

    @abstractmethod
    def _append(self, segment: int, payload: bytes) -> int:
        """Add a payload to a segment, which it makes when there is none; returns where it begins."""

    @abstractmethod
    def _fetch(self, segment: int, offset: int, size: int) -> bytes | None:
        """A payload; None when the segment is not there, or does not reach so far."""

    @abstractmethod
    def _let_go(self, segment: int) -> Callable[[], None]:
        """What removes a segment's payloads. It may take long, and may be called from any thread."""

    @abstractmethod
    def commit(self, *, flush: bool = False) -> None:
        """Make everything since the last commit durable; with ``flush`` also against a loss of power.

        Raises DiskError, and has undone all of it, when the disk is full; JournalError when the file is not ours any more.
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
        """Whether the journal is where it was and nobody else wrote into it. Raises JournalError when not."""

    @abstractmethod
    def settle(self) -> None:
        """Bring what was written and committed so far to the disk, from any thread: the next flush then has less to do."""

    @abstractmethod
    def check_structure(self) -> None:
        """Whether the store is sound, without reading every row. Raises JournalError."""

    @abstractmethod
    def verify(self, *, under_way: bool) -> tuple[int, list[str]]:
        """Read every byte again; how many rows there are, and what is not what was written. ``under_way``: somebody writes."""

    @abstractmethod
    def _unusable(self, what: str) -> JournalError:
        """The error for a journal that is damaged, with the remedy."""
