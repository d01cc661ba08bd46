"""The network of a run: the addresses of its nodes, and the key that nodes on TCP share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from agent_rl.config.addresses import addresses, on_tcp, runtime_directory, supervisor_node
from agent_rl.config.topology import Topology
from agent_rl.records.run_directory import RunRefused

if TYPE_CHECKING:
    from transport import Network

STARTING = "starting."
"""The first part of the name of a host that cannot start."""
KEY_SECONDS = 3.0
"""A supervisor that refuses for so long the key of a command, or of a host that joins, has another key."""


def with_whole_paths(topology: Topology, base: Path) -> Topology:
    """The topology with the whole path of the key, for commands that read the resolved file alone."""
    key_file = topology.security.key_file
    if key_file is None:
        return topology
    whole = (base / key_file.expanduser()).absolute()
    return topology.model_copy(update={"security": topology.security.model_copy(update={"key_file": whole})})


def run_network(topology: Topology, base: Path, further: Mapping[str, str] | None = None) -> Network:
    """The network of a topology. ``base`` is the folder of the topology file. ``further`` nodes have these addresses.

    Nodes learn which supervisors refuse their key. Raises RunRefused when the key cannot be read, and InsecureLink when
    several hosts have no key.
    """
    from transport import CurveKeys, ZmqNetwork

    key_file = topology.security.key_file
    curve = None
    if key_file is not None and on_tcp(topology):
        path = base / key_file.expanduser()
        try:
            curve = CurveKeys.load(path)
        except FileNotFoundError:
            raise RunRefused(f"security.key_file: there is no file {path}; copy the key of the run there") from None
        except (OSError, ValueError) as error:
            raise RunRefused(f"security.key_file: {error}") from error
    table = addresses(topology, runtime_directory(topology)) | dict(further or {})
    watched = [supervisor_node(host) for host in topology.hosts_in_use]
    return ZmqNetwork(table, curve=curve, watched=watched)


def starting_node(host: str) -> str:
    """The name under which a host that cannot start tells the main host why."""
    return f"{STARTING}{host}"


def starting_addresses(hosts: Iterable[str]) -> dict[str, str]:
    """The entries of a network by which a supervisor hears hosts that cannot start. Nobody connects to them."""
    return {starting_node(host): "ipc:///nowhere" for host in hosts}


def supervisor_network(topology: Topology, base: Path) -> Network:
    """The network of a supervisor, which also hears hosts that cannot start; raises as `run_network`."""
    return run_network(topology, base, starting_addresses(topology.hosts_in_use))
