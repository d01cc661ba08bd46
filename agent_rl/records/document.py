"""The document of a run, ``state.json``: which processes are wanted, what is seen of them, and who changed what.

The supervisor of the main host alone writes it, and whole. The topology file stays the truth: a change holds until the
run ends or is stopped, also for processes that are restarted, and for a supervisor that is killed and started again.
The next start goes by the file, and says for which roles the last one went by something else.

::

    topology, swap, scale, drain --> wanted: roles, hosts       on disk before it is carried out
    statuses, links, processes ----> seen: hosts, processes     on disk within a second
    commands and their answers ----> edits                      the newest `EDITS`, also those that were refused

    a process or host: wanted --> starting --> up --> draining --> gone
                                     ^------------(it ended)-------'
    the document: in force --(the run ends, or is stopped)--> ended --(the next start: a line each)--> written anew
                     `-(the supervisor is killed, and started again)--> in force
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import TypeAdapter, ValidationError

from agent_rl.config.hidden import redacted
from agent_rl.config.topology import Topology
from agent_rl.files.disk import whole
from agent_rl.files.reading_json import read_json

FILE = "state.json"
EDITS = 50
"""Edits that the document keeps."""
State: TypeAlias = Literal["wanted", "starting", "up", "draining", "gone"]
_STATES: Mapping[str, State] = {
    "starting": "starting", "restarting": "starting", "failed": "gone", "stopping": "draining", "stopped": "gone",
}  # fmt: skip
"""By a word of an actor or of its supervisor; after any other word the actor is up."""


@dataclass(slots=True)
class Role:
    """What a role is to be. ``changed``: it was swapped or scaled in this start.

    ``runs``: the numbers of the replicas that are to run, of which there are ``replicas``. ``swaps`` are in force, each
    as ``KEY=VALUE`` of the topology; the last is of the generation ``since``, 0 where there is none.
    """

    class_path: str
    settings: dict[str, Any]
    replicas: int
    changed: bool = False
    swaps: list[list[str]] = field(default_factory=list)
    since: int = 0
    runs: list[int] = field(default_factory=list)

    @property
    def keys(self) -> tuple[str, ...]:
        """The swaps in force as one change of the topology."""
        return tuple(chain.from_iterable(self.swaps))


@dataclass(slots=True)
class Host:
    """A host, and whether the run is to use it. ``left``: the incarnation of its supervisor that is to leave."""

    wanted: bool = True
    state: State = "wanted"
    left: int = 0


@dataclass(slots=True)
class Process:
    """The process of one actor. ``detail`` says more of a process that is not up."""

    role: str
    host: str
    wanted: bool = True
    state: State = "wanted"
    incarnation: int = 0
    detail: str = ""


@dataclass(slots=True)
class Edit:
    """A change that somebody asked for, ``at`` seconds since the epoch, and the lines of its answer."""

    at: float
    what: str
    done: list[str]
    refused: list[str]


@dataclass(slots=True)
class Document:
    """A run as it is wanted and seen. ``ended``: nothing of it is in force any more."""

    roles: dict[str, Role] = field(default_factory=dict)
    hosts: dict[str, Host] = field(default_factory=dict)
    processes: dict[str, Process] = field(default_factory=dict)
    edits: list[Edit] = field(default_factory=list)
    ended: bool = False

    @classmethod
    def begun(cls, topology: Topology, hosts: Iterable[str], former: Document | None) -> Document:
        """The document of a start by the supervisor of ``hosts``: what is in force of the former one holds.

        ``topology``: of the file. `follow` gets the one that is in force.
        """
        document = cls()
        if former is not None and not former.ended:
            document.edits = former.edits
            used = topology.hosts_in_use
            document.hosts = {
                name: Host(host.wanted, left=host.left) for name, host in former.hosts.items() if name in used
            }
        for name in topology.actors:
            before = None if former is None or former.ended else former.roles.get(name)
            role = document.roles[name] = before or _role(topology, name)
            if not (role.changed and role.runs):  # the file may have another number by now
                role.runs = list(topology.wanted(name))
            role.runs = [number for number in role.runs if number in topology.homes(name)]
        document.hosts |= {name: Host(state="up") for name in hosts}
        return document

    @classmethod
    def read(cls, directory: Path) -> Document | None:
        """The document of a run directory. None where there is none that can be read: then the topology file holds."""
        try:
            return _DOCUMENT.validate_python(read_json(directory / FILE))
        except (OSError, ValueError, ValidationError):
            return None

    def write(self, directory: Path) -> None:
        """Store the document whole. Raises DiskError."""
        with whole(directory / FILE, private=True) as partial:
            partial.write_text(json.dumps(asdict(self), indent=1, default=str) + "\n", encoding="utf-8")

    # What is wanted.

    @property
    def swapped(self) -> list[str]:
        """The roles that were swapped in this start, while that is in force."""
        return [] if self.ended else [name for name, role in self.roles.items() if role.swaps]

    def follow(self, topology: Topology) -> None:
        """Want what the topology in force says, and the replicas of each role that are on hosts that are wanted."""
        hosts = {host: self.hosts.setdefault(host, Host()).wanted for host in topology.hosts_in_use}
        wanted: dict[str, tuple[str, str]] = {}
        for name, role in self.roles.items():
            said, homes = _role(topology, name), topology.homes(name)
            role.class_path, role.settings, role.replicas = said.class_path, said.settings, len(role.runs)
            wanted |= {f"{name}.{number}": (name, homes[number]) for number in role.runs if hosts[homes[number]]}
        for actor, process in list(self.processes.items()):
            process.wanted = actor in wanted
            if not process.wanted and self.seen(process) in {"wanted", "gone"}:
                del self.processes[actor]
        for actor, place in wanted.items():
            self.processes.setdefault(actor, Process(*place))

    def change(self, role: str, *, keys: Sequence[str] = (), since: int = 0, runs: Sequence[int] | None = None) -> Role:
        """A role is swapped by the generation ``since``, or has other replicas from now on. Returns what it was."""
        former = self.roles[role]
        swaps = [*former.swaps, list(keys)] if keys else former.swaps
        runs = list(former.runs if runs is None else runs)
        self.roles[role] = replace(former, changed=True, swaps=swaps, since=since or former.since, runs=runs)
        return former

    @property
    def swaps(self) -> dict[str, tuple[str, ...]]:
        """The swaps in force, by role, as ``KEY=VALUE`` of the topology."""
        return {name: self.roles[name].keys for name in self.swapped}

    def edited(self, at: float, what: str, done: Sequence[str], refused: Sequence[str]) -> None:
        """Somebody asked for a change, and was answered."""
        self.edits = [*self.edits, Edit(at, what, list(done), list(refused))][-EDITS:]

    def differences(self, topology: Topology) -> Iterator[str]:
        """One line for each role that the last start had changed, and this one takes from the file."""
        for name, then in self.roles.items():
            if not (self.ended and then.changed and name in topology.actors):
                continue
            now = _role(topology, name)
            if (now.class_path, now.settings) != (then.class_path, then.settings):
                yield (
                    f"{name} was swapped in the last start, and now is what the file says: class {now.class_path}, "
                    f"settings {json.dumps(redacted(now.settings))}; it was class {then.class_path}, "
                    f"settings {json.dumps(redacted(then.settings))}"
                )
            if now.replicas != then.replicas:
                yield (
                    f"{name} was scaled in the last start, and now has as many processes as the file says: "
                    f"{now.replicas}; it had {then.replicas}"
                )

    # What is seen.

    def process(self, actor: str, word: str, detail: str = "") -> bool:
        """An actor, or the supervisor, says what its process does; whether that is news."""
        process, state = self.processes.get(actor), _STATES.get(word, "up")
        if process is None:
            return False
        if state == "gone" and not process.wanted:
            del self.processes[actor]
            return True
        detail = "" if state == "up" else detail
        news = (process.state, process.detail) != (state, detail)
        process.state, process.detail = state, detail
        return news

    def host(self, name: str, state: State, topology: Topology) -> bool:
        """What is seen of a host; whether that is news. One that leaves is wanted again once it is back."""
        host = self.hosts.get(name)
        if host is None or host.state == state or (host.state == "draining" and state != "gone"):
            return False
        if state == "up":
            host.wanted, host.left = True, 0
        host.state = state
        self.follow(topology)
        return True

    def drain(self, name: str, left: int, topology: Topology) -> None:
        """The supervisor of this incarnation is to leave, with its host. A later one is welcome."""
        host = self.hosts[name]
        host.wanted, host.left = False, left
        host.state = host.state if host.state == "gone" else "draining"
        self.follow(topology)

    def end(self) -> None:
        """The run ends, or is stopped: its hosts leave, and nothing is in force."""
        self.ended = True
        for host in self.hosts.values():
            host.state = "gone"

    def seen(self, process: Process) -> State:
        """The state of a process. With a host that is gone, its processes are."""
        host = self.hosts.get(process.host)
        return "gone" if host is not None and host.state == "gone" else process.state

    @property
    def others(self) -> dict[str, Process]:
        """The processes that are not as they are wanted."""
        return {
            actor: process
            for actor, process in self.processes.items()
            if self.seen(process) != ("up" if process.wanted else "gone")
        }


_DOCUMENT = TypeAdapter(Document)


def _role(topology: Topology, name: str) -> Role:
    entry = topology.actors[name].model_dump(mode="json", by_alias=True)
    return Role(entry["class"], entry["settings"], len(topology.wanted(name)))
