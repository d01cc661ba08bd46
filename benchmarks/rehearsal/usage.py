"""Processor time and memory of a run's actors, read from /proc.

::

    supervisor --> actor --> its own children (interpreters of the sandbox): counted with the actor
                         --> ranks of the learner from 1 on: counted apart
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
RANK = b"actors.learner.follower"
"""In the command line of a rank's process."""


@dataclass(frozen=True)
class Process:
    """One process. Seconds include those of its children that have ended and were waited for."""

    pid: int
    parent: int
    cpu: float
    private: int
    """Resident bytes that belong to no file: the heap, and shared memory."""
    rank: bool = False


@dataclass
class Usage:
    """What the processes of one actor use."""

    cpu: float = 0.0
    private: int = 0
    pid: int = 0
    """Of the actor's own process."""


def read_processes() -> dict[int, Process]:
    """All processes of this machine that can be read."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, ValueError):
                pid = int(entry.name)
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                status = (entry / "status").read_text()
                rank = RANK in (entry / "cmdline").read_bytes()
                found[pid] = Process(pid, int(fields[1]), sum(map(int, fields[11:15])) / TICKS, _private(status), rank)
    return found


def _private(status: str) -> int:
    return 1024 * sum(
        int(line.split()[1]) for line in status.splitlines() if line.startswith(("RssAnon:", "RssShmem:"))
    )


def usage(processes: Mapping[int, Process], actors: Mapping[str, int]) -> dict[str, Usage]:
    """By actor, and by rank as in "learner.0 rank 1". ``actors``: the process of each; those that ended have none."""
    children: dict[int, list[Process]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)
    found: dict[str, Usage] = {}
    for actor, pid in actors.items():
        heads = [(actor, processes[pid])] if pid in processes else []
        for name, head in heads:  # ranks are appended
            family = [head]
            for process in family:
                below = sorted(children.get(process.pid, []), key=lambda each: each.pid)
                family += [each for each in below if not each.rank]
                ranks = [each for each in below if each.rank]
                heads += [(f"{actor} rank {number}", each) for number, each in enumerate(ranks, 1)]
            found[name] = Usage(sum(each.cpu for each in family), sum(each.private for each in family), head.pid)
    return found


@dataclass
class Seen:
    """What was seen of an actor: seconds now, memory when the first rollout began, and the most since."""

    cpu_before: float
    private_before: int
    pid: int
    cpu: float
    private_most: int = 0

    @property
    def seconds(self) -> float:
        """Of processor time since then."""
        return self.cpu - self.cpu_before


@dataclass
class Watch:
    """Follows the actors of a run from a moment on."""

    actors: dict[str, Seen] = field(default_factory=dict)

    def begin(self, now: Mapping[str, Usage]) -> None:
        """From now on everything counts."""
        self.actors = {name: Seen(each.cpu, each.private, each.pid, each.cpu) for name, each in now.items()}

    def look(self, now: Mapping[str, Usage]) -> None:
        """Take what the actors use now. A new process of an actor counts from nothing.

        Of a process that ends, less may be seen than before, since its children are gone.
        """
        for name, each in now.items():
            seen = self.actors.setdefault(name, Seen(0.0, each.private, each.pid, 0.0))
            if each.pid != seen.pid:
                seen.cpu_before -= seen.cpu
                seen.pid, seen.cpu = each.pid, 0.0
            seen.cpu = max(seen.cpu, each.cpu)
            seen.private_most = max(seen.private_most, each.private)
