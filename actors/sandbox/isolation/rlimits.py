"""The resource limits of a child: the server computes them, the child only sets them.

Standard library only. To compute them, a child would pay for each page that it touches.
"""

from __future__ import annotations

import resource
import struct
from typing import NamedTuple

from actors.sandbox.isolation.kernel import direct

SESSION_CPU_SECONDS = 3600
"""CPU time of a whole session. Each of its cells also has the call's wall limit."""
REPORTING_BYTES = 64 << 20
"""Address space added to a child's limit after its code has ended, so that it can report that memory ran out."""
SET = (resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)
PENDING_SIGNALS = 64
"""Pending signals with data. The kernel also counts them for each slot and user, so calls share a total."""
NO_DUMP = 1
"""Bytes of a core dump: too few for a file. Only with this value the kernel starts no dump program of the host."""
HAND_OVER = struct.Struct("=?Q14Q")
"""Sent to a waiting child with the descriptors: session or not, bytes of output, ``struct rlimit`` of each in SET, then
address space and files again with the values for after the code's end."""
OUTPUT = slice(1, 9)
LIMITS = tuple((limit, slice(9 + 16 * at, 25 + 16 * at)) for at, limit in enumerate(SET))
MEMORY_WHILE_RUNNING, FILES_WHILE_RUNNING = LIMITS[1], LIMITS[2]
MEMORY_FOR_REPORT = (resource.RLIMIT_AS, slice(89, 105))
FILES_FOR_REPORT = (resource.RLIMIT_FSIZE, slice(105, 121))


class Bounds(NamedTuple):
    """The limits of a call, as in its request."""

    wall_seconds: float
    cpu_seconds: int
    memory_bytes: int
    output_bytes: int
    file_bytes: int
    open_files: int
    processes: int


def ceilings() -> tuple[int, ...]:
    """The hard limits of this process and its children, in the order of SET. Sets unlimited ones to a value first."""
    for limit, most in ((resource.RLIMIT_CORE, NO_DUMP), (resource.RLIMIT_MEMLOCK, 0), (resource.RLIMIT_MSGQUEUE, 0)):
        resource.setrlimit(limit, (min(most, resource.getrlimit(limit)[1] % (1 << 64)),) * 2)
    pending = min(PENDING_SIGNALS, resource.getrlimit(resource.RLIMIT_SIGPENDING)[1] % (1 << 64))
    resource.setrlimit(resource.RLIMIT_SIGPENDING, (pending, pending))
    return tuple(resource.getrlimit(limit)[1] % (1 << 64) for limit in SET)


def pack(
    bounds: Bounds, inherited_bytes: int, processes: int | None, most: tuple[int, ...], *, is_session: bool
) -> bytes:
    """The packed limits of a call. ``processes``: new total of the user's tasks, or None; ``most``: `ceilings`."""
    seconds = SESSION_CPU_SECONDS if is_session else bounds.cpu_seconds
    memory, files = inherited_bytes + bounds.memory_bytes, bounds.file_bytes
    tasks = most[-1] if processes is None else processes
    wanted = (
        (seconds, seconds + 1),
        (memory, memory + REPORTING_BYTES),
        (files, max(files, 8 * bounds.output_bytes)),
        (bounds.open_files, bounds.open_files),
        (tasks, tasks),
    )
    pairs = [(min(soft, top), min(hard, top)) for (soft, hard), top in zip(wanted, most, strict=True)]
    pairs += [(hard, hard) for _, hard in pairs[1:3]]
    return HAND_OVER.pack(is_session, bounds.output_bytes, *(value for pair in pairs for value in pair))


def unchanged(output_bytes: int) -> bytes:
    """Limits that keep the values of this process."""
    pairs = [resource.getrlimit(limit) for limit in (*SET, resource.RLIMIT_AS, resource.RLIMIT_FSIZE)]
    return HAND_OVER.pack(False, output_bytes, *(value % (1 << 64) for pair in pairs for value in pair))


def set_limit(limits: bytes, which: tuple[int, slice]) -> bool:
    """Set one of the received limits. False when the code has given up the right to do so."""
    limit, where = which
    return bool(direct.setrlimit(limit, limits[where]) == 0)
