"""The messages between owner and warm interpreter: one datagram each, over a socket pair.

A call's code, input and output never pass through the interpreter, because every later fork would inherit them. They
are in files in memory, whose descriptors travel with the request: the call itself (code or JSON; the child overwrites
it with its report), standard output, standard error, and standard input if there is any.
"""

from __future__ import annotations

import _socket
import array
import math
import os
import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actors.sandbox.owner.interpreter import ExecutionLimits

PLAIN_CODE = b"\n"
"""The first byte of a file with code only, the usual case: to read JSON costs a child 0.2 ms."""
REQUEST = struct.Struct("!BQQdIQQQII")
"""Kind, id, session (0: none), wall seconds, CPU seconds, bytes of memory, output and files, open files, processes."""
DONE_SAID = b"."
"""From a child: the report is written."""
REPLY = struct.Struct("!BQBid")
"""Kind, id, verdict, exit status (or minus the signal), seconds. Then JSON (READY, FAILED) or a reason (NOT_RUN)."""
CALL, CANCEL, END_SESSION, NEXT_CELL = range(4)
"""CALL starts a process, also that of a new session. NEXT_CELL goes to a session's live process, or is not run."""
READY, FAILED, DONE = range(3)
SIX_FDS = socket.CMSG_LEN(24)
NO_VERDICT, TIMEOUT, CANCELLED, NOT_RUN, SESSION_GOES_ON, SESSION_LEFT_PROCESSES, CPU_TIMEOUT = range(7)
"""The interpreter's verdict on a call. Without a verdict, exit status and the child's report decide."""


def memory_file(data: bytes) -> int:
    """A descriptor to read ``data`` from. Unlike a pipe, it needs no writer. Raises OSError."""
    fd = os.memfd_create("call")
    written = 0
    try:
        while written < len(data):
            written += os.pwrite(fd, data[written:] if written else data, written)
    except OSError:
        os.close(fd)
        raise
    return fd


def send(link: _socket.socket, data: bytes, fds: list[int]) -> None:
    """Send a datagram with descriptors. Raises OSError."""
    link.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])


def receive(link: _socket.socket, size: int) -> tuple[bytes, list[int]]:
    """The next datagram and its descriptors, six at most; empty at the end of the link. Raises OSError."""
    data, rest, _, _ = link.recvmsg(size, SIX_FDS)
    fds: list[int] = []
    for _, _, sent in rest:
        fds += memoryview(sent).cast("i")
    return data, fds


def pack_request(kind: int, number: int, session: int = 0, limits: ExecutionLimits | None = None) -> bytes:
    """A request as bytes; only those that run something have ``limits``."""
    if limits is None:
        return REQUEST.pack(kind, number, session, 0.0, 0, 0, 0, 0, 0, 0)
    return REQUEST.pack(
        kind,
        number,
        session,
        limits.wall_seconds,
        max(1, math.ceil(limits.cpu_seconds)),
        limits.memory_bytes,
        limits.output_bytes,
        limits.file_bytes,
        limits.open_files,
        limits.processes,
    )
