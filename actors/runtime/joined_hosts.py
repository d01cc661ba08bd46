"""The hosts that joined the run and are not in its file, and the replicas that came or went, as supervisors know them.

::

    a host that joins --JoinWanted--> main host: refused, with the reason
                                        `-----> numbers for its replicas; kept in the run directory
                      <--JoinAnswer--------'    and the swaps that are in force
    main host --JoinedHosts--> all supervisors --lifelines--> actors: their links lead to the new replicas too
    main host: the run is scaled --JoinedHosts--> the same

A host has left when its supervisor says that it has finished or failed, when it says goodbye, or when it never came.
Then the links lead there no more. A host that is silent has not left: it may return, as a host of the file may.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import trio

from actors.runtime.links import joined_addresses
from actors.runtime.networks import starting_addresses
from agent_rl.config.addresses import actor_nodes, is_loopback, supervisor_node
from agent_rl.config.joining import changed_hosts, joined_hosts, next_numbers, read, refusal, with_changed, written
from agent_rl.config.processes import Host
from agent_rl.config.topology import Topology
from agent_rl.files.disk import whole
from agent_rl.messages import ActorStatus, JoinAnswer, JoinedHost, JoinedHosts, JoinWanted
from agent_rl.records.continuing import made_with

if TYPE_CHECKING:
    from transport import AnnounceLink, Network, Node

FILE = "joined.json"
GUEST = "joining."
"""The first part of the name of a host that asks to join."""
WORD = b"joined "
"""The first word of the line about joined hosts; other lines are those of `actors.runtime.roster.written`."""
START_SECONDS = 300.0
"""A host that may join and is not heard for so long is taken off the list again."""


def with_kept(topology: Topology, directory: Path) -> Topology:
    """The topology with the hosts that had joined when the main host's supervisor ended without telling them."""
    try:
        return with_changed(topology, read(json.dumps(json.loads((directory / FILE).read_text())["hosts"])))
    except FileNotFoundError:
        return topology


def as_hosts(told: Sequence[JoinedHost]) -> dict[str, Host]:
    """The hosts of a message as entries of a topology."""
    return {
        each.name: Host(
            address=each.address,
            base_port=each.base_port,
            joined=each.replicas,
            added=each.added,
            removed=each.removed,
        )
        for each in told
    }


def as_told(topology: Topology) -> tuple[JoinedHost, ...]:
    """The hosts that joined, and those whose replicas have changed, as entries of a message."""
    return tuple(
        JoinedHost(name, host.address, host.base_port, host.joined, host.added, host.removed)
        for name, host in changed_hosts(topology).items()
    )


class InForce(Protocol):
    """The changes of a run under way, as far as a host that joins needs them."""

    topology: Topology
    """The topology with the swaps."""
    keys: list[str]
    """The swaps, as ``KEY=VALUE`` of the topology."""

    def obstacle(self) -> str:
        """Why no host can join now, and the remedy; empty: one can."""


class Joined:
    """The topology with the hosts that joined. The main host's supervisor decides, and tells the others.

    ``follow`` gets each new topology; ``say`` shows a line to the user. ``changes`` say what is in force, and why no
    host can join now.
    """

    def __init__(
        self,
        topology: Topology,
        hosts: Sequence[str],
        changes: InForce,
        *,
        follow: Callable[[Topology], None],
        say: Callable[[str], None],
    ) -> None:
        self.topology = topology
        self._changes = changes
        self._is_main = topology.main_host in hosts
        self._main = supervisor_node(topology.main_host)
        self._own = set(hosts)
        self._follow = follow
        self._say = say
        self._file = topology.run.directory / FILE
        self.taken: dict[str, int] = {}
        """By role, the number after the highest that hosts which joined, or replicas that were added, ever got."""
        self._expected: dict[str, float] = {}
        """The hosts that are not heard yet, and when each is given up."""
        self._ending: set[str] = set()
        self._network: Network | None = None
        self._link: tuple[Node, AnnounceLink] | None = None

    def link(self, node: Node, network: Network) -> None:
        """Add a node of this supervisor. The main host's node tells the others."""
        self._network = network
        if self._is_main and node.name == self._main:
            self._link = node, node.announce("joined", self._others, growing=True)
            self.taken.update(self._numbers_given())
            self._expected = dict.fromkeys(joined_hosts(self.topology), trio.current_time() + START_SECONDS)
            self.tell()

    @property
    def _others(self) -> list[str]:
        return [supervisor_node(name) for name in self.topology.hosts_in_use if name not in self._own]

    def line(self) -> bytes:
        """The line for a lifeline."""
        return WORD + written(changed_hosts(self.topology)).encode() + b"\n"

    def has_joined(self, supervisor: str) -> bool:
        """Whether this is the supervisor of a host that joined."""
        return any(supervisor == supervisor_node(name) for name in joined_hosts(self.topology))

    # At the main host

    def answer(self, sender: str, wanted: JoinWanted) -> JoinAnswer:
        """A host asks to join."""
        reason = self._refusal(sender, wanted)
        if reason:
            self._say(f"host {wanted.host} at {wanted.address} may not join: {reason}")
            return JoinAnswer(reason, (), ())
        same = self._same(wanted)
        before = changed_hosts(self.topology)
        if same is None or {role: len(numbers) for role, numbers in same.joined.items()} != wanted.replicas:
            numbers = next_numbers(self.topology, self.taken, wanted.replicas)
            self.taken |= {role: given[-1] + 1 for role, given in numbers.items()}
            host = Host(address=wanted.address, base_port=wanted.base_port, joined=numbers)
            if same is not None:  # it runs other actors than before
                self._set({name: each for name, each in before.items() if name != wanted.host})
            self._set(before | {wanted.host: host})
        self._expected[wanted.host] = trio.current_time() + START_SECONDS
        nodes = ", ".join(name for name, _ in actor_nodes(self.topology, wanted.host))
        self._say(f"host {wanted.host} joins at {wanted.address}: {nodes}")
        return JoinAnswer("", as_told(self.topology), tuple(self._changes.keys))

    def scaled(self, topology: Topology, role: str) -> None:
        """The replicas of a role are those of this topology from now on. Raises DiskError; nothing is changed then."""
        self.taken[role] = max(self.taken.get(role, 0), max(topology.numbers(role), default=-1) + 1)
        self._set(changed_hosts(topology))

    def _refusal(self, sender: str, wanted: JoinWanted) -> str:
        if not self._is_main or sender != f"{GUEST}{wanted.host}":
            return "hosts join by the supervisor of the learner's host"
        if obstacle := self._changes.obstacle():
            return obstacle
        try:
            ipaddress.ip_address(wanted.address)
        except ValueError:
            return f"{wanted.address!r} is no numeric address"
        if is_loopback(wanted.address) and not is_loopback(self.topology.hosts[self.topology.main_host].address):
            return f"other hosts cannot reach {wanted.address}; name the address that they reach it by"
        theirs, ours = json.loads(wanted.made_with), json.loads(json.dumps(made_with(self.topology)))
        differing = [key for key in dict.fromkeys([*ours, *theirs]) if ours.get(key) != theirs.get(key)]
        if differing:
            return f"its topology is another one, in {', '.join(differing)}; start it with the file of the run"
        others = changed_hosts(self.topology)
        if self._same(wanted) is not None:  # it found its ports free, so the process that had them has ended
            del others[wanted.host]
        topology = with_changed(self._changes.topology, others)
        host = Host(address=wanted.address, base_port=wanted.base_port)
        return refusal(topology, wanted.host, host, wanted.replicas)

    def _same(self, wanted: JoinWanted) -> Host | None:
        """The host of this name that joined before at the same address and ports."""
        host = joined_hosts(self.topology).get(wanted.host)
        place = None if host is None else (host.address, host.base_port)
        return host if place == (wanted.address, wanted.base_port) else None

    def up(self, supervisor: str) -> None:
        """A supervisor is heard."""
        name = supervisor.removeprefix(supervisor_node(""))
        if self._expected.pop(name, None) is not None:
            self._say(f"host {name} has joined")

    def says(self, status: ActorStatus) -> None:
        """The supervisor of a host that joined ends, or has ended."""
        name = status.actor.removeprefix(supervisor_node(""))
        if self._is_main and status.state in {"stopping", "failed"} and name not in self._ending:
            self._ending.add(name)
            failed = f" since it failed: {status.detail}" if status.state == "failed" else ""
            self._say(f"host {name} leaves{failed}; the run goes on without it")
        if status.state == "finished":
            self.left(status.actor)

    def left(self, supervisor: str, why: str = "has left") -> None:
        """A host that joined has ended. Other hosts are ignored."""
        if self._is_main and self.has_joined(supervisor):
            name = supervisor.removeprefix(supervisor_node(""))
            self._expected.pop(name, None)
            self._ending.discard(name)
            self._say(f"host {name} {why}")
            self._set({other: host for other, host in changed_hosts(self.topology).items() if other != name})

    def tick(self, now: float) -> None:
        """Time has passed: give up the hosts that never came."""
        for name in [name for name, until in self._expected.items() if now >= until]:
            self.left(supervisor_node(name), f"may join, and did not start within {START_SECONDS:.0f} s")

    def over(self) -> None:
        """The run ends in order: all hosts have been told."""
        if self._is_main:
            self._file.unlink(missing_ok=True)

    # At all hosts

    def heard(self, message: JoinedHosts) -> None:
        """The main host tells which hosts have joined."""
        changed = as_hosts(message.hosts)
        if not self._is_main and with_changed(self.topology, changed).hosts != self.topology.hosts:
            self._set(changed)

    def _set(self, changed: dict[str, Host]) -> None:
        assert self._network is not None
        if self._is_main:
            kept = {"hosts": json.loads(written(changed)), "taken": self.taken}
            with whole(self._file) as partial:
                partial.write_text(json.dumps(kept) + "\n", encoding="utf-8")
            self._network.extend(starting_addresses(changed))
        self.topology = with_changed(self.topology, changed)
        self._network.extend(joined_addresses(self.topology))
        if self._link is not None:
            node, _ = self._link
            node.set_targets({"joined": self._others})
        self.tell()
        self._follow(self.topology)

    def tell(self) -> None:
        """Tell all hosts what is in force, from the main host."""
        if self._link is not None:
            self._link[1].set(JoinedHosts(as_told(self.topology)))

    def _numbers_given(self) -> dict[str, int]:
        try:
            kept: dict[str, Any] = json.loads(self._file.read_text())
        except FileNotFoundError:
            return {}
        return dict(kept["taken"])
