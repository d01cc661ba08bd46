"""The standard files of the command line, whose other ends may go at any time: a pipe's reader, a terminal, a disk's room."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

MISTAKE = 2
"""The exit code of what starting again would not mend."""


class Mistake(Exception):  # noqa: N818 - the user's, not an error of the program
    """Something the user did wrong: `actors.cli.main` tells it on stderr, and the exit code is `MISTAKE`.

    ``lines`` take the place of the message where there are several faults; each names its file.
    """

    def __init__(self, message: str = "", *, lines: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.lines = lines or [f"agent-rl: {message}"]


def hold_standard_files() -> None:
    """Open /dev/null where standard input, output or errors are closed, or the next file opened would take their place."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free: this one


def drop_output() -> None:
    """Nobody can read our output: what is left of it goes nowhere, or the interpreter would fail on it at its end."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(text: str) -> None:
    """Say what is wrong on stderr, if anybody can read that: a closed terminal changes no exit code."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def showing(where: Path) -> Iterator[None]:
    """Print results that are in ``where`` too: output that fails is told on stderr, and changes no exit code."""
    try:
        yield
        print(end="", flush=True)  # what could not be shown, also earlier, fails here
    except OSError as error:
        drop_output()
        complain(f"agent-rl: the results could not be shown ({error.strerror}); they are in {where}")
