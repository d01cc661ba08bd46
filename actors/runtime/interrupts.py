"""Ctrl-C during start-up: importing takes about a second, and an interrupt then would print a traceback."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130
"""The exit code after an interrupt, as in shells."""


def leave_at_once(number: int, frame: FrameType | None) -> None:
    """The signal handler of start-up: print one line and exit."""
    del number, frame
    os.write(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2, b"agent-rl: interrupted\n")
    os._exit(INTERRUPTED)


def begin() -> None:
    """From now on an interrupt ends the process at once."""
    signal.signal(signal.SIGINT, leave_at_once)


def raise_from_now_on() -> None:
    """From now on an interrupt raises KeyboardInterrupt, and so does SIGTERM: what was started is ended."""
    if signal.getsignal(signal.SIGINT) is leave_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


def stop_signals() -> list[signal.Signals]:
    """The signals that stop a run in order. SIGHUP is left out where it is ignored, as under ``nohup``."""
    hung_up = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hung_up]
