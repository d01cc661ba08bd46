"""What commands ask of a run that is under way, what they are answered, and what its supervisors tell each other.

::

    agent-rl swap, scale, drain, stop --a command--> main host --Changed--> the command
    main host --Wanted--> every other host      what the run is to be, whole
    every other host --Observed--> main host    what it has of that, whole

Both announcements replace the ones before them: one that is lost, late or repeated loses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent_rl.messages.status import ActorReport


@dataclass(frozen=True, slots=True)
class SwapWanted:
    """Give a role another class or other settings: its processes stop in order, and new ones take their places.

    An empty ``class_path`` keeps the class. ``settings``: ``key=value``, the value in TOML; the others stay, unless
    ``fresh``.
    """

    role: str
    class_path: str
    settings: tuple[str, ...]
    fresh: bool


@dataclass(frozen=True, slots=True)
class DrainWanted:
    """Stop all actors of a host in order, and do without them."""

    host: str


@dataclass(frozen=True, slots=True)
class StopWanted:
    """Stop the run in order, as SIGINT does."""


@dataclass(frozen=True, slots=True)
class ScaleWanted:
    """Give a role another number of processes: replicas with the highest numbers come last, and go first."""

    role: str
    number: int


@dataclass(frozen=True, slots=True)
class Progress:
    """Ask again for the answer to the command with this number. It comes within a second, if only to say what for."""

    number: int


@dataclass(frozen=True, slots=True)
class Changed:
    """Why a change was refused, or what was done; one line each. With a ``number`` neither is known yet: it ``waits``.

    Then `Progress` asks for more.
    """

    refused: tuple[str, ...]
    done: tuple[str, ...]
    number: int = 0
    waits: str = ""


@dataclass(frozen=True, slots=True)
class RoleWanted:
    """What a role is to be, beside what the topology file of a host says.

    ``keys``: the swaps in force, in order, each as ``KEY=VALUE`` of the topology. ``since``: the generation of the last
    of them, 0 for none: a process that was started by another is replaced. ``trial``: it was swapped lately, and what
    it was before comes back where its processes keep dying. ``replicas``: the numbers of those that are to run.
    """

    keys: tuple[str, ...]
    since: int
    trial: bool
    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a run is to be.

    ``generation`` grows with each change, over all starts of the run. ``leaving``: hosts that are to leave, by the
    incarnation of the supervisor that does: a later one is welcome. ``check``: ``KEY=VALUE`` of the topology that are
    only to be tried. ``incarnations``: that of each node; peers refuse a process that claims a higher one. ``doubted``:
    actors that nobody is to wait for. ``ending``: the run ends, with ``exit_code``; ``finished``: nothing is left.
    """

    generation: int
    roles: dict[str, RoleWanted]
    leaving: dict[str, int]
    check: tuple[str, ...]
    incarnations: dict[str, int]
    doubted: tuple[str, ...]
    ending: bool
    exit_code: int
    finished: bool


@dataclass(frozen=True, slots=True)
class Observed:
    """What a host has of what is wanted.

    ``generation``: the newest that it has reached, or cannot reach for the reasons in ``faults``; ``done``: how. Its
    nodes have these ``incarnations``, and its actors these ``states``; an actor that is not among them is gone.
    ``spent``: actors that wait to be swapped back, each with the reason. ``state``: the supervisor is running,
    stopping, failed or finished, with a ``detail``.
    """

    generation: int
    done: tuple[str, ...]
    faults: tuple[str, ...]
    incarnations: dict[str, int]
    states: dict[str, str]
    actors: tuple[ActorReport, ...]
    spent: dict[str, str]
    state: str
    detail: str
