"""What a forward pass takes, fitted to the rows of a run's timeline.

::

    passes by size --> seconds ~ a passes + b written + c passes x context + d prefilled
    the row's busy seconds --> a, b, c and d scaled to them; on shared cores, the engine's processor seconds

In most seconds of a run, passes are of about the same mean size, so seconds alone do not tell a from b: the tail of a
step, when few rollouts are left, would be predicted wrongly. Hence passes are counted by size. An engine that does not
count them is fitted to its seconds and its totals alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

ENGINE_CPU = "engine_cpu_seconds"


@dataclass(slots=True)
class EngineLoad:
    """What engines did, and the seconds that it took them."""

    work: list[list[float]] = field(default_factory=list)
    """Passes, tokens written, tokens of context read, and tokens prefilled; of each row."""
    seconds: list[float] = field(default_factory=list)
    """Of each row, busy or of processors."""
    pass_work: list[list[float]] = field(default_factory=list)
    """The same by size of passes, if engines say so."""
    pass_seconds: list[float] = field(default_factory=list)
    kv_tokens: int = 0

    def fitted(self) -> list[float]:
        """Seconds of a pass, of a token written, of a token of context, and of a token prefilled."""
        if not self.pass_work:
            return not_negative(np.array(self.work), np.array(self.seconds))
        work, seconds = np.array(self.pass_work), np.array(self.pass_seconds)
        weights = 1 / np.sqrt(work[:, 0])  # a sum of n passes varies as sqrt(n)
        found = np.array(not_negative(work * weights[:, None], seconds * weights))
        scale = sum(self.seconds) / max(1e-9, float((work @ found).sum()))
        return [float(each) for each in found * scale]


def load_of(rows: Sequence[Mapping[str, Any]], role: str, parts: float | None) -> EngineLoad:
    """The load of the actors whose names begin so. ``parts``: on so many cores at once; None: devices of their own."""
    load = EngineLoad()
    for engine in sorted({name for row in rows for name in row["actors"] if name.startswith(role)}):
        for before, after in itertools.pairwise(row for row in rows if engine in row["actors"]):
            first, last = before["actors"][engine]["figures"], after["actors"][engine]["figures"]
            load.kv_tokens = max(load.kv_tokens, int(last.get("kv_total", 0)))
            if (work := _work(first, last)) is None:
                continue
            status = after["actors"][engine]
            load.work.append(work)
            load.seconds.append(
                status["busy"] * after["seconds"] if parts is None else _cpu(before, after, engine) / parts
            )
            for passes in _grown(first.get("passes", {}), last.get("passes", {})):
                count, wall, cpu, written, prefilled, context = passes
                load.pass_work.append([count, written, context, prefilled])
                load.pass_seconds.append(wall if parts is None or not cpu else cpu)
    return load


def _cpu(before: Mapping[str, Any], after: Mapping[str, Any], engine: str) -> float:
    """Processor seconds of the engine in a row; of its whole process when it does not say."""
    status = after["actors"][engine]
    first, last = (row["actors"][engine]["figures"].get(ENGINE_CPU, 0.0) for row in (before, after))
    return float(last - first if last else status["cpu"] * after["seconds"])


def _work(before: Mapping[str, float], after: Mapping[str, float]) -> list[float] | None:
    """Decode steps, tokens written, tokens of context read, and tokens prefilled in a row; None when nothing was."""
    totals = ("engine_steps", "generated_tokens", "prefilled_tokens")
    steps, tokens, prefilled = (after.get(total, 0) - before.get(total, 0) for total in totals)
    if steps <= 0 or tokens <= 0:
        return None  # idle, or another process
    used = (before.get("kv_used", 0) + after.get("kv_used", 0)) / 2
    return [steps, tokens, steps * used, prefilled]


def _grown(before: Mapping[str, Sequence[float]], after: Mapping[str, Sequence[float]]) -> Iterator[list[float]]:
    """What passes of each size grew by, where there were any."""
    for size, last in after.items():
        grown = [now - was for now, was in zip(last, before.get(size, [0.0] * len(last)), strict=True)]
        if grown[0] > 0:
            yield grown


def not_negative(rows: NDArray[np.float64], seconds: NDArray[np.float64]) -> list[float]:
    """The coefficients, none negative, with the least squared error: rows [n, k] times them are about seconds [n]."""
    count = rows.shape[1]
    best, error = np.zeros(count), math.inf
    for chosen in (each for size in range(1, count + 1) for each in itertools.combinations(range(count), size)):
        columns = list(chosen)
        found, *_ = np.linalg.lstsq(rows[:, columns], seconds, rcond=None)
        squared = float(np.square(rows[:, columns] @ found - seconds).sum())
        if (found >= 0).all() and squared < error * (1 - 1e-9):
            best, error = np.zeros(count), squared
            best[columns] = found
    return [float(each) for each in best]
