"""A journal in memory, for simulations and tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from agent_rl.records.journal import Journal, JournalError
from agent_rl.records.rows import ROWS, FactRow, Row

R = TypeVar("R", bound=Row)
Key = tuple[str | int, ...]
Bucket = dict[Key, Row]


@dataclass(slots=True)
class MemoryStore:
    """The storage of a `MemoryJournal`, which outlives it as a disk outlives a process.

    It holds rows by type and first part of the key, and payloads by segment.
    """

    tables: dict[type[Row], dict[str | int, Bucket]] = field(default_factory=lambda: {kind: {} for kind in ROWS})
    payloads: dict[int, bytearray] = field(default_factory=dict)


class MemoryJournal(Journal):
    """A journal with its rows in dictionaries. Open it on the same store again to read what was committed."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        """``store`` None makes a new store. Raises JournalError for a store of another version."""
        super().__init__()
        self.path = Path(":memory:")
        self.store = store or MemoryStore()
        self._undo: list[Callable[[], object]] = []
        if not self.store.tables[FactRow]:
            self._begin()
            self.commit()
        self._refuse_other_layouts()

    def _get(self, kind: type[R], *key: str | int) -> R | None:
        return self.store.tables[kind].get(key[0], {}).get(key)  # type: ignore[return-value]

    def _select(self, kind: type[R], **where: Any) -> list[R]:
        first = where.get(kind.KEY[0])
        table = self.store.tables[kind]
        buckets = table.values() if first is None or isinstance(first, tuple) else [table.get(first, {})]
        rows = [item for bucket in buckets for item in bucket.items() if _fits(item[1], where)]
        return [row for _, row in sorted(rows, key=lambda item: item[0])]  # type: ignore[misc]

    def _scan(self, kind: type[Row], columns: Sequence[str], **where: Any) -> Iterator[tuple[Any, ...]]:
        for row in self._select(kind, **where):
            yield tuple(getattr(row, column) for column in columns)

    def _put(self, row: Row) -> None:
        key = tuple(getattr(row, name) for name in row.KEY)
        bucket = self.store.tables[type(row)].setdefault(key[0], {})
        before = bucket.get(key)
        self._undo.append(partial(bucket.pop, key) if before is None else partial(bucket.__setitem__, key, before))
        bucket[key] = row

    def _delete(self, kind: type[Row], *key: str | int) -> None:
        bucket = self.store.tables[kind].get(key[0], {})
        for each in [each for each in bucket if each[: len(key)] == key]:
            self._undo.append(partial(bucket.__setitem__, each, bucket.pop(each)))

    def _append(self, segment: int, payload: bytes) -> int:
        payloads = self.store.payloads.setdefault(segment, bytearray())
        payloads += payload
        return len(payloads) - len(payload)

    def _fetch(self, segment: int, offset: int, size: int) -> bytes | None:
        payloads = self.store.payloads.get(segment, b"")
        return bytes(payloads[offset : offset + size]) if offset + size <= len(payloads) else None

    def _let_go(self, segment: int) -> Callable[[], None]:
        def remove() -> None:
            self.store.payloads.pop(segment, None)

        return remove

    def commit(self, *, flush: bool = False) -> None:  # noqa: ARG002 - there is nothing to flush
        """Make everything since the last commit part of the store."""
        self._undo.clear()

    @property
    def dirty(self) -> bool:
        """Whether something waits for a commit."""
        return bool(self._undo)

    def abandon(self) -> None:
        """Undo what was not committed."""
        while self._undo:
            self._undo.pop()()

    def look(self) -> None:
        """Nothing to check: nothing else writes to the store."""

    def settle(self) -> None:
        """Nothing to write: there is no disk."""

    def check_structure(self) -> None:
        """Nothing to check: there is no structure beside the rows."""

    def verify(self, *, under_way: bool) -> tuple[int, list[str]]:  # noqa: ARG002 - see the interface
        """The number of rows; memory has no faults."""
        return sum(len(bucket) for table in self.store.tables.values() for bucket in table.values()), []

    def _unusable(self, what: str) -> JournalError:
        return JournalError(f"the journal in memory is not usable ({what})")


def _fits(row: Row, where: dict[str, Any]) -> bool:
    return all(
        getattr(row, name) in wanted if isinstance(wanted, tuple) else getattr(row, name) == wanted
        for name, wanted in where.items()
    )
