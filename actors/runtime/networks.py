"""The network of a run: where its nodes listen, and the key that those on TCP share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agent_rl.config.addresses import addresses, runtime_directory
from agent_rl.config.topology import Topology
from agent_rl.records.run_directory import RunRefused

if TYPE_CHECKING:
    from transport import Network


def run_network(topology: Topology, base: Path) -> Network:
    """The network that all processes of a topology are on, whose file is in the folder ``base``.

    Raises RunRefused when the key cannot be read, InsecureLink when several hosts have none.
    """
    from transport import CurveKeys, ZmqNetwork

    key_file = topology.security.key_file
    curve = None
    if key_file is not None and len(topology.hosts_in_use) > 1:
        try:
            curve = CurveKeys.load(base / key_file.expanduser())
        except (OSError, ValueError) as error:
            raise RunRefused(f"security.key_file: {error}") from error
    return ZmqNetwork(addresses(topology, runtime_directory(topology)), curve=curve)
