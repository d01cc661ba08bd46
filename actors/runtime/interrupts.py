"""Ctrl-C before there is anything to stop: importing takes a second, in which an interrupt would be a traceback."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130
"""The exit code of what was interrupted, as shells have it."""


def leave_at_once(number: int, frame: FrameType | None) -> None:
    """The handler until something has to be ended in order: one line, and the exit code."""
    del number, frame
    os.write(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2, b"agent-rl: interrupted\n")
    os._exit(INTERRUPTED)


def begin() -> None:
    """From now on an interrupt ends the process at once."""
    signal.signal(signal.SIGINT, leave_at_once)


def raise_from_now_on() -> None:
    """From now on an interrupt raises KeyboardInterrupt, where it had ended the process at once."""
    if signal.getsignal(signal.SIGINT) is leave_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def stop_signals() -> list[signal.Signals]:
    """The signals by which a run is stopped in order. SIGHUP is not among them where it is ignored, as ``nohup`` has it."""
    hung_up = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hung_up]
