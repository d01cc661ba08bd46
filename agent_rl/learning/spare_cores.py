"""Threads of torch on a host whose processes wait for each other at times: who has work takes the cores that are idle.

A learner waits for rollouts, and an engine for new weights. A process that always had all cores would wait at each
product for a core that another one uses; with its own share alone it would leave cores idle.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import torch

EVERY_SECONDS = 1.0
FREE = 0.6
"""So much of another core must be free, for a thread more."""


def idle_seconds(stat: Path = Path("/proc/stat")) -> float:
    """Seconds that this process's cores were idle, or waited for a disk, since the machine started, summed."""
    own = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    rows = (line.split() for line in stat.read_text().splitlines() if line.startswith("cpu"))
    return sum(int(row[4]) + int(row[5]) for row in rows if row[0] in own) / os.sysconf("SC_CLK_TCK")


class SpareCores:
    """Sets torch's threads: at least ``own``, or half of ``most`` if less, and up to ``most`` while cores are idle."""

    def __init__(
        self,
        own: int,
        most: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.process_time,
        idle: Callable[[], float] = idle_seconds,
    ) -> None:
        """``most`` of 0: always ``own``. ``used`` and ``idle``: seconds of cores by this process, and by none."""
        self.threads, self._most, self._least = own, most or own, min(own, max(1, most // 2)) if most else own
        self._clock, self._used, self._idle = clock, used, idle
        self._at, self._before = clock(), used() + idle() if self._least < self._most else 0.0

    def take(self) -> None:
        """Called between two products, by the thread that computes."""
        seconds = self._clock() - self._at
        if self._least < self._most and seconds >= EVERY_SECONDS:
            free, self._at = self._used() + self._idle(), self._at + seconds
            cores, self._before = (free - self._before) / seconds, free
            self.threads = max(self._least, min(self._most, int(cores + 1.0 - FREE)))
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
