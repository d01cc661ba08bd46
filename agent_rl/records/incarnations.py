"""Which process of a node is the newest, and what time it is in a run: neither is changed by whoever sets the clock.

An incarnation is ``start * RESTARTS + restarts``: ``start`` is the number of the supervisor's start, ``restarts`` how often this
start has restarted the actor. The run directory keeps the number of each host's last start. The next start takes the number
after it, or the seconds since the epoch when they are more: then a host whose run directory was removed while other
hosts run is still taken for newer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from agent_rl.files.disk import whole
from agent_rl.records.run_directory import RunRefused

RESTARTS = 1 << 20
"""More than an actor can be restarted in one start: a billion seconds of starts and these fit an int64."""


def next_start(directory: Path, hosts: Sequence[str], wall: Callable[[], float] = time.time) -> int:
    """The number of a start of these hosts' supervisor, kept in the run directory; hold the run's lock.

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
    raise RunRefused(f"{file} holds no number of a start: remove it while no host of this run is running")


def is_first(incarnation: int) -> bool:
    """Whether no process of this actor came before, in this start."""
    return incarnation % RESTARTS == 0


def read_epoch() -> float:
    """What to add to the monotonic clock, which all processes of a machine share, for seconds since the epoch."""
    return time.time() - time.monotonic()


def run_clock(epoch: float) -> Callable[[], float]:
    """Seconds since the epoch for all processes of one start: ``epoch`` was read once, and setting the clock changes nothing."""
    return lambda: time.monotonic() + epoch
