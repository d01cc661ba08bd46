"""Messages between a process and one that it starts, over a pipe.

::

    supervisor    Expect, PresumedLost, Go -------> actor
    actor         Prepared ----------------> supervisor
    up            Order -------------------> up-host: the process that `agent-rl up` starts on a host
    up            Say, Stop, Kill, Alive --> up-host

The end of a pipe is the end of the process at its other end. Logs, and the last words of an actor, are text on stderr.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Expect:
    """Which incarnations nodes have. Nodes that are not among these stay what they were."""

    incarnations: dict[str, int]


@dataclass(frozen=True, slots=True)
class PresumedLost:
    """All the actors that are not to be waited for; those of an earlier message that are not among them are again."""

    actors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Go:
    """A process that is prepared takes the place of the former one."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A process that was started beside another is prepared, and waits for `Go`."""


@dataclass(frozen=True, slots=True)
class Alive:
    """The sender and the connection are well; it comes now and then."""


@dataclass(frozen=True, slots=True)
class Terminal:
    """The terminal of ``agent-rl up``."""

    width: int
    height: int
    kind: str
    colours: str | None


@dataclass(frozen=True, slots=True)
class Order:
    """What a host is to run: topology and overlays as the user named them, and the command that continues the run.

    ``main``: this is the main host, which shows the table. ``texts`` has the files that the host is to have, by path,
    relative to the working directory; none for a host of this machine. ``key`` is the content of the key file that the
    topology names. No ``terminal``: the output goes elsewhere.
    """

    release: str
    host: str
    main: bool
    files: tuple[str, ...]
    overrides: tuple[str, ...]
    again: str
    texts: dict[str, str]
    key: str | None
    terminal: Terminal | None


@dataclass(frozen=True, slots=True)
class Say:
    """Show a text above the table."""

    text: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the run in order."""


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill all actors."""
