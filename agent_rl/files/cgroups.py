"""The control groups that a process is in, and the memory that they leave it."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A mounted hierarchy: version, controllers of the mount (version 1), own group, uppermost visible group."""

    version: int
    controllers: tuple[str, ...]
    own: Path
    top: Path


def hierarchies(cgroup: str, mountinfo: str) -> list[Hierarchy]:
    """The visible hierarchies of a process, from ``/proc/self/cgroup`` and ``/proc/self/mountinfo``. Pure.

    A container's mount may show only a part of a hierarchy. Groups outside this part are not usable.
    """
    places = {}
    for line in cgroup.splitlines():
        _, names, place = line.split(":", 2)
        places[names] = place
    mounts = []
    for line in mountinfo.splitlines():
        mount, _, source = line.partition(" - ")
        fields, (kind, _, options) = mount.split(), source.split(" ", 2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        root, point = (re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), field) for field in fields[3:5])
        for names, place in places.items():
            if _mounted(names, kind, options) and Path(place).is_relative_to(root):
                controllers = tuple(names.split(",")) if kind == "cgroup" else ()
                own = Path(point, Path(place).relative_to(root))
                mounts.append(Hierarchy(1 if kind == "cgroup" else 2, controllers, own, Path(point)))
    return mounts


def _mounted(names: str, kind: str, options: str) -> bool:
    """Whether a mount holds the controllers of a line of /proc/self/cgroup."""
    return not names if kind == "cgroup2" else bool(names) and set(names.split(",")) <= set(options.split(","))


def memory_around(hierarchy: Hierarchy) -> int:
    """The memory of the machine, or the least that the own group and those around it may have, in bytes."""
    own = hierarchy.own
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    while own.is_relative_to(hierarchy.top):
        for name in ("memory.limit_in_bytes", "memory.max"):
            with contextlib.suppress(FileNotFoundError, ValueError):  # "max" means no limit
                sizes.append(int((own / name).read_text()))
        own = own.parent
    return min(sizes)


def memory_here(proc: Path = Path("/proc")) -> int:
    """The memory that this process may have with all others of its groups, in bytes."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with contextlib.suppress(OSError):
        places = (proc / "self/cgroup").read_text(), (proc / "self/mountinfo").read_text()
        found += map(memory_around, hierarchies(*places))
    return min(found)
