"""The files of Unix sockets: room for a new one, and the removal of one's own."""

from __future__ import annotations

import os
import socket as sockets
import stat
from pathlib import Path

from transport.errors import BindError

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
