"""The levels of isolation of sandboxed code, and what code of each level sees of the host."""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
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
    """The part of the host that sandboxed code sees: steps for ``namespaces.build_root``, and plain paths for
    Landlock.
    """

    plan: tuple[tuple[str, str], ...]
    readable: tuple[str, ...]


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


def visible(packages: tuple[str, ...], hidden: str) -> Visible:
    """The interpreter's own files, the system's libraries and ``packages``, without the directory ``hidden``.

    ``packages`` may lie within ``hidden``, for example a virtual environment within a checkout.
    """
    wanted = [*SYSTEM_DIRECTORIES, *SYSTEM_FILES, sys.base_prefix, sys.base_exec_prefix]
    wanted += [sysconfig.get_path("stdlib"), *packages]
    plan: list[tuple[str, str]] = []
    bound: list[str] = []
    for path in sorted(map(os.path.normpath, wanted), key=lambda path: path.count("/")):
        if not os.path.lexists(path) or path in bound:
            continue
        if Path(path).is_symlink() and path in SYSTEM_DIRECTORIES:
            plan.append(("link", path))
            continue
        if _within(path, bound) and not (_within(path, [hidden]) and _within(hidden, bound)):
            continue
        plan.append(("bind", path))
        bound.append(path)
        if _within(hidden, [path]) and path != hidden and not _within(path, [hidden]):
            plan.append(("hide", hidden))
    return Visible(tuple(plan), tuple(bound))


def _within(path: str, directories: list[str]) -> bool:
    return any(path == directory or path.startswith(directory.rstrip("/") + "/") for directory in directories)
