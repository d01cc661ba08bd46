"""Numeric addresses of hosts: ZeroMQ binds numbers and interfaces, not host names."""

from __future__ import annotations

import contextlib
import ipaddress
import socket as sockets
from collections.abc import Collection

import trio

from transport.errors import BindError

_RESOLVE_SECONDS = 10.0
"""The most that the look-up of a host's name may take."""


def process_at(peer_address: str) -> str:
    """What ZeroMQ's property Peer-Address says: an address, or on a Unix socket ``localhost:user:group:process``."""
    parts = peer_address.split(":")
    if parts[0] == "localhost" and len(parts) == 4:
        return f"process {parts[3]}"
    return f"a process at {peer_address.removeprefix('::ffff:')}"


def tcp_hosts(addresses: Collection[str]) -> set[str]:
    """The hosts of the addresses on TCP."""
    parts = (address.partition("://") for address in addresses)
    return {rest.rpartition(":")[0].strip("[]") for scheme, _, rest in parts if scheme == "tcp"}


async def numeric_hosts(addresses: Collection[str]) -> set[str]:
    """The numeric addresses of all hosts on TCP, without names that this machine does not know."""
    hosts: set[str] = set()
    for name in tcp_hosts(addresses):
        with contextlib.suppress(OSError), trio.move_on_after(_RESOLVE_SECONDS):
            places = await trio.socket.getaddrinfo(name, None, type=sockets.SOCK_STREAM)
            hosts.update(str(place[0]).partition("%")[0] for *_, place in places)
    return hosts


async def numeric(address: str) -> str:
    """A tcp address with the number of its host. Raises BindError for a name that is unknown."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        try:
            with trio.fail_after(_RESOLVE_SECONDS):
                places = await trio.socket.getaddrinfo(host, None, type=sockets.SOCK_STREAM)
        except (OSError, trio.TooSlowError) as error:
            reason = str(error) or f"no answer within {_RESOLVE_SECONDS:g} s"
            raise BindError(f"{address}: the name {host} is unknown ({reason}): use an IP address") from error
        number = str(places[0][4][0])
        return f"tcp://[{number}]:{port}" if ":" in number else f"tcp://{number}:{port}"
    return address
