"""A setting of the C library's allocator for large messages."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_KEPT = 128 << 20
_OWN_MAPPING_FROM = 16 << 20


def keep_freed_memory() -> None:
    """Let this process keep up to 128 MiB of freed memory for its next messages, where the C library is glibc.

    By default glibc returns the freed memory of a large message to the kernel. The next message of its size then costs
    a page fault for each 4 KiB: a third of the cost of a message of 1 MiB. A process's entry point calls this function.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _KEPT)
        mallopt(_M_MMAP_THRESHOLD, _OWN_MAPPING_FROM)
