"""Addresses of this machine, and the words that start ``agent-rl`` on it."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from agent_rl.config.addresses import is_loopback
from agent_rl.config.source import Fault, Source
from agent_rl.config.topology import Topology


def is_here(address: str) -> bool:
    """Whether an address is one of this machine. A name that nobody knows is not."""
    if is_loopback(address):
        return True
    try:
        family, _, _, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(place)  # no other machine's address can be bound
    except OSError:
        return False
    return True


def address_faults(topology: Topology, source: Source) -> list[Fault]:
    """A fault for each host that other machines are to reach at an address of its own machine alone."""
    addresses = {name: topology.hosts[name].address for name in topology.hosts_in_use}
    if all(map(is_loopback, addresses.values())):
        return []
    message = "no other machine reaches this address, and hosts are on several machines"
    remedy = "write the address under which they reach it"
    return [
        source.fault(("hosts", name, "address"), f"{address}: {message}", remedy)
        for name, address in addresses.items()
        if is_loopback(address)
    ]


def own_command() -> list[str]:
    """The words that start ``agent-rl`` as this process was: the script beside this interpreter, or the module."""
    script = Path(sys.executable).with_name("agent-rl")
    return [str(script)] if script.exists() else [sys.executable, "-m", "actors.cli"]
