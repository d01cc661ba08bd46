"""What one call may use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExecutionLimits:
    """What one call may use. Beyond a limit it ends as ``timeout`` (wall, CPU), ``memory_limit`` or ``output_limit``.

    ``cpu_seconds`` is rounded up to whole seconds. ``memory_bytes`` is address space on top of the warm interpreter's, for
    each process. ``output_bytes`` holds for stdout, stderr and the value each; ``file_bytes`` for each file, also
    those that catch the output. ``processes`` does not bind where there are no namespaces and the user is root.
    """

    wall_seconds: float = 4.0
    cpu_seconds: float = 4.0
    memory_bytes: int = 512 << 20
    output_bytes: int = 256 << 10
    file_bytes: int = 16 << 20
    open_files: int = 64
    processes: int = 32
