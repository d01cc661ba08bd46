"""A warm interpreter's namespaces and its read-only root. Standard library only.

::

    owner (host) --exec--> interpreter: own user, mount, network, IPC and UTS namespaces, root = a few read-only mounts
                             `- slots, which calls run in: see ``slots.py``
"""

# pathlib takes memory, and every fork would pay for it:
# ruff: noqa: PTH103, PTH112, PTH115, PTH120, PTH123, PTH211

from __future__ import annotations

import os
import sys

from actors.sandbox.isolation import kernel

INSIDE = 1000
"""User and group of calls in their namespaces, and of the interpreter in its own."""
FIRST_OF_SLOTS = 2000
"""The first slot's user in the interpreter's namespace."""
HOME = "/tmp"  # noqa: S108  private to a call
ELSEWHERE = "/host"
"""The interpreter's root shows the host's files of HOME and /dev here, because it has its own HOME and /dev."""
STAGING = "/proc"
"""The directory in which the new root is built. Every host has it, and no file in it is shown."""
DEVICES = ("null", "zero", "full", "random", "urandom")
ALL_NAMESPACES = (
    kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
)


def enter_namespaces(plan: list[list[str]], first_user: int, users: int, blocks: int) -> tuple[int, int]:
    """Leave the host's namespaces and root. Returns a descriptor of the host's /proc and the number of slots' users.

    ``plan`` says which parts of the host to show (see ``build_root``). Limits on processes do not bind root. So root
    becomes an unused user: the first of one of ``blocks`` blocks of ``users`` users, from ``first_user`` on.
    Capabilities stay within the new namespace.
    """
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
    root = os.geteuid() == 0
    mapper = None
    if root:
        kernel.unshare(kernel.CLONE_NEWNS)  # while root can still pass directories that only root may pass
        build_root(plan)
        outer_user = first_user + os.getpid() % blocks * users
        if users > 1:
            mapper = Mapper(proc, f"{INSIDE} {outer_user} 1\n{FIRST_OF_SLOTS} {outer_user + 1} {users - 1}")
        kernel.keep_capabilities_through_change_of_user(outer_user)
    user, group = os.geteuid(), os.getegid()
    kernel.control(kernel.PR_SET_DUMPABLE, 1)  # otherwise this process could not write its own maps
    kernel.unshare(ALL_NAMESPACES)
    mapped = mapper is not None and mapper.has_mapped()
    write_maps(proc, None if mapped else user, group)
    if not root:
        build_root(plan)
    return proc, users - 1 if mapped else 0


class Mapper:
    """A process outside the namespace, where root may map several users into the new user namespace."""

    def __init__(self, proc: int, users: str) -> None:
        """Fork the process, which waits for `has_mapped`."""
        process = os.getpid()
        ours, self.signal = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.close(self.signal)
                if os.read(ours, 1):
                    write(proc, f"{process}/uid_map", users)
                    status = 0
            finally:
                os._exit(status)
        os.close(ours)

    def has_mapped(self) -> bool:
        """Tell the process that this one is in its new namespace. Returns whether the users could be mapped."""
        os.write(self.signal, b"m")
        os.close(self.signal)
        return os.waitpid(self.pid, 0)[1] == 0


def write(directory: int, path: str, text: str) -> None:
    """Write a kernel file in one call."""
    fd = os.open(path, os.O_WRONLY, dir_fd=directory)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def write_maps(proc: int, user: int | None, group: int) -> None:
    """Map only the outer ``group`` and ``user`` (unless None) into this process' new user namespace, as INSIDE."""
    write(proc, "self/setgroups", "deny")
    write(proc, "self/gid_map", f"{INSIDE} {group} 1")
    if user is not None:
        write(proc, "self/uid_map", f"{INSIDE} {user} 1")


def build_root(plan: list[list[str]]) -> None:
    """Mount the plan's paths read-only and make them the root.

    Each step is (kind, path): ``bind`` shows the host's path (see ``shown_at``), ``hide`` covers a path with an empty
    directory or file, ``link`` copies a symbolic link.
    """
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", STAGING, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755,size=1m")
    for kind, path in plan:
        target = STAGING + shown_at(path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if kind == "link":
            os.symlink(os.readlink(path), target)
        elif kind == "hide" and not os.path.isdir(target):
            kernel.mount("/dev/null", target, None, kernel.MS_BIND)
        elif kind == "hide":
            kernel.mount("tmpfs", target, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755,size=1m")
        else:
            bind(path, target)
    os.makedirs(f"{STAGING}/dev")
    for device in DEVICES:
        bind(f"/dev/{device}", f"{STAGING}/dev/{device}")
    os.symlink(HOME, f"{STAGING}/dev/shm")  # noqa: S108  for the semaphores of multiprocessing
    os.makedirs(f"{STAGING}{HOME}", exist_ok=True)
    os.makedirs(f"{STAGING}/etc", exist_ok=True)
    with open(f"{STAGING}/etc/passwd", "w") as passwd:
        passwd.write(f"tool:x:{INSIDE}:{INSIDE}::{HOME}:/bin/sh\n")
    kernel.make_read_only(STAGING)
    kernel.pivot_root(STAGING)


def shown_at(path: str) -> str:
    """The place of a host path in the interpreter's root."""
    return ELSEWHERE + path if path.startswith((f"{HOME}/", "/dev/")) else path


def import_from_where_shown() -> None:
    """Change the import paths to their places in the new root."""
    sys.path[:] = map(shown_at, sys.path)
    sys.path_importer_cache.clear()
    for name in ("prefix", "exec_prefix", "base_prefix", "base_exec_prefix"):
        setattr(sys, name, shown_at(getattr(sys, name)))
    for module in list(sys.modules.values()):
        folders = getattr(module, "__path__", None)
        if isinstance(folders, list):
            folders[:] = map(shown_at, folders)


def bind(path: str, target: str) -> None:
    """Show ``path`` and the mounts in it at ``target``."""
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    kernel.mount(path, target, None, kernel.MS_BIND | kernel.MS_REC)


def close_all_but(*fds: int) -> None:
    """Close every descriptor except 0 to 2 and these."""
    low = 3
    for fd in sorted(fds):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, 1 << 20)
