"""The line in which sends and calls wait for room. Pure; leaving the line costs the same, however long it is.

::

    add(item, place) --> line --(room at a place: serve)--> the oldest item for that place, or for any place
                           `----(discard)-----------------> gone
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

_COMPACTED_FROM = 64
"""A heap with more entries is built anew when most of them are of items that left."""


class WaitingLine(Generic[T]):
    """Items that wait for room at one place, or at any place (None), each of them first in, first out.

    Each method but `at` and `serve_all` costs at most the logarithm of the number of items, and `serve` that for each
    item that is served.
    """

    def __init__(self) -> None:
        self._items: dict[T, tuple[int, str | None]] = {}
        """The number of each item, which says how old it is, and its place."""
        self._heaps: dict[str | None, list[tuple[int, T]]] = {}
        """The items of each place by number. Entries of items that left, or changed their place, stay for a while."""
        self._newest = self._oldest = 0

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def add(self, item: T, place: str | None, *, first: bool = False) -> None:
        """Append an item; ``first``: put it before all others."""
        if first:
            self._oldest -= 1
        else:
            self._newest += 1
        self._put(item, self._oldest if first else self._newest, place)

    def move(self, item: T, place: str | None) -> None:
        """From now on an item waits at another place. It keeps its age."""
        self._put(item, self._items[item][0], place)

    def discard(self, item: T) -> None:
        """Remove an item; an unknown item is ignored."""
        self._items.pop(item, None)

    def at(self, place: str | None) -> list[T]:
        """The items of a place, oldest first."""
        found = {item: number for number, item in self._heaps.get(place, ()) if self._waits(number, item, place)}
        return sorted(found, key=found.__getitem__)

    def serve(self, attempt: Callable[[T], bool], place: str | None) -> None:
        """There may be room at a place: items take it, oldest first, until ``attempt`` returns False for the next."""
        while self._serve_one(attempt, place):
            pass

    def serve_all(self, attempt: Callable[[T], bool]) -> None:
        """There may be room at any place."""
        for place in list(self._heaps):
            self.serve(attempt, place)

    def _serve_one(self, attempt: Callable[[T], bool], place: str | None) -> bool:
        heads = [head for each in dict.fromkeys((place, None)) if (head := self._head(each)) is not None]
        for _, item in sorted(heads, key=lambda head: head[0]):
            if attempt(item):
                self.discard(item)
                return True
        return False

    def _head(self, place: str | None) -> tuple[int, T] | None:
        heap = self._heaps.get(place)
        while heap:
            if self._waits(*heap[0], place):
                return heap[0]
            heappop(heap)
        self._heaps.pop(place, None)
        return None

    def _put(self, item: T, number: int, place: str | None) -> None:
        self._items[item] = number, place
        heap = self._heaps.setdefault(place, [])
        if len(heap) > max(_COMPACTED_FROM, 2 * len(self._items)):
            heap[:] = [entry for entry in heap if self._waits(*entry, place)]
            heapify(heap)
        heappush(heap, (number, item))

    def _waits(self, number: int, item: T, place: str | None) -> bool:
        return self._items.get(item) == (number, place)
