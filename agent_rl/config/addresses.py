"""The address of every node of a run, derived from the topology file only, so that all processes derive the same.

A run on one host that only this machine reaches uses Unix sockets. Otherwise all nodes listen on TCP. A host's
supervisor has the ``base_port``, its actors the ports after it, in the order of the file. Replicas that do not run yet
and hosts that are not there yet have their addresses from the start.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from agent_rl.config.topology import Topology
from agent_rl.files.leftovers import PREFIX

CONTROLS = tuple(f"control.{number}" for number in range(8))
"""The nodes of commands that change a run under way. Only the supervisor of the learner's host knows them."""

SOCKET_PATH_LIMIT = 107
"""Bytes a Unix socket's path may have on Linux (``sun_path`` less its terminator)."""


def supervisor_node(host: str) -> str:
    """The name of a host's supervisor on the network."""
    return f"supervisor.{host}"


def actor_nodes(topology: Topology, host: str | None = None) -> Iterator[tuple[str, str]]:
    """Every actor process as (node name ``role.replica``, role), in the order of the file; of one host, or of all."""
    for role in topology.actors:
        for replica, home in topology.homes(role).items():
            if host is None or home == host:
                yield f"{role}.{replica}", role


def wanted_nodes(topology: Topology, host: str) -> dict[str, str]:
    """The role of each actor process of a host that is to run now (`Topology.wanted`), by node name."""
    return {
        f"{role}.{replica}": role
        for role in topology.actors
        for replica, home in topology.wanted(role).items()
        if home == host
    }


def addresses(topology: Topology, runtime_dir: Path) -> dict[str, str]:
    """The ZeroMQ address of every node: each ``role.replica`` and the ``supervisor.<host>`` of each host in use.

    ``runtime_dir`` is where Unix sockets go (see ``runtime_directory``); it need not exist on other hosts than the
    socket's own.
    """
    found: dict[str, str] = {}
    for host in topology.hosts_in_use:
        machine = topology.hosts[host]
        nodes = [supervisor_node(host), *(node for node, _ in actor_nodes(topology, host))]
        if on_tcp(topology):
            where = f"[{machine.address}]" if ":" in machine.address else machine.address
            found |= {node: f"tcp://{where}:{port}" for port, node in enumerate(nodes, machine.base_port)}
        else:
            found |= {node: _socket(runtime_dir, node) for node in nodes}
    return found


def control_addresses(topology: Topology, runtime_dir: Path) -> dict[str, str]:
    """The addresses of the nodes `CONTROLS`. Nobody connects to them, so that any free port will do."""
    return {name: "tcp://127.0.0.1:0" if on_tcp(topology) else _socket(runtime_dir, name) for name in CONTROLS}


def on_tcp(topology: Topology) -> bool:
    """Whether the nodes of a run listen on TCP: with several hosts, or one that others reach and that has a key."""
    hosts = topology.hosts_in_use
    reached = not is_loopback(topology.hosts[hosts[0]].address)
    return len(hosts) > 1 or (reached and topology.security.key_file is not None)


def runtime_directory(topology: Topology) -> Path:
    """Where a run's sockets go: a short path, since the run directory's own may be too long for a socket.

    A function of user and run directory, so that each process of the run finds it.
    """
    name = f"{PREFIX}run-{os.getuid()}-{run_digest(topology)}"
    temporary = Path(tempfile.gettempdir())
    longest = len(os.fsencode(temporary / name)) + len("/") + _HASHED
    return (temporary if longest <= SOCKET_PATH_LIMIT else Path("/tmp")) / name  # noqa: S108 - made with mode 0700


def run_digest(topology: Topology) -> str:
    """A short name of the run directory, for what the run puts elsewhere."""
    return hashlib.sha256(os.fsencode(topology.run.directory.resolve())).hexdigest()[:12]


def is_loopback(address: str) -> bool:
    """Whether an address stays on its machine."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


_HASHED = 20
"""Length of the file name of a socket whose node's own name is too long."""


def _socket(runtime_dir: Path, node: str) -> str:
    path = runtime_dir / node
    if len(os.fsencode(path)) > SOCKET_PATH_LIMIT:
        path = runtime_dir / hashlib.sha256(node.encode()).hexdigest()[:_HASHED]
    return f"ipc://{path}"
