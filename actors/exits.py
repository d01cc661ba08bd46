"""How a process ended, in words, and whether the kernel killed it for lack of memory."""

from __future__ import annotations

import os
import signal
from typing import NoReturn

from actors.sandbox.isolation.control_groups import memory_kills

TOGETHER = 4
"""Exit status of an actor that has ended because the process that it works with has: it is started again, and that
counts as no restart.
"""


def end_together() -> NoReturn:
    """End this process at once with `TOGETHER`, whatever its threads do: one may wait for the other process."""
    os._exit(TOGETHER)


class MemoryKills:
    """Tells whether the kernel killed a process for lack of memory. Made when the process starts."""

    def __init__(self) -> None:
        self._before = memory_kills()

    def killed(self, status: int) -> bool:
        """Whether the process, which has just ended with this exit status, was killed for lack of memory."""
        return status == -signal.SIGKILL and memory_kills() > self._before


def describe_exit(status: int, *, lacked_memory: bool = False) -> str:
    """An exit status (negative: a signal) in words."""
    if lacked_memory:
        return "was killed by the kernel for lack of memory in its control group, or on this machine"
    if status < 0:
        try:
            return f"was killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"was killed by signal {-status}"
    return f"exited with status {status}"
