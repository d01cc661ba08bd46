"""Control groups for all calls of a sandbox, where the host permits them: memory, number of processes, processor time.

::

    the executor's own group (its processes are in agent-rl.rest below it, with version 2)
      `- agent-rl.groups-x: a sandbox's warm interpreters, which join it first, and so all of their children
           `- interpreters: the processor time of the processes that serve calls
           `- calls: the processor time of all calls
                `- call-0, call-1, ...: that of one call at a time

One group limits the memory and the processes of all calls of a sandbox. A group for each call would need a move into
the group, which costs 8 % of a call; a process born in a group costs nothing. When the limit is exceeded, the kernel
ends the largest process of any call, and no other process of the host.

Processor time has a group for each call, so that many processes, threads or sessions get a call no more time. An
interpreter makes these groups when it starts. A child with a single thread moves itself: this is the only move that
takes no lock of all forks of the host. All interpreters share one group beside the calls. So only their total use
decides when an interpreter runs, however calls sleep and wake each other.

Each group has a link in a claimed directory before it is made. The sweep of the directory
(``agent_rl.files.leftovers``) then removes the group too.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import trio

from agent_rl.files.cgroups import Hierarchy, hierarchies, memory_around
from agent_rl.files.leftovers import Claim, claimed_directory, remove_group, remove_tree

Wanted: TypeAlias = Literal["host", "required", "off"]
"""The setting. ``host``: use what the host permits. ``required``: refuse to start if one is missing. ``off``: none."""
Controller: TypeAlias = Literal["memory", "pids", "cpu"]
CONTROLLERS: tuple[Controller, ...] = ("memory", "pids", "cpu")
REST = "agent-rl.rest"
"""A version 2 group holds processes or divided groups, not both. The executor's processes move to this group."""
MOVING_ROUNDS = 10
"""How often a group is searched for processes, which may fork meanwhile."""
LIMITS: dict[tuple[int, Controller], tuple[str, ...]] = {
    (1, "memory"): ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
    (2, "memory"): ("memory.max",),
    (1, "pids"): ("pids.max",),
    (2, "pids"): ("pids.max",),
    (1, "cpu"): ("cpu.shares",),
    (2, "cpu"): ("cpu.weight",),
}
"""The files of a limit, by version and controller. The first must exist. The second limits memory and swap together."""
SWAP = "memory.swap.max"
"""Version 2 limits swap separately: no swap."""
WEIGHT = 100
"""The default weight of a group, and the weight of each call. Version 1 calls it 1,024 shares."""
INTERPRETERS, CALLS = "interpreters", "calls"
INTERPRETERS_WEIGHT = 800
"""Calls wait for interpreters, so these get more. Calls (100 together) must still run while interpreters warm up."""
ALONE = {1: "tasks", 2: "cgroup.threads"}
"""The file with which a task moves itself without its process."""
KILLS = {1: "memory.oom_control", 2: "memory.events"}
"""The file in which the kernel counts processes that it ended for lack of memory in the group."""
OWN_KILLS = {1: "memory.oom_control", 2: "memory.events.local"}
"""The same without those of the groups below."""
PEAKS = {1: "memory.max_usage_in_bytes", 2: "memory.peak"}
"""The most memory that the group has had."""
NEARLY = 0.9
"""The kernel charges memory in batches: a group that has met its limit may have had a little less."""


class ControlGroupsError(Exception):
    """Required control groups are not available. The message says what is missing and which setting accepts less."""


def memory_kills(proc: Path = Path("/proc")) -> int:
    """How many processes of the own groups the kernel has ended so far for lack of memory, those below not counted.

    An executor may move all processes of the own group to a group below, so both count. Where no group counts, all
    processes of the machine do.
    """
    counts = []
    with contextlib.suppress(OSError):
        for hierarchy in hierarchies((proc / "self/cgroup").read_text(), (proc / "self/mountinfo").read_text()):
            own = hierarchy.own
            for group in (own, own.parent) if own.name == REST else (own,):
                with contextlib.suppress(FileNotFoundError):  # it has no controller of memory
                    counts.append(_kills((group / OWN_KILLS[hierarchy.version]).read_text()))
    with contextlib.suppress(OSError):
        return sum(counts) if counts else _kills((proc / "vmstat").read_text())
    return 0


def _kills(text: str) -> int:
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")), 0)


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """A group made here, and its limit: bytes, processes, or the weight against other groups (100: an equal share)."""

    controller: Controller
    version: int
    directory: Path
    limit: int


class ControlGroups:
    """The groups of one sandbox. ``lacking`` says for each unavailable controller why it is unavailable."""

    def __init__(self) -> None:
        self.groups: list[ControlGroup] = []
        self.lacking: list[str] = []
        self._held: tuple[Path, Claim] | None = None
        self._made: list[Path] = []
        self._kills, self._seen = 0, 0.0
        self._shared: ControlGroup | None = None
        """The group that is divided among calls."""
        self._calls_made = 0
        self._free: list[Path] = []
        self._left: list[Path] = []
        self._opened = self._open = self._most_open = 0

    def make(self, memory_bytes: int | None, processes: int, weight: int = WEIGHT, *, programs: bool = False) -> None:
        """Make the groups that the host permits. ``memory_bytes`` None: half of the memory.

        ``programs``: they are for `open`, and processor time is not divided among calls.
        """
        try:
            mounts = hierarchies(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
            self._held = claimed_directory("groups")
        except OSError as error:
            self.lacking.append(str(error))
            return
        for controller in CONTROLLERS:
            try:
                hierarchy = next((one for one in mounts if _has(one, controller)), None)
                if hierarchy is None:
                    self.lacking.append(f"{controller}: no mounted hierarchy has this controller")
                    continue
                limit = weight if controller == "cpu" else processes
                if controller == "memory":
                    limit = memory_bytes or memory_around(hierarchy) // 2
                self._make_one(hierarchy, controller, limit, self._held[0], programs=programs)
            except OSError as error:
                self.lacking.append(f"{controller}: {error}")

    def _make_one(
        self, hierarchy: Hierarchy, controller: Controller, limit: int, links: Path, *, programs: bool = False
    ) -> None:
        parent = _parent(hierarchy, controller) if hierarchy.version == 2 else hierarchy.own
        directory = parent / links.name
        if directory not in self._made:
            (links / controller).symlink_to(directory)
            directory.mkdir()
            self._made.append(directory)
        group = ControlGroup(controller, hierarchy.version, directory, limit)
        _set_limit(group, directory, limit)
        self.groups.append(group)
        if programs and hierarchy.version == 2:
            (directory / "cgroup.subtree_control").write_text(f"+{controller}")
        elif controller == "cpu" and not programs:
            self._divide(group)

    def _divide(self, group: ControlGroup) -> None:
        """Make the interpreters' group and the first group of a call. In version 2 both divide only processor time."""
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
        """Groups of equal weight for ``count`` calls; empty if processor time is not divided. Raises OSError."""
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
        """Return groups that are empty again."""
        self._free += calls

    def open(self, memory_bytes: int) -> list[list[Path]]:
        """Groups of one program, and of its warden and check apart from it. ``memory_bytes``: of each; 0: no limit.

        Raises OSError.
        """
        self._opened, self._open = self._opened + 1, self._open + 1
        self._most_open = max(self._most_open, self._open)
        parts: list[list[Path]] = [[], []]
        for group in self.groups:
            for part, name in zip(parts, ("program", "check"), strict=True):
                directory = group.directory / f"{name}-{self._opened}"
                if directory not in part:
                    directory.mkdir()
                    part.append(directory)
                if group.controller == "memory" and memory_bytes:
                    _set_limit(group, directory, memory_bytes)
        return parts

    def joins(self, part: list[Path]) -> list[str]:
        """The files with which a task moves itself to these groups."""
        return [str(each / ("tasks" if (each / "tasks").exists() else "cgroup.procs")) for each in part]

    def starved(self, parts: list[list[Path]], memory_bytes: int) -> bool:
        """Whether the kernel ended a process of a program for memory that others took: it had less than its limit, and
        than its share of all memory while as many programs ran as ever. Without evidence of that it is the program's.
        """
        for group in self.groups:
            if group.controller == "memory":
                most = NEARLY * min(memory_bytes or group.limit, group.limit // max(1, self._most_open))
                own = [each for part in parts for each in part if each.parent == group.directory]
                kills = sum(_kills((each / KILLS[group.version]).read_text()) for each in own)
                peaks = [each / PEAKS[group.version] for each in own]
                known = bool(peaks) and all(each.exists() for each in peaks)
                return kills > 0 and known and all(int(each.read_text()) < most for each in peaks)
        return False

    def close(self, parts: list[list[Path]]) -> None:
        """Remove the groups of a program. What still ends there is looked for at the next call."""
        self._open -= 1
        self._left += [each for part in parts for each in part]
        for each in list(self._left):
            with contextlib.suppress(OSError):
                each.rmdir()
                self._left.remove(each)

    @property
    def alone(self) -> str:
        """The name of the file with which a child moves itself to a call's group."""
        return ALONE[self._shared.version] if self._shared is not None else ""

    @property
    def to_join(self) -> list[str]:
        """The files with which an interpreter joins its groups, in order."""
        shared = self._shared
        directories = dict.fromkeys(
            group.directory for group in self.groups if group is not shared or group.version == 2
        )
        files = [path / "cgroup.procs" for path in directories]
        if shared is not None:  # in version 2: from the group above, which counts memory and processes
            files.append(shared.directory / INTERPRETERS / self.alone)
        return list(map(str, files))

    @property
    def limits(self) -> dict[str, str]:
        """The limits in words, by controller."""
        words = {"memory": lambda limit: f"{limit >> 20} MiB", "pids": "{} tasks".format, "cpu": "weight {}".format}
        return {group.controller: words[group.controller](group.limit) for group in self.groups}

    @property
    def memory_bytes(self) -> int | None:
        """The limit of memory in bytes; None for no limit."""
        return next((group.limit for group in self.groups if group.controller == "memory"), None)

    def ended_one_since(self, since: float, now: float) -> bool:
        """Whether the kernel ended a process for lack of memory after ``since``. Both times are of one clock.

        The kernel's count has no times: an event counts as of the call of this method that first sees it.
        """
        for group in self.groups:
            if group.controller == "memory":
                kills = _kills((group.directory / KILLS[group.version]).read_text())
                if kills > self._kills:
                    self._kills, self._seen = kills, now
        return self._seen > since

    def remove(self) -> None:
        """Kill the remaining processes and remove the groups. The next sweep removes what is left."""
        if self._held is not None:
            directory, claim = self._held
            removed = [remove_group(made) for made in self._made]
            if all(removed):
                remove_tree(directory)
            claim.release()


@contextlib.asynccontextmanager
async def control_groups(
    wanted: Wanted, memory_bytes: int | None, processes: int, weight: int = WEIGHT, *, programs: bool = False
) -> AsyncIterator[ControlGroups]:
    """Groups for the duration of the context, as of `ControlGroups.make`. Raises ControlGroupsError."""
    groups = ControlGroups()
    try:
        if wanted != "off":
            make = partial(groups.make, programs=programs)
            await trio.to_thread.run_sync(make, memory_bytes, processes, weight)
        if wanted == "required" and groups.lacking:
            raise ControlGroupsError(
                f'control_groups = "required" is not available on this host: {"; ".join(groups.lacking)}. Give the '
                "executor a group that it may divide (systemd: Delegate=yes; in a container: a writable "
                '/sys/fs/cgroup), or accept less with control_groups = "host" or "off" in its settings.'
            )
        yield groups
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(groups.remove)


def _set_limit(group: ControlGroup, directory: Path, limit: int) -> None:
    """Set the limit of a directory of the group. Raises OSError."""
    first, *others = LIMITS[group.version, group.controller]
    (directory / first).write_text(str(limit if group.controller != "cpu" else in_units(limit, group.version)))
    for name in (*others, *([SWAP] if group.controller == "memory" else [])):
        if (directory / name).exists():  # missing where the kernel does not count swap
            (directory / name).write_text("0" if name == SWAP else str(limit))


def _make_part(directory: Path, version: int) -> None:
    """Make a group that divides only processor time; in version 2 a threaded group."""
    directory.mkdir()
    if version == 2:
        (directory / "cgroup.type").write_text("threaded")


def in_units(weight: int, version: int) -> int:
    """A weight in the unit of the version's file."""
    return weight if version == 2 else max(2, weight * 1024 // WEIGHT)


def _has(hierarchy: Hierarchy, controller: Controller) -> bool:
    if hierarchy.version == 1:
        return controller in hierarchy.controllers
    own = hierarchy.own.parent if hierarchy.own.name == REST else hierarchy.own
    return controller in (own / "cgroup.controllers").read_text().split()


def _parent(hierarchy: Hierarchy, controller: Controller) -> Path:
    """The version 2 group for new groups: the own one, its processes moved below, so that outer limits still hold.

    Raises OSError without permission.
    """
    own = hierarchy.own
    if own.name == REST:  # an earlier executor has done it
        parent = own.parent
    else:
        parent = own
        for name in ("", "cgroup.procs", "cgroup.subtree_control"):
            if not os.access(own / name, os.W_OK):
                raise PermissionError(f"{own / name} is not writable")
        if not (own == hierarchy.top or os.geteuid() or _is_delegated(own)):
            raise PermissionError(f"{own} may not be divided: it is not marked as delegated")
        if (own / "cgroup.type").exists():  # absent in the root group, which may hold processes and groups
            _set_aside(own)
    (parent / "cgroup.subtree_control").write_text(f"+{controller}")
    return parent


def _is_delegated(own: Path) -> bool:
    """Whether systemd has delegated the group. Root could write to any group, also to those that systemd manages."""
    for name in ("trusted.delegate", "user.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(own, name) == b"1":
                return True
    return False


def _set_aside(own: Path) -> None:
    rest = own / REST
    rest.mkdir(exist_ok=True)
    for _ in range(MOVING_ROUNDS):
        pids = [pid for pid in (own / "cgroup.procs").read_text().split() if pid != "0"]  # 0: in another PID namespace
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                (rest / "cgroup.procs").write_text(pid)
        if not pids:
            return
