"""Check the hosts of a topology: free ports, file descriptors for all peers, and the key that TCP needs."""

from __future__ import annotations

import errno
import socket
import stat
from collections.abc import Sequence
from pathlib import Path

from agent_rl.config.addresses import actor_nodes, addresses, on_tcp, runtime_directory, supervisor_node
from agent_rl.config.source import Fault, Source
from agent_rl.config.topology import Topology
from agent_rl.records.run_directory import is_supervised
from agent_rl.topology_checks.descriptors import descriptor_limit, descriptor_needs

HIGHEST_PORT = 65535


def host_faults(topology: Topology, path: Path, source: Source, started: str | None = None) -> list[Fault]:
    """Port ranges that end too high or overlap, unreachable addresses, too many peers, several hosts without a key.

    Free ports are checked for the host that is ``started`` here, or for all. The check binds a port for a moment, and
    other hosts on this machine may check their own ports at the same time.
    """
    hosts = topology.hosts_in_use
    looked_at = hosts if started is None else tuple(name for name in hosts if name == started)
    faults = _metrics_faults(topology, source) if topology.main_host in looked_at else []
    faults += [fault for name in looked_at for fault in _descriptor_faults(topology, name, source)]
    if not on_tcp(topology):
        return faults
    taken: dict[str, list[tuple[range, str]]] = {}
    for name in hosts:
        host = topology.hosts[name]
        place = ("hosts", name)
        needed = 1 + len(list(actor_nodes(topology, name)))
        ports = range(host.base_port, host.base_port + needed)
        if ports[-1] > HIGHEST_PORT:
            message = f"needs the ports {ports[0]} to {ports[-1]}, and {HIGHEST_PORT} is the highest"
            faults.append(source.fault((*place, "base_port"), message, "choose a lower one"))
        for other, other_name in taken.setdefault(host.address, []):
            if ports[0] <= other[-1] and other[0] <= ports[-1]:
                message = f"its ports {ports[0]} to {ports[-1]} are taken by host {other_name} at the same address"
                remedy = f"choose {other[-1] + 1} or more"
                faults.append(source.fault((*place, "base_port"), message, remedy))
        taken[host.address].append((ports, name))
        if host.address in {"0.0.0.0", "::", "*"}:  # noqa: S104 - refused here, not bound
            message = f"other hosts cannot reach {host.address!r}"
            faults.append(source.fault((*place, "address"), message, "name the address they reach it by"))
    if not faults:
        faults += _taken_ports(topology, looked_at, source)
    return faults + _key_faults(topology, path, source)


def _descriptor_faults(topology: Topology, host: str, source: Source) -> list[Fault]:
    """Processes with more peers than a process here may have connections to."""
    limit = descriptor_limit()
    remedy = "raise the limit (ulimit -Hn, or LimitNOFILE= of a service), or use fewer replicas"
    faults = []
    for role, need in descriptor_needs(topology, host):
        if need.descriptors > limit:
            place = ("actors", role, "replicas") if role else ("hosts", host)
            faults.append(source.fault(place, f"{need}; the limit here is {limit:,}", remedy))
    return faults


def _metrics_faults(topology: Topology, source: Source) -> list[Fault]:
    """A port for metrics that some other process of this machine listens at."""
    run = topology.run
    if run.metrics_port is None or is_supervised(run.directory, topology.main_host):
        return []
    here = _resolve(run.metrics_address)
    if here is None:
        message = f"{run.metrics_address!r} is no address that this machine knows"
        return [source.fault(("run", "metrics_address"), message, 'name one of its addresses, such as "127.0.0.1"')]
    if not _is_taken(here, f"{run.metrics_address}:{run.metrics_port}"):
        return []
    message = f"another process listens at {run.metrics_address}:{run.metrics_port}"
    return [source.fault(("run", "metrics_port"), message, "stop it, or choose another port")]


def _taken_ports(topology: Topology, hosts: Sequence[str], source: Source) -> list[Fault]:
    """Ports of this machine that some other process listens on; those of a run that is under way are its own."""
    table = addresses(topology, runtime_directory(topology))
    faults = []
    for host in hosts:
        if is_supervised(topology.run.directory, host):
            continue
        here = _resolve(topology.hosts[host].address)
        nodes = [supervisor_node(host), *(node for node, _ in actor_nodes(topology, host))]
        taken = [
            f"{table[node].removeprefix('tcp://')} ({node})"
            for node in nodes
            if here is not None and table[node].startswith("tcp://") and _is_taken(here, table[node])
        ]
        if taken:
            message = f"another process listens at {', '.join(taken)}"
            faults.append(source.fault(("hosts", host, "base_port"), message, "stop it, or choose another base_port"))
    return faults


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


def _key_faults(topology: Topology, path: Path, source: Source) -> list[Fault]:
    key_file = topology.security.key_file
    place = ("security", "key_file")
    remedy = "make a key with `agent-rl keys FILE`, copy it to every host and name it here"
    if key_file is None:
        return [source.fault(place, "is missing, and hosts talk over TCP, which others reach, on loopback too", remedy)]
    file = path.parent / key_file.expanduser()
    if not file.is_file():
        return [source.fault(place, f"there is no file {file}", remedy)]
    if file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return [source.fault(place, f"others than its owner may read {file}", f"chmod 600 {file}")]
    return []
