"""The limits of one call."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExecutionLimits:
    """The limits of one call. Beyond a limit it ends as ``timeout`` (wall, CPU), ``memory_limit`` or ``output_limit``.

    ``cpu_seconds`` is rounded up to whole seconds. ``memory_bytes`` is address space of each process, on top of the
    warm interpreter's. ``output_bytes`` holds for stdout, stderr and the value separately. ``file_bytes`` holds for
    each file, also for those that catch the output. ``processes`` has no effect without namespaces when the user is
    root.
    """

    wall_seconds: float = 4.0
    cpu_seconds: float = 4.0
    memory_bytes: int = 512 << 20
    output_bytes: int = 256 << 10
    file_bytes: int = 16 << 20
    open_files: int = 64
    processes: int = 32
