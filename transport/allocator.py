"""One setting of the C library's allocator, which large messages need."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_KEPT = 128 << 20
_OWN_MAPPING_FROM = 16 << 20


def keep_freed_memory() -> None:
    """Let this process keep up to 128 MiB of freed memory for its next messages, where the C library is glibc.

    By default glibc gives the memory of a large message back to the kernel when it is freed, and the next one of its size
    costs a page fault for each 4 KiB: a third of what a message of 1 MiB costs. For a process's entry point to call.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _KEPT)
        mallopt(_M_MMAP_THRESHOLD, _OWN_MAPPING_FROM)
