"""Control groups for all calls of a sandbox together, where the host lets us make any: memory, number of processes, processor time.

::

    the executor's own group (its processes are in agent-rl.rest below it, with version 2)
      `- agent-rl.groups-x: a sandbox's warm interpreters, which join it before anything else, and so all of their children
           |- interpreters: the processor time of those who serve calls
           `- calls: the processor time of all calls
                `- call-0, call-1, ...: that of one call at a time

Memory and processes are limited in one group for a sandbox, not one per call: to move a process costs 8 % of what a call costs, to be born
in a group nothing. So where the total is exceeded the kernel ends the largest process of any call, and nothing else of the host.

Processor time is shared in a group for each call, so that a call gets no more for having many processes, threads or sessions. These groups are
made with their interpreter. A child with a single thread moves itself, which is the one move that takes no lock of all forks of the host. Interpreters have
one group beside them, not many: however calls sleep and wake each other, what decides when an interpreter runs is how much all of them have had.

Each group has a link in a claimed directory before it is made: whoever sweeps that (``agent_rl.files.leftovers``) removes it too.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import trio

from agent_rl.files.leftovers import Claim, claimed_directory, remove_group, remove_tree

Wanted: TypeAlias = Literal["host", "required", "off"]
"""What is configured. ``host``: those the host allows. ``required``: all, or the sandbox refuses to start. ``off``: none."""
Controller: TypeAlias = Literal["memory", "pids", "cpu"]
CONTROLLERS: tuple[Controller, ...] = ("memory", "pids", "cpu")
REST = "agent-rl.rest"
"""Where processes go that were in a version 2 group which is to have groups below it: the kernel allows only one of the two."""
MOVING_ROUNDS = 10
"""How often a group is looked through for processes, of which more may be forked meanwhile."""
LIMITS: dict[tuple[int, Controller], tuple[str, ...]] = {
    (1, "memory"): ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
    (2, "memory"): ("memory.max",),
    (1, "pids"): ("pids.max",),
    (2, "pids"): ("pids.max",),
    (1, "cpu"): ("cpu.shares",),
    (2, "cpu"): ("cpu.weight",),
}
"""The files of a limit, by version and controller; the first must be there. The second counts memory and swap together."""
SWAP = "memory.swap.max"
"""Version 2 counts swap by itself: there is to be none."""
WEIGHT = 100
"""The weight of a group of which nothing is said, and so of each call; in version 1 it is called 1,024 shares."""
INTERPRETERS, CALLS = "interpreters", "calls"
INTERPRETERS_WEIGHT = 800
"""Calls wait for those who fork, watch and end them, but are not to stand still while interpreters warm up: all calls have 100."""
ALONE = {1: "tasks", 2: "cgroup.threads"}
"""The file in which a task writes itself down, and not its process."""
KILLS = {1: "memory.oom_control", 2: "memory.events"}
"""Where the kernel counts the processes that it has ended for want of memory in the group."""


class ControlGroupsError(Exception):
    """Control groups are required and can't be had; the text names what is missing and what would accept less."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A mounted hierarchy: its version, the controllers its mount names (version 1), our own group, and the uppermost that is seen."""

    version: int
    controllers: tuple[str, ...]
    own: Path
    top: Path


def hierarchies(cgroup: str, mountinfo: str) -> list[Hierarchy]:
    """Those a process is in and can see, of ``/proc/self/cgroup`` and ``/proc/self/mountinfo``: pure.

    A container's mount may show a part of a hierarchy only; a group outside of it can't be used.
    """
    places = {}
    for line in cgroup.splitlines():
        _, names, place = line.split(":", 2)
        places[names] = place
    found = []
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
                found.append(Hierarchy(1 if kind == "cgroup" else 2, controllers, own, Path(point)))
    return found


def _mounted(names: str, kind: str, options: str) -> bool:
    """Whether the controllers of a line in /proc/self/cgroup are those of a mount."""
    return not names if kind == "cgroup2" else bool(names) and set(names.split(",")) <= set(options.split(","))


def half_of_memory(own: Path, top: Path) -> int:
    """Half of what the machine has, or of what the groups around us allow. Bytes."""
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    while own.is_relative_to(top):
        for name in ("memory.limit_in_bytes", "memory.max"):
            with contextlib.suppress(FileNotFoundError, ValueError):  # "max" is no limit
                sizes.append(int((own / name).read_text()))
        own = own.parent
    return min(sizes) // 2


@dataclass(frozen=True, slots=True)
class Group:
    """A group of ours, and the limit in force: bytes, processes, or the weight against other groups (100: as much as each of them)."""

    controller: Controller
    version: int
    directory: Path
    limit: int


class ControlGroups:
    """The groups of one sandbox. ``lacking`` says of each controller that could not be had why."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self.lacking: list[str] = []
        self._held: tuple[Path, Claim] | None = None
        self._made: list[Path] = []
        self._kills, self._seen = 0, 0.0
        self._shared: Group | None = None
        """The group that is divided among calls."""
        self._calls_made = 0
        self._free: list[Path] = []

    def make(self, memory_bytes: int | None, processes: int, weight: int = WEIGHT) -> None:
        """Make what the host allows. ``memory_bytes`` of None is half of the memory there is."""
        try:
            found = hierarchies(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
            self._held = claimed_directory("groups")
        except OSError as error:
            self.lacking.append(str(error))
            return
        for controller in CONTROLLERS:
            try:
                hierarchy = next((one for one in found if _has(one, controller)), None)
                if hierarchy is None:
                    self.lacking.append(f"{controller}: no mounted hierarchy has this controller")
                    continue
                limit = weight if controller == "cpu" else processes
                if controller == "memory":
                    limit = memory_bytes or half_of_memory(hierarchy.own, hierarchy.top)
                self._make_one(hierarchy, controller, limit, self._held[0])
            except OSError as error:
                self.lacking.append(f"{controller}: {error}")

    def _make_one(self, hierarchy: Hierarchy, controller: Controller, limit: int, links: Path) -> None:
        parent = _parent(hierarchy, controller) if hierarchy.version == 2 else hierarchy.own
        directory = parent / links.name
        if directory not in self._made:
            (links / controller).symlink_to(directory)
            directory.mkdir()
            self._made.append(directory)
        first, *others = LIMITS[hierarchy.version, controller]
        (directory / first).write_text(str(limit if controller != "cpu" else in_units(limit, hierarchy.version)))
        for name in (*others, *([SWAP] if controller == "memory" else [])):
            if (directory / name).exists():  # neither where the kernel does not count swap
                (directory / name).write_text("0" if name == SWAP else str(limit))
        self.groups.append(Group(controller, hierarchy.version, directory, limit))
        if controller == "cpu":
            self._divide(self.groups[-1])

    def _divide(self, group: Group) -> None:
        """Make the group of those who serve calls, and a first one for a call. In version 2 they divide nothing but the processor."""
        interpreters, calls = group.directory / INTERPRETERS, group.directory / CALLS
        for directory in (interpreters, calls):
            _make_part(directory, group.version)
        if group.version == 2:
            for directory in (group.directory, calls):
                (directory / "cgroup.subtree_control").write_text("+cpu")
        share = LIMITS[group.version, "cpu"][0]
        (interpreters / share).write_text(str(in_units(INTERPRETERS_WEIGHT, group.version)))
        self._shared = group
        self.give_back(self.take_calls(1))

    def take_calls(self, count: int) -> list[Path]:
        """Groups for so many calls at once, each with the weight of one; none where the processor is not divided. Raises OSError."""
        if self._shared is None:
            return []
        while len(self._free) < count:
            directory = self._shared.directory / CALLS / f"call-{self._calls_made}"
            _make_part(directory, self._shared.version)
            self._calls_made += 1
            self._free.append(directory)
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    def give_back(self, calls: list[Path]) -> None:
        """Groups that were taken, once nothing is in them."""
        self._free += calls

    @property
    def alone(self) -> str:
        """The name of the file in which a child writes itself down in a call's group."""
        return ALONE[self._shared.version] if self._shared is not None else ""

    @property
    def to_join(self) -> list[str]:
        """The files in which an interpreter writes itself down, one after the other."""
        shared = self._shared
        directories = dict.fromkeys(
            group.directory for group in self.groups if group is not shared or group.version == 2
        )
        files = [path / "cgroup.procs" for path in directories]
        if shared is not None:  # in version 2 from the group above, where memory and processes are counted
            files.append(shared.directory / INTERPRETERS / self.alone)
        return list(map(str, files))

    @property
    def limits(self) -> dict[str, str]:
        """In words, by controller."""
        words = {"memory": lambda limit: f"{limit >> 20} MiB", "pids": "{} tasks".format, "cpu": "weight {}".format}
        return {group.controller: words[group.controller](group.limit) for group in self.groups}

    @property
    def memory_bytes(self) -> int | None:
        """The limit of memory; None where there is none."""
        return next((group.limit for group in self.groups if group.controller == "memory"), None)

    def ended_one_since(self, since: float, now: float) -> bool:
        """Whether the kernel has ended a process for want of memory after ``since``; both are times of one clock.

        The count is read when somebody asks, so what happened unasked counts as happening now.
        """
        for group in self.groups:
            if group.controller == "memory":
                lines = (group.directory / KILLS[group.version]).read_text().splitlines()
                kills = next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
                if kills > self._kills:
                    self._kills, self._seen = kills, now
        return self._seen > since

    def remove(self) -> None:
        """Remove them, ending what is still in them; what can't be removed is left to the next sweep."""
        if self._held is not None:
            directory, claim = self._held
            removed = [remove_group(made) for made in self._made]
            if all(removed):
                remove_tree(directory)
            claim.release()


@contextlib.asynccontextmanager
async def control_groups(
    wanted: Wanted, memory_bytes: int | None, processes: int, weight: int = WEIGHT
) -> AsyncIterator[ControlGroups]:
    """Groups that are there for as long as the context is. Raises ControlGroupsError."""
    groups = ControlGroups()
    try:
        if wanted != "off":
            await trio.to_thread.run_sync(groups.make, memory_bytes, processes, weight)
        if wanted == "required" and groups.lacking:
            raise ControlGroupsError(
                f'control_groups = "required" can\'t be had on this host: {"; ".join(groups.lacking)}. Give the executor a '
                "group that it may divide (systemd: Delegate=yes; in a container: a writable /sys/fs/cgroup), or accept less "
                'with control_groups = "host" or "off" in its settings.'
            )
        yield groups
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(groups.remove)


def _make_part(directory: Path, version: int) -> None:
    """A group that divides the processor and nothing else: in version 2 a threaded one."""
    directory.mkdir()
    if version == 2:
        (directory / "cgroup.type").write_text("threaded")


def in_units(weight: int, version: int) -> int:
    """A weight as the file of a group of that version has it."""
    return weight if version == 2 else max(2, weight * 1024 // WEIGHT)


def _has(hierarchy: Hierarchy, controller: Controller) -> bool:
    if hierarchy.version == 1:
        return controller in hierarchy.controllers
    own = hierarchy.own.parent if hierarchy.own.name == REST else hierarchy.own
    return controller in (own / "cgroup.controllers").read_text().split()


def _parent(hierarchy: Hierarchy, controller: Controller) -> Path:
    """The version 2 group in which ours are made: our own, once its processes are in one below it, so that all limits around us hold.

    Raises OSError where we may not.
    """
    own = hierarchy.own
    if own.name == REST:  # an executor before us has done it
        parent = own.parent
    else:
        parent = own
        for name in ("", "cgroup.procs", "cgroup.subtree_control"):
            if not os.access(own / name, os.W_OK):
                raise PermissionError(f"{own / name} is not writable")
        if not (own == hierarchy.top or os.geteuid() or _is_delegated(own)):
            raise PermissionError(f"{own} is not ours to divide: it is not marked as delegated")
        if (own / "cgroup.type").exists():  # not the root of all, which may have both
            _set_aside(own)
    (parent / "cgroup.subtree_control").write_text(f"+{controller}")
    return parent


def _is_delegated(own: Path) -> bool:
    """Whether systemd has marked a group as its processes' own affair. Root may write to any, also those that systemd keeps in order."""
    for name in ("trusted.delegate", "user.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(own, name) == b"1":
                return True
    return False


def _set_aside(own: Path) -> None:
    rest = own / REST
    rest.mkdir(exist_ok=True)
    for _ in range(MOVING_ROUNDS):
        pids = [pid for pid in (own / "cgroup.procs").read_text().split() if pid != "0"]  # 0: of another PID namespace
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                (rest / "cgroup.procs").write_text(pid)
        if not pids:
            return
