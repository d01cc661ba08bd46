"""The heap of a process that computes with a model on a processor. No torch.

A micro-batch takes blocks of some MiB from the heap, gigabytes in all, and gives them back. By default glibc has a heap
(an arena) for each thread. The learner's work runs in one thread after another, so each of their heaps would keep the
memory of a micro-batch. Mappings of their own for such blocks would be no remedy: the kernel clears their pages each
time, which doubles the processor time of a small layer. So all threads have one heap, which keeps what is freed. Blocks
of mixed sizes leave holes in it, more with each step, so what is free goes back to the kernel after a step that was not
short.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h
_NEVER = -1
_OWN_MAPPING_FROM = 16 << 20
GIVE_BACK_SECONDS = 2.0
"""Of 135M weights a step takes 6 s and giving back 0.15 s. Every fourth step is too seldom: 200 steps of mixed lengths
then held 1.4 times the plan, as without."""


def share_one_heap() -> None:
    """Let all threads of this process have one heap that keeps what is freed, where the C library is glibc.

    A process's entry point calls this function, before there are other threads.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_TRIM_THRESHOLD, _NEVER)
        mallopt(_M_MMAP_THRESHOLD, _OWN_MAPPING_FROM)


def give_heap_back() -> None:
    """Give the heap's freed memory back to the kernel, where the C library is glibc."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
