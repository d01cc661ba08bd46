"""What changes the actors of a run: hosts that join, and replicas that `agent-rl scale` adds and removes.

Which replicas a host that joins gets, what a topology is with it, and why it cannot join.

A host that joined is an entry of ``[hosts]`` whose key ``joined`` numbers its replicas. It comes after the hosts of the
file, and its replicas have numbers of their own. So a host that joins changes neither a name nor an address.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from agent_rl.config.addresses import on_tcp, places
from agent_rl.config.plugins import resolve
from agent_rl.config.processes import Host
from agent_rl.config.topology import Topology

HIGHEST_PORT = 65535


def joined_hosts(topology: Topology) -> dict[str, Host]:
    """The hosts that joined, by name."""
    return {name: host for name, host in topology.hosts.items() if host.joined}


def changed_hosts(topology: Topology) -> dict[str, Host]:
    """The hosts that joined, and those to which replicas were added or from which some were removed, by name."""
    return {name: host for name, host in topology.hosts.items() if host.joined or host.added or host.removed}


def with_changed(topology: Topology, changed: Mapping[str, Host]) -> Topology:
    """The topology with exactly these changes (`changed_hosts`) to its file.

    A host of the file keeps its address: each host's file may have another address for it.
    """
    hosts = {}
    for name, host in topology.hosts.items():
        if not host.joined:
            now = changed.get(name, Host())
            hosts[name] = host.model_copy(update={"added": now.added, "removed": now.removed})
    joined = {name: host for name, host in changed.items() if host.joined}
    return topology.model_copy(update={"hosts": hosts | joined})


def next_numbers(topology: Topology, taken: Mapping[str, int], wanted: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Numbers for ``wanted`` further replicas of each role. ``taken``: the number after the highest ever given."""
    first = {role: max([taken.get(role, 0), *(number + 1 for number in topology.numbers(role))]) for role in wanted}
    return {role: tuple(range(first[role], first[role] + count)) for role, count in wanted.items()}


def may_have_more(topology: Topology, role: str) -> bool:
    """Whether a role may have another replica."""
    actor = resolve("actor", topology.actors[role].class_path)
    return not (getattr(actor, "single", False) or each_needed(topology, role))


def each_needed(topology: Topology, role: str) -> bool:
    """Whether each replica of a role does a part of the work that no other can do."""
    return bool(getattr(resolve("actor", topology.actors[role].class_path), "each_needed", False))


def refusal(topology: Topology, name: str, host: Host, wanted: Mapping[str, int]) -> str:
    """Why this host cannot join a run of this topology with so many replicas of each role, and the remedy; or empty.

    The host asks this of its own file, and the main host of the run.
    """
    if not on_tcp(topology):
        return (
            "the run listens on Unix sockets alone, which no other host reaches; give its host the address that others "
            "reach it by, name a key in [security], and start it again"
        )
    if name in topology.hosts:
        if topology.hosts[name].joined:
            return f"a host {name} has joined already; choose another name, or stop that one first"
        return f"the file names the host {name}; start it with agent-rl run FILE --host {name}, or choose another name"
    for role in wanted:
        if role not in topology.actors:
            return f"no role is named {role!r}; there are {', '.join(topology.actors)}"
        if each_needed(topology, role):
            return f"{role} has the processes that the file gives it, and no others; ask for another role"
        if not may_have_more(topology, role):
            return f"there is exactly one {role}, since it keeps state of the whole run; ask for another role"
    if not any(wanted.values()):
        return "it would run no actor; name a role that it runs, as in --role rollout_generator=1"
    return _taken_ports(topology, host, 1 + sum(wanted.values()))


def _taken_ports(topology: Topology, host: Host, count: int) -> str:
    """Ports of another host at the same address, or ports that there are not."""
    ports = range(host.base_port, host.base_port + count)
    if ports[-1] > HIGHEST_PORT:
        return f"it needs the ports {ports[0]} to {ports[-1]}, and {HIGHEST_PORT} is the highest; choose lower ones"
    there = [name for name in topology.hosts_in_use if topology.hosts[name].address == host.address]
    taken = {name: range(topology.hosts[name].base_port, last_port(topology, name) + 1) for name in there}
    for name, others in taken.items():
        if others[0] <= ports[-1] and ports[0] <= others[-1]:
            return (
                f"host {name} has the ports {others[0]} to {others[-1]} at {host.address}, and this host needs "
                f"{ports[0]} to {ports[-1]}; choose --base-port {max(each[-1] for each in taken.values()) + 1}"
            )
    return ""


def last_port(topology: Topology, host: str) -> int:
    """The last of the ports that a host needs."""
    return topology.hosts[host].base_port + len(places(topology, host))


def written(changed: Mapping[str, Host]) -> str:
    """Hosts with their changes as one line of JSON."""
    return json.dumps({name: host.model_dump() for name, host in changed.items()})


def read(text: str) -> dict[str, Host]:
    """The hosts of a line of `written`."""
    return {name: Host.model_validate(host) for name, host in json.loads(text).items()}
