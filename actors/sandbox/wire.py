"""What owner and warm interpreter say to each other, one datagram each, over a socket pair.

A call's code, input and output never pass through the interpreter, or every later fork of it would inherit them: they are in
files in memory, whose descriptors travel with the request. A request carries those of the call itself (code, or JSON; the child
writes its report over it), standard output, standard error, and standard input where there is any.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actors.sandbox.limits import ExecutionLimits

PLAIN_CODE = b"\n"
"""What a file begins with that holds code and nothing else, as most do: reading JSON costs a child a fifth of a millisecond."""
REQUEST = struct.Struct("!BQQdIQQQII")
"""Kind, id, session (0: none), wall seconds, CPU seconds, bytes of memory, output and files, open files, processes."""
REPLY = struct.Struct("!BQBid")
"""Kind, id, verdict, exit status (minus the signal), seconds. READY and FAILED are followed by JSON, a call that was not run by why."""
CALL, CANCEL, END_SESSION, NEXT_CELL = range(4)
"""CALL starts a process, a session's first one too; NEXT_CELL goes to a session's live process, or is not run."""
READY, FAILED, DONE = range(3)
NO_VERDICT, TIMEOUT, CANCELLED, NOT_RUN, SESSION_GOES_ON, SESSION_LEFT_PROCESSES, CPU_TIMEOUT = range(7)
"""What the interpreter decided about a call; without a verdict the exit status and the child's report do."""


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
