"""The levels of isolation of sandboxed code, and what code of each level sees of the host."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from actors.sandbox.isolation.syscalls import ARCHITECTURES, program, sealing_program

Isolation: TypeAlias = Literal["host", "strong", "filtered", "limits"]
"""The setting. ``host``: the strongest level that the host permits. Other values: this level, or refuse to start."""
Level: TypeAlias = Literal["strong", "filtered", "limits"]
"""The level in force.

``strong``: namespaces (user, mount, network, IPC, UTS, PID), a read-only root of a few host directories, a private
/tmp, the seccomp filter, no capabilities, resource limits. ``filtered``: the seccomp filter, Landlock where the kernel
has it, resource limits. ``limits``: resource limits alone.
"""
LEVELS: tuple[Level, ...] = ("strong", "filtered", "limits")
UNUSED_USER = 1_999_654_320
"""A user id that distributions leave unused (above all container ranges, below 2^31). Root's calls run as this user."""
USERS, BLOCKS = 4096, 1024
"""Each interpreter has a block of users from there on: the first for itself, one for each slot. So the kernel's limits
for a user (pages of pipes, descriptors in flight) hold for a slot."""
NOBODY = 65534
SYSTEM_DIRECTORIES = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives")


class IsolationError(Exception):
    """The configured isolation is not available. The message says what is missing and which setting accepts less."""


@dataclass(frozen=True, slots=True)
class Visible:
    """The part of the host that sandboxed code sees: steps for ``namespaces.build_root``, and paths for Landlock.

    Of folders that are ``listed``, the names of everything below can be read, and no file.
    """

    plan: tuple[tuple[str, str], ...]
    readable: tuple[str, ...]
    listed: tuple[str, ...]


def levels_to_try(isolation: Isolation) -> tuple[Level, ...]:
    """The levels to try, strongest first."""
    return LEVELS if isolation == "host" else (isolation,)


def unavailable(level: Level, why: str) -> IsolationError:
    """The refusal to start, with its remedy."""
    weaker = LEVELS[LEVELS.index(level) + 1 :]
    remedy = " or ".join(f'isolation = "{name}"' for name in ("host", *weaker))
    return IsolationError(
        f'isolation = "{level}" is not available on this host: {why}. Allow it (in a container: unprivileged user '
        f"namespaces, seccomp), or accept less with {remedy} in the executor's settings."
    )


def filter_program(level: Level, *, may_continue: bool = False) -> bytes:
    """The seccomp filter of a level; empty for ``limits``. Raises IsolationError for an unknown machine type.

    ``may_continue``: the filter of the process that continues stopped sessions, instead of the filter of calls.
    """
    if level == "limits":
        return b""
    return program(_machine(level), strong=level == "strong", may_continue=may_continue)


def child_filter_program(level: Level) -> bytes:
    """The filter that each child adds; empty for ``limits``. Raises IsolationError as ``filter_program`` does."""
    return b"" if level == "limits" else sealing_program(_machine(level))


def _machine(level: Level) -> str:
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        raise unavailable(level, f"there is no seccomp filter for {machine} processors")
    return machine


def outer_users() -> tuple[int, int, int]:
    """Users on the host for root's interpreters and calls: the first user, users of an interpreter, number of blocks.

    These users exist nowhere else. In a container without such numbers, only nobody is used.
    """
    ranges = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    known = any(first <= UNUSED_USER and first + count >= UNUSED_USER + USERS * BLOCKS for first, _, count in ranges)
    return (UNUSED_USER, USERS, BLOCKS) if known else (NOBODY, 1, 1)


def visible(shown: Iterable[str], hidden: Iterable[str]) -> Visible:
    """The interpreter's own files, the system's libraries and ``shown``, without what is ``hidden``.

    Of two paths within each other, the inner one decides; of a path that is both, what is shown. So packages may lie
    within a hidden folder, such as a virtual environment within a checkout, and hidden packages beside others.
    """
    wanted = [*SYSTEM_DIRECTORIES, *SYSTEM_FILES, sys.base_prefix, sys.base_exec_prefix]
    wanted += [sysconfig.get_path("stdlib"), *shown]
    kinds = {_shown_in(folder, path): "hide" for path in hidden for folder in wanted}
    kinds |= {os.path.normpath(path): "bind" for path in wanted}
    plan: dict[str, str] = {}
    for path in sorted(kinds, key=lambda path: path.count("/")):
        if not os.path.lexists(path):
            continue
        if Path(path).is_symlink() and path in SYSTEM_DIRECTORIES:
            plan[path] = "link"
        elif kinds[path] != _kind_around(path, plan):
            plan[path] = kinds[path]
    readable: list[str] = []
    listed: list[str] = []
    for path, kind in plan.items():
        if kind == "bind":
            _open_up(path, plan, readable, listed)
    return Visible(tuple((kind, path) for path, kind in plan.items()), tuple(readable), tuple(listed))


def _shown_in(folder: str, path: str) -> str:
    """Where a path is seen when ``folder`` is shown, which may be a link to a folder around it."""
    real, folder_real = os.path.realpath(path), os.path.realpath(folder)
    return os.path.normpath(folder + real[len(folder_real) :] if _within(real, folder_real) else path)


def _kind_around(path: str, plan: Mapping[str, str]) -> str:
    """Whether the folder of a path is shown ("bind") or hidden."""
    around = [outer for outer, kind in plan.items() if kind != "link" and _within(path, outer)]
    return plan[max(around, key=len)] if around else "hide"


def _open_up(path: str, plan: Mapping[str, str], readable: list[str], listed: list[str]) -> None:
    """Landlock knows no exceptions: a folder with something hidden in it is listed, and its other entries are shown."""
    if not any(kind == "hide" and _within(hidden, path) for hidden, kind in plan.items()):
        readable.append(path)
        return
    listed.append(path)
    with contextlib.suppress(FileNotFoundError), os.scandir(path) as entries:  # else: removed meanwhile
        for entry in entries:
            if entry.path not in plan and not entry.is_symlink():
                _open_up(entry.path, plan, readable, listed)


def _within(path: str, folder: str) -> bool:
    return path != folder and path.startswith(folder.rstrip("/") + "/")
