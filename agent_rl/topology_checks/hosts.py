"""Check the hosts of a topology: free ports, file descriptors for all peers, and the key that TCP needs."""

from __future__ import annotations

import errno
import resource
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from agent_rl.config.addresses import actor_nodes, addresses, on_tcp, runtime_directory, supervisor_node
from agent_rl.config.gateway import ADDRESS, PORT, ROLE
from agent_rl.config.source import Finding
from agent_rl.config.topology import Topology
from agent_rl.records.run_directory import is_supervised
from agent_rl.topology_checks.facts import Facts

HIGHEST_PORT = 65535
OWN = 512
"""Files, libraries, engine or interpreters, and the 128 strangers that an inbox on TCP takes."""
EACH_CHILD = 4
"""Of a supervisor: a process, a pipe, a file in memory, and a log while it starts."""


def descriptor_limit() -> int:
    """What this machine lets a process have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def raise_descriptor_limit() -> None:
    """Raise the limit of this process and its children to the hard limit; shells set a lower one by default."""
    hard = descriptor_limit()
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@dataclass(frozen=True, slots=True)
class Need:
    """What one process needs. A peer that sends to it costs a connection; a target a connection and a socket."""

    node: str
    senders: int
    targets: int
    children: int = 0

    @property
    def descriptors(self) -> int:
        """All of them."""
        return OWN + self.senders + 2 * self.targets + EACH_CHILD * self.children

    def __str__(self) -> str:
        children = f", {EACH_CHILD} for each of {self.children:,} processes" if self.children else ""
        return (
            f"{self.node} needs {self.descriptors:,} file descriptors: {OWN} of its own, 1 for each of "
            f"{self.senders:,} that send to it, 2 for each of {self.targets:,} that it sends to{children}"
        )


def descriptor_needs(topology: Topology, host: str) -> Iterator[tuple[str, Need]]:
    """The needs of one process of each role of a host, as (role, need); first the supervisor's, with an empty role."""
    elsewhere = len(topology.hosts_in_use) - 1
    here = len(list(actor_nodes(topology, host)))
    heard = len(list(actor_nodes(topology))) if host == topology.main_host else here
    yield "", Need(supervisor_node(host), heard + elsewhere, elsewhere, here)
    for role, entry in topology.actors.items():
        if host in topology.homes(role).values():
            senders = sum(
                len(topology.homes(name))
                for name, other in topology.actors.items()
                if any(role in other.targets(link) for link in other.links)
            )
            targets = {target for link in entry.links for target in entry.targets(link)}
            supervisors = len({host, topology.main_host})
            known = sum(len(topology.homes(target)) for target in targets if target in topology.actors)
            first = next(number for number, home in topology.homes(role).items() if home == host)
            yield role, Need(f"{role}.{first}", senders, known + supervisors)


def host_findings(topology: Topology, facts: Facts) -> Iterator[Finding]:
    """Port ranges that end too high or overlap, unreachable addresses, too many peers, several hosts without a key.

    Free ports are checked for the host that is started here, or for all. The check binds a port for a moment, and
    other hosts on this machine may check their own ports at the same time.
    """
    hosts = topology.hosts_in_use
    looked_at = hosts if facts.started is None else tuple(name for name in hosts if name == facts.started)
    found = [*_taken_metrics_port(topology), *_taken_gateway_port(topology)] if topology.main_host in looked_at else []
    found += [each for name in looked_at for each in _too_many_peers(topology, name)]
    if on_tcp(topology):
        found += _port_ranges(topology)
        if not found:
            found += [each for name in looked_at for each in _taken_ports(topology, name)]
        found += _key(topology, facts)
    yield from found


def _port_ranges(topology: Topology) -> Iterator[Finding]:
    taken: dict[str, list[tuple[range, str]]] = {}
    for name in topology.hosts_in_use:
        host, place = topology.hosts[name], ("hosts", name, "base_port")
        ports = range(host.base_port, host.base_port + 1 + len(list(actor_nodes(topology, name))))
        if ports[-1] > HIGHEST_PORT:
            message = f"needs the ports {ports[0]} to {ports[-1]}, and {HIGHEST_PORT} is the highest"
            yield Finding(place, message, "choose a lower one")
        for other, other_name in taken.setdefault(host.address, []):
            if ports[0] <= other[-1] and other[0] <= ports[-1]:
                message = f"its ports {ports[0]} to {ports[-1]} are taken by host {other_name} at the same address"
                yield Finding(place, message, f"choose {other[-1] + 1} or more")
        taken[host.address].append((ports, name))
        if host.address in {"0.0.0.0", "::", "*"}:  # noqa: S104 - refused here, not bound
            message = f"other hosts cannot reach {host.address!r}"
            yield Finding(("hosts", name, "address"), message, "name the address they reach it by")


def _too_many_peers(topology: Topology, host: str) -> Iterator[Finding]:
    """Processes with more peers than a process here may have connections to."""
    limit = descriptor_limit()
    remedy = "raise the limit (ulimit -Hn, or LimitNOFILE= of a service), or use fewer replicas"
    for role, need in descriptor_needs(topology, host):
        if need.descriptors > limit:
            place = ("actors", role, "replicas") if role else ("hosts", host)
            yield Finding(place, f"{need}; the limit here is {limit:,}", remedy)


def _taken_metrics_port(topology: Topology) -> Iterator[Finding]:
    """A port for metrics that some other process of this machine listens at."""
    run = topology.run
    if run.metrics_port is None or is_supervised(run.directory, topology.main_host):
        return
    here, place = _resolve(run.metrics_address), f"{run.metrics_address}:{run.metrics_port}"
    if here is None:
        message = f"{run.metrics_address!r} is no address that this machine knows"
        yield Finding(("run", "metrics_address"), message, 'name one of its addresses, such as "127.0.0.1"')
    elif _is_taken(here, place):
        message = f"another process listens at {place}"
        yield Finding(("run", "metrics_port"), message, "stop it, or choose another port")


def _taken_gateway_port(topology: Topology) -> Iterator[Finding]:
    """A gateway's port where another run listens: the system would give each run some of the other's requests.

    Hosts of one run may share a machine, and then this port too; so runs of several hosts are not checked.
    """
    entry = topology.actors.get(ROLE)
    if entry is None or on_tcp(topology) or is_supervised(topology.run.directory, topology.main_host):
        return
    address, port = entry.settings.get("address", ADDRESS), entry.settings.get("port", PORT)
    if isinstance(address, str) and (here := _resolve(address)) and _is_taken(here, f"{address}:{port}"):
        message = f"another process listens at {address}:{port}"
        yield Finding(("actors", ROLE, "settings", "port"), message, "stop it, or choose another port")


def _taken_ports(topology: Topology, host: str) -> Iterator[Finding]:
    """Ports of this machine that some other process listens on; those of a run that is under way are its own."""
    if is_supervised(topology.run.directory, host):
        return
    table, here = addresses(topology, runtime_directory(topology)), _resolve(topology.hosts[host].address)
    nodes = [supervisor_node(host), *(node for node, _ in actor_nodes(topology, host))]
    if taken := [
        f"{table[node].removeprefix('tcp://')} ({node})" for node in nodes if here and _is_taken(here, table[node])
    ]:
        message = f"another process listens at {', '.join(taken)}"
        yield Finding(("hosts", host, "base_port"), message, "stop it, or choose another base_port")


def _resolve(host: str) -> tuple[socket.AddressFamily, str] | None:
    """Address family and numeric address of a host; None for a name that is not known here."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return None
    return found[0][0], str(found[0][4][0])


def _is_taken(here: tuple[socket.AddressFamily, str], address: str) -> bool:
    """Whether the port of ``host:port`` is listened at, if the host is this machine."""
    family, host = here
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as ZeroMQ does: old connections are no harm
            probe.bind((host, int(address.rpartition(":")[2])))
    except OSError as error:  # another machine's address cannot be bound either
        return error.errno == errno.EADDRINUSE
    return False


def _key(topology: Topology, facts: Facts) -> Iterator[Finding]:
    key_file, place = topology.security.key_file, ("security", "key_file")
    remedy = "make a key with `agent-rl keys FILE`, copy it to every host and name it here"
    if key_file is None:
        yield Finding(place, "is missing, and hosts talk over TCP, which others reach, on loopback too", remedy)
        return
    file = facts.base / key_file.expanduser()
    if not file.is_file():
        yield Finding(place, f"there is no file {file}", remedy)
    elif file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        yield Finding(place, f"others than its owner may read {file}", f"chmod 600 {file}")
