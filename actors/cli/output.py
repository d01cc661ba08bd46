"""The standard files of the command line. Writing may fail at any time: a closed pipe or terminal, a full disk."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agent_rl.observe.words import visible

if TYPE_CHECKING:
    from agent_rl.observe.live import SteadyConsole

MISTAKE = 2
"""The exit code of what starting again would not mend."""
WIDTH = 140
"""Characters of a table's line where there is no terminal."""


class Mistake(Exception):  # noqa: N818 - the user's, not an error of the program
    """A mistake of the user: `actors.cli.main` prints the message on stderr, and the exit code is `MISTAKE`.

    ``lines`` replace the message where there are several faults; each line names its file.
    """

    def __init__(self, message: str = "", *, lines: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.lines = lines or [f"agent-rl: {message}"]


def hold_standard_files() -> None:
    """Open /dev/null in place of closed standard files. Otherwise the next file to be opened would take their place."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free: this one


def drop_output() -> None:
    """Discard the remaining output, which nobody can read. Otherwise the interpreter would fail when it ends."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str = "", *, end: str = "\n", flush: bool = False) -> None:
    """Print on stdout. Control characters, which others may have written, are shown and not obeyed."""
    print(visible(text), end=end, flush=flush)


def complain(text: str) -> None:
    """Print a message on stderr, likewise. A closed terminal changes no exit code."""
    with contextlib.suppress(OSError):
        print(visible(text), file=sys.stderr, flush=True)


def leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """The exceptions in a group of groups."""
    for error in group.exceptions:
        yield from leaves(error) if isinstance(error, BaseExceptionGroup) else (error,)


@contextlib.contextmanager
def showing(where: Path) -> Iterator[None]:
    """Print results, which ``where`` holds too. Output that fails is reported on stderr and changes no exit code."""
    try:
        yield
        print(end="", flush=True)  # what could not be shown, also earlier, fails here
    except OSError as error:
        drop_output()
        complain(f"agent-rl: the results could not be shown ({error.strerror}); they are in {where}")


def table_console() -> SteadyConsole:
    """A console for tables, whose texts are shown as they are."""
    from agent_rl.observe.live import SteadyConsole

    console = SteadyConsole(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = WIDTH
    return console
