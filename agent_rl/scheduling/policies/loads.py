"""Engines ordered by a load that changes."""

from __future__ import annotations

import heapq


class Loads:
    """Engines by a load that changes: a heap with outdated entries, which are skipped. Ties go to who was first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str]] = []
        self._loads: dict[str, float] = {}
        self._order: dict[str, int] = {}

    def __contains__(self, engine: str) -> bool:
        return engine in self._loads

    def __getitem__(self, engine: str) -> float:
        return self._loads[engine]

    def __len__(self) -> int:
        return len(self._loads)

    def set(self, engine: str, load: float) -> None:
        """The engine has this load; an unknown engine joins."""
        order = self._order.setdefault(engine, len(self._order))
        self._loads[engine] = load
        heapq.heappush(self._heap, (load, order, engine))
        if len(self._heap) > 4 * len(self._loads) + 64:
            self._heap = [(value, self._order[name], name) for name, value in self._loads.items()]
            heapq.heapify(self._heap)

    def add(self, engine: str, change: float) -> None:
        """The engine's load changes, unless the engine is gone."""
        if engine in self._loads:
            self.set(engine, self._loads[engine] + change)

    def remove(self, engine: str) -> None:
        """The engine is gone."""
        self._loads.pop(engine, None)

    def least(self) -> str:
        """The engine with the smallest load; there must be one."""
        heap = self._heap
        while self._loads.get(heap[0][2]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][2]
