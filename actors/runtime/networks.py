"""The network of a run: the addresses of its nodes, and the key that nodes on TCP share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agent_rl.config.addresses import addresses, on_tcp, runtime_directory
from agent_rl.config.topology import Topology
from agent_rl.records.run_directory import RunRefused

if TYPE_CHECKING:
    from transport import Network


def run_network(topology: Topology, base: Path) -> Network:
    """The network of a topology. ``base`` is the folder of the topology file.

    Raises RunRefused when the key cannot be read, and InsecureLink when several hosts have no key.
    """
    from transport import CurveKeys, ZmqNetwork

    key_file = topology.security.key_file
    curve = None
    if key_file is not None and on_tcp(topology):
        try:
            curve = CurveKeys.load(base / key_file.expanduser())
        except (OSError, ValueError) as error:
            raise RunRefused(f"security.key_file: {error}") from error
    return ZmqNetwork(addresses(topology, runtime_directory(topology)), curve=curve)
