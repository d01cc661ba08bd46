"""Incarnations (which process of a node is the newest) and the clock of a run.

Setting the machine's clock changes neither. An incarnation is ``start * RESTARTS + restarts``: ``start`` is the number
of the supervisor's start, ``restarts`` counts how often this start has restarted the actor. The run directory keeps the
number of each host's last start. The next start takes the larger of that number plus one and the seconds since the
epoch. So a host whose run directory was removed while other hosts run still gets a higher number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from agent_rl.files.disk import whole
from agent_rl.records.run_directory import RunRefused

RESTARTS = 1 << 20
"""An upper bound of an actor's restarts in one start. With it, an incarnation fits an int64."""


def next_start(directory: Path, hosts: Sequence[str], wall: Callable[[], float] = time.time) -> int:
    """Number a new start of these hosts' supervisor, and store the number. The caller holds the run's lock.

    Raises RunRefused when the number of the last start cannot be read.
    """
    files = [directory / f"starts.{host}" for host in hosts]
    start = max(int(wall()), *(_last_start(file) + 1 for file in files))
    for file in files:
        with whole(file) as partial:
            partial.write_text(f"{start}\n")
    return start


def _last_start(file: Path) -> int:
    try:
        start = int(file.read_text()[:20])
        if start * RESTARTS < 1 << 63:
            return start
    except FileNotFoundError:
        return 0
    except (ValueError, IsADirectoryError):
        pass
    raise RunRefused(f"{file} does not hold the number of a start: stop the run on every host, then remove the file")


def is_first(incarnation: int) -> bool:
    """Whether this is the actor's first process in this start."""
    return incarnation % RESTARTS == 0


def read_epoch() -> float:
    """The seconds since the epoch at which the monotonic clock was 0. All processes of a machine share that clock."""
    return time.time() - time.monotonic()


def run_clock(epoch: float) -> Callable[[], float]:
    """A clock of seconds since the epoch.

    All processes of a start use one ``epoch``, so setting the clock has no effect.
    """
    return lambda: time.monotonic() + epoch
