"""Another number of replicas for a role of a run under way: which ones come, where they run, and which ones go.

A new replica goes to the host that has the fewest replicas of the role, of the hosts that run the role already; of
equal ones to the first in the order of ``[hosts]``. It gets a number that no replica of the role had. The replicas
with the highest numbers go first. Hosts that have left count for nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from agent_rl.config.addresses import on_tcp
from agent_rl.config.joining import HIGHEST_PORT, each_needed, last_port, may_have_more, next_numbers
from agent_rl.config.topology import Topology


def present(topology: Topology, role: str, left: Collection[str] = ()) -> dict[int, str]:
    """The host of each replica of a role, by number, without hosts that have left."""
    return {number: host for number, host in topology.homes(role).items() if host not in left}


def new_replicas(
    topology: Topology, role: str, count: int, *, taken: Mapping[str, int], left: Collection[str] = ()
) -> dict[str, str]:
    """The host of each of ``count`` further replicas, by its name. ``taken``: as `next_numbers` has it."""
    hosts = Counter(present(topology, role, left).values())
    order = {host: place for place, host in enumerate(topology.hosts)}
    found = {}
    for number in next_numbers(topology, taken, {role: count})[role]:
        host = min(hosts, key=lambda name: (hosts[name], order[name]))
        hosts[host] += 1
        found[f"{role}.{number}"] = host
    return found


def last_replicas(topology: Topology, role: str, count: int, *, left: Collection[str] = ()) -> dict[str, str]:
    """The host of each of the ``count`` replicas that go first, by its name, the highest number first."""
    now = present(topology, role, left)
    return {f"{role}.{number}": now[number] for number in sorted(now, reverse=True)[:count]}


def with_replicas(topology: Topology, added: Mapping[str, str]) -> Topology:
    """The topology with these replicas too, each with its host."""
    return _changed(topology, added, "added")


def without_replicas(topology: Topology, removed: Mapping[str, str]) -> Topology:
    """The topology without these replicas, each with its host, which may have left."""
    there = {replica: host for replica, host in removed.items() if host in topology.hosts}
    return _changed(topology, there, "removed")


def _changed(topology: Topology, replicas: Mapping[str, str], key: str) -> Topology:
    hosts = dict(topology.hosts)
    for replica, name in replicas.items():
        hosts[name] = hosts[name].model_copy(update={key: (*getattr(hosts[name], key), replica)})
    return topology.model_copy(update={"hosts": hosts})


def refusal(topology: Topology, role: str, number: int, left: Collection[str] = ()) -> str:
    """Why a role cannot have so many replicas, and the remedy; empty: it can, as far as its entry says."""
    if role not in topology.actors:
        return f"the run has no role {role!r}; there are {', '.join(topology.actors)}"
    now = len(present(topology, role, left))
    if number < 1:
        return f"{role} needs at least one process, without which the run stands still; ask for 1 or more"
    if number == now:
        return f"nothing would change: {role} has {_processes(now)} already"
    if each_needed(topology, role):
        return f"each process of {role} does a part that no other can do; stop the run, and write it into the file"
    if not may_have_more(topology, role):
        return f"there is exactly one {role}, since it keeps state of the whole run; scale another role"
    if not now:
        return f"no host that runs {role} is left; let one join with it: agent-rl join FILE --role {role}=N"
    return ""


def port_fault(topology: Topology) -> str:
    """Ports that two hosts at one address would share, or that there are not; empty: none."""
    if not on_tcp(topology):
        return ""
    found: dict[str, list[tuple[int, int, str]]] = {}
    for name in topology.hosts_in_use:
        host = topology.hosts[name]
        ports = (host.base_port, last_port(topology, name), name)
        if ports[1] > HIGHEST_PORT:
            return f"host {name} would need the ports {ports[0]} to {ports[1]}, and {HIGHEST_PORT} is the highest"
        for first, last, other in found.get(host.address, ()):
            if first <= ports[1] and ports[0] <= last:
                return (
                    f"host {name} would need the ports {ports[0]} to {ports[1]} at {host.address}, and host {other} "
                    f"those from {first} to {last}; stop the run and give one of them another base_port"
                )
        found.setdefault(host.address, []).append(ports)
    return ""


def _processes(count: int) -> str:
    return f"{count} process" + ("" if count == 1 else "es")
