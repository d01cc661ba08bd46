"""The memory that is free on this machine, and that a group of processes has; None where there is no /proc."""

from __future__ import annotations

import os
from pathlib import Path


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """The bytes that new processes can have without swapping."""
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    return found[0] if found else None


def group_bytes(leader: int, processes: Path = Path("/proc")) -> int | None:
    """The resident bytes of a session's processes; pages that several of them share count for each."""
    total = None
    for entry in processes.iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            if int(fields[3]) == leader:
                total = (total or 0) + int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    return total
