"""The resource limits of a child: what they are is the server's to say, the child sets them as they come.

Standard library only. A child that has to compute them pays for each page that the numbers are on.
"""

from __future__ import annotations

import resource
import struct
from typing import NamedTuple

from actors.sandbox.isolation.kernel import direct

SESSION_CPU_SECONDS = 3600
"""CPU time of a whole session; each of its cells has the call's wall limit."""
REPORTING_BYTES = 64 << 20
"""Address space a child gets on top of its limit once its code has ended, so that it can report having run out."""
SET = (
    resource.RLIMIT_CPU,
    resource.RLIMIT_AS,
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_NOFILE,
    resource.RLIMIT_NPROC,
)
PENDING_SIGNALS = 64
"""Signals with a message that may wait to be taken. The kernel counts them for the slot and for the user too, whose calls share a total."""
NO_DUMP = 1
"""Bytes of a core dump: too few for a file, and the one value at which the kernel starts no program of the host's that takes the dump."""
HAND_OVER = struct.Struct("=?Q14Q")
"""To a waiting child, with the call's descriptors: whether it is a session, bytes of output, and ``struct rlimit`` of each in SET; then
of address space and files once more, as they are when the code has ended."""
OUTPUT = slice(1, 9)
LIMITS = tuple((limit, slice(9 + 16 * at, 25 + 16 * at)) for at, limit in enumerate(SET))
MEMORY_WHILE_RUNNING, FILES_WHILE_RUNNING = LIMITS[1], LIMITS[2]
MEMORY_FOR_REPORT = (resource.RLIMIT_AS, slice(89, 105))
FILES_FOR_REPORT = (resource.RLIMIT_FSIZE, slice(105, 121))


class Bounds(NamedTuple):
    """The limits of a call as a request carries them."""

    wall_seconds: float
    cpu_seconds: int
    memory_bytes: int
    output_bytes: int
    file_bytes: int
    open_files: int
    processes: int


def ceilings() -> tuple[int, ...]:
    """What this process and its children may not exceed, as in SET; and set what these have none of, once for all of them."""
    for limit, most in ((resource.RLIMIT_CORE, NO_DUMP), (resource.RLIMIT_MEMLOCK, 0), (resource.RLIMIT_MSGQUEUE, 0)):
        resource.setrlimit(limit, (min(most, resource.getrlimit(limit)[1] % (1 << 64)),) * 2)
    pending = min(PENDING_SIGNALS, resource.getrlimit(resource.RLIMIT_SIGPENDING)[1] % (1 << 64))
    resource.setrlimit(resource.RLIMIT_SIGPENDING, (pending, pending))
    return tuple(resource.getrlimit(limit)[1] % (1 << 64) for limit in SET)


def pack(
    bounds: Bounds, inherited_bytes: int, processes: int | None, most: tuple[int, ...], *, is_session: bool
) -> bytes:
    """The limits of a call. ``processes`` is the user's new total of tasks, None where it can't bind; ``most`` is of ``ceilings``."""
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
    """Limits that leave this process' own as they are."""
    pairs = [resource.getrlimit(limit) for limit in (*SET, resource.RLIMIT_AS, resource.RLIMIT_FSIZE)]
    return HAND_OVER.pack(False, output_bytes, *(value % (1 << 64) for pair in pairs for value in pair))


def set_limit(limits: bytes, which: tuple[int, slice]) -> bool:
    """Set one of the limits handed over, of this process. False where the code has given up the right to it."""
    limit, where = which
    return bool(direct.setrlimit(limit, limits[where]) == 0)
