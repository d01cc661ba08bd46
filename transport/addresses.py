"""Where nodes listen: numeric addresses of hosts, since ZeroMQ binds no names, and the files of Unix sockets."""

from __future__ import annotations

import ipaddress
import os
import socket as sockets
import stat
from pathlib import Path

import trio

from transport.errors import BindError

_RESOLVE_SECONDS = 10.0
"""The most that the look-up of a host's name may take."""


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


_UNIX_PATH_MAX = 107


def remove(path: Path) -> None:
    """Remove the socket file of this process."""
    path.unlink(missing_ok=True)


def make_way(path: Path, address: str) -> None:
    """Remove the socket file of a killed process. Raises BindError when the path cannot be used."""
    if len(os.fsencode(path)) > _UNIX_PATH_MAX:
        raise BindError(f"{address}: a socket's path may have {_UNIX_PATH_MAX} bytes: choose a shorter run directory")
    if not path.parent.is_dir():
        raise BindError(f"{address}: {path.parent} is not a directory: create it first")
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise BindError(f"{address}: {path} is not a socket: remove it")
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise BindError(f"{address}: another process listens there: stop it, or choose another run directory")
