"""Processor seconds of processes that are no actors of their own, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def seconds_with_children(pid: int) -> float:
    """Of a process, its children, and those that they have reaped; 0 after its end."""
    try:
        return _seconds(pid) + seconds_of_children(pid)
    except (FileNotFoundError, ProcessLookupError):
        return 0.0


def seconds_of_children(pid: int) -> float:
    """Of the live children of a process, and of those that they have reaped. A child that ends meanwhile has 0."""
    return seconds_of(children_of(pid))


def children_of(pid: int) -> list[int]:
    """The live children of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, (task / "children").read_text().split())
    return found


def seconds_of(pids: Iterable[int]) -> float:
    """Of these processes, and of those that they have reaped; 0 of one that has ended."""
    seconds = 0.0
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            seconds += _seconds(pid)
    return seconds


def _seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # utime, stime, and those of reaped children
