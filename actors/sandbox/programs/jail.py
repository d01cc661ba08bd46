"""A jail for one program of others: a root and a network of its own. Standard library alone.

::

    zygote --fork--> jailer: new namespaces --fork--> init, process 1 of the jail: root, network, limits, a user without
                                                       rights --fork--> the program and all that it starts

The root shows system directories and what the jail's plan names, read-only. A file system in memory of limited size is
the only place to write. With a ``port``, the network has one address, ``127.0.0.1:port``, whose connections the owner
of the jail answers; nothing else can be reached. When process 1 ends, the kernel ends every process in the jail.

Unlike a tool call a program may run other programs, make sessions and open sockets. So few system calls are refused.
Where the host has users to spare, process 1 and the check are another user than the program.
"""

# pathlib takes memory, and every fork would pay for it:
# ruff: noqa: PTH102, PTH103, PTH112, PTH115, PTH120, PTH123, PTH211

from __future__ import annotations

import fcntl
import os
import resource
import signal
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from actors.sandbox.isolation import kernel
from actors.sandbox.isolation.namespaces import DEVICES, INSIDE, Mapper, bind, write_maps
from actors.sandbox.isolation.rlimits import NO_DUMP

STAGING = "/sys"
"""The directory in which the root is built; no file in it is shown."""
WORK = "/app"
"""The program's folder, its home."""
WRITABLE = (WORK, "/tmp")  # noqa: S108 - private to the jail
CHECKED = ("/logs", "/tests")
"""What is writable too, on a file system of its own, so that a program cannot fill that of its check."""
CHECK_BYTES = 64 << 20
"""The least size of that."""
NAMESPACES = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
SYS_KEYCTL, KEYCTL_JOIN_SESSION_KEYRING = {"x86_64": 250, "aarch64": 219}, 1
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
CHECKER = INSIDE + 1
"""The user of process 1 and of the check. The program's is INSIDE."""
OF_PROCESS_1 = sum(1 << capability for capability in (0, 1, 2, 3, 5, 7))
"""What process 1 may do to files and processes of both users: CAP_CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, KILL,
SETUID."""
FILES = {"/etc/hosts": "127.0.0.1 localhost\n"}
FILES |= {"/etc/passwd": f"agent:x:{INSIDE}:{INSIDE}::{WORK}:/bin/sh\ncheck:x:{CHECKER}:{INSIDE}::/tests:/bin/sh\n"}
FILES |= {"/etc/group": f"agent:x:{INSIDE}:\n", "/etc/nsswitch.conf": "hosts: files dns\n"}


@dataclass(frozen=True)
class Jail:
    """What a jail shows and allows. ``plan`` as of `levels.visible`; all sizes in bytes.

    ``port`` 0: the host's network. ``memory``: of private data, a process. ``first_user``, ``users``: of the host, two
    of which a program of root and its check become, or one if there is no other; without root 0.
    """

    plan: list[list[str]]
    port: int
    memory: int
    disk: int
    processes: int
    first_user: int
    users: int
    filter: str = ""
    """The seccomp filter in hexadecimal digits: `syscalls.jail_program`."""


def leave(jail: Jail) -> None:
    """In the jailer: leave the host's namespaces; the next fork is process 1 of the jail. Raises OSError."""
    kernel.control(kernel.PR_SET_PDEATHSIG, int(signal.SIGKILL))
    spaces = NAMESPACES if jail.port else NAMESPACES & ~kernel.CLONE_NEWNET
    if not jail.first_user:
        user, group = os.geteuid(), os.getegid()
        proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
        kernel.unshare(spaces | kernel.CLONE_NEWUSER)
        write_maps(proc, user, group)
        os.close(proc)
    else:
        kernel.unshare(spaces)


def settle(jail: Jail, number: int) -> socket.socket | None:
    """In process 1: make the root and the network, and give up all rights. Returns the socket that listens at the port.

    ``number`` chooses root's users. Raises OSError.
    """
    os.umask(0o022)
    listener = _network(jail.port) if jail.port else None
    is_root = os.geteuid() == 0 and jail.first_user > 0
    spare = int(is_root and jail.users > 1)
    user = jail.first_user + (1 + spare) * (number % (jail.users // (1 + spare))) if is_root else None
    _root(jail, user)
    for limit, most in (
        (resource.RLIMIT_CORE, NO_DUMP),
        (resource.RLIMIT_DATA, jail.memory),
        (resource.RLIMIT_FSIZE, jail.disk),
        (resource.RLIMIT_NOFILE, 4096),
    ):
        hard = resource.getrlimit(limit)[1]
        allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (allowed, allowed))
    if user is not None:
        proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
        mapper = Mapper(proc, f"{INSIDE} {user} 1\n{CHECKER} {user + 1} 1") if spare else None
        kernel.keep_capabilities_through_change_of_user(user)
        group = os.getegid()
        kernel.control(kernel.PR_SET_DUMPABLE, 1)
        kernel.unshare(kernel.CLONE_NEWUSER)
        if mapper is not None and not mapper.has_mapped():
            raise OSError("the users of a program and of its check cannot be mapped")
        write_maps(proc, None if spare else user, group)
        os.close(proc)
    with open("/proc/sys/user/max_user_namespaces", "w") as most_namespaces:  # of this namespace: none within it
        most_namespaces.write("0")
    resource.setrlimit(resource.RLIMIT_NPROC, (jail.processes, jail.processes))
    kernel.libc.syscall(SYS_KEYCTL[os.uname().machine], KEYCTL_JOIN_SESSION_KEYRING, None)  # where there are keyrings
    if spare:
        os.setresuid(CHECKER, CHECKER, CHECKER)
    kernel.keep_capabilities(OF_PROCESS_1 if spare else 0)
    kernel.install_filter(bytes.fromhex(jail.filter))
    kernel.control(kernel.PR_SET_PDEATHSIG, int(signal.SIGKILL))
    kernel.control(kernel.PR_SET_DUMPABLE, 0)  # a program that is of the same user cannot trace process 1
    return listener


def become(*, checks: bool) -> None:
    """In a fork of process 1: be the user of the program, or of its check, without rights. Raises OSError."""
    if os.getuid() == CHECKER and not checks:
        os.setresuid(INSIDE, INSIDE, INSIDE)
    kernel.keep_capabilities(0)


def _network(port: int) -> socket.socket:
    """Bring the loopback up, and listen."""
    listener = socket.socket()
    request = struct.pack("16sH14x", b"lo", 0)
    flags = struct.unpack_from("H", fcntl.ioctl(listener, SIOCGIFFLAGS, request), 16)[0]
    fcntl.ioctl(listener, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(256)
    return listener


def _root(jail: Jail, user: int | None) -> None:
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV)  # before anything hides the host's
    flags = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("tmpfs", STAGING, "tmpfs", flags, "mode=755,size=2m")
    for path in (*WRITABLE, *CHECKED, "/proc", "/dev", "/etc"):
        os.makedirs(STAGING + path, exist_ok=True)
    for path, text in FILES.items():
        with open(STAGING + path, "w") as file:
            file.write(text)
    for device in DEVICES:
        bind(f"/dev/{device}", f"{STAGING}/dev/{device}")
    for name, end in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{end}", f"{STAGING}/dev/{name}")
    os.symlink("/tmp", f"{STAGING}/dev/shm")  # noqa: S108 - of the jail
    _disk(WRITABLE, jail.disk, user)
    _disk(CHECKED, max(CHECK_BYTES, jail.disk), user)
    for kind, path in jail.plan:
        target = STAGING + path
        if kind == "link":
            os.symlink(os.readlink(path), target)
        elif kind == "bind" and not os.path.lexists(target):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            bind(path, target)
            kernel.make_read_only(target)
        elif kind == "hide" and os.path.isdir(target):
            kernel.mount("tmpfs", target, "tmpfs", flags, "mode=755,size=1m")
        elif kind == "hide" and os.path.lexists(target):
            kernel.mount("/dev/null", target, None, kernel.MS_BIND)
    for kind, path in jail.plan:
        if kind == "hide" and os.path.isdir(STAGING + path):  # with all that is shown in it
            kernel.make_read_only(STAGING + path)
    for path in {_first_below(path) for kind, path in jail.plan if kind == "bind"} - {""}:
        whole = STAGING + path  # a program may rename a folder in its own /tmp, but neither a mount nor what is in one
        if os.path.isdir(whole):
            kernel.mount(whole, whole, None, kernel.MS_BIND | kernel.MS_REC)
            kernel.make_read_only(whole)
    bind("/proc", f"{STAGING}/proc")
    kernel.mount(None, STAGING, None, kernel.MS_BIND | REMOUNT_READ_ONLY)
    kernel.pivot_root(STAGING)


def _first_below(path: str) -> str:
    """The entry of a writable folder in which a path lies; "" if it lies in none."""
    for folder in (*WRITABLE, *CHECKED):
        if path.startswith(f"{folder}/"):
            return f"{folder}/{path[len(folder) + 1 :].partition('/')[0]}"
    return ""


REMOUNT_READ_ONLY = 32 | 1 | kernel.MS_NOSUID | kernel.MS_NODEV
"""MS_REMOUNT | MS_RDONLY: of one mount and not of those within it."""


def _disk(folders: Sequence[str], size: int, user: int | None) -> None:
    """One file system in memory for several folders, so that its limit is one."""
    whole = STAGING + folders[-1]
    kernel.mount("tmpfs", whole, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, f"mode=755,size={size},nr_inodes=65536")
    for path in folders:  # the last one hides the whole
        folder = f"{whole}{path}"
        os.mkdir(folder, 0o755)
        if user is not None:
            os.chown(folder, user, user)
        kernel.mount(folder, STAGING + path, None, kernel.MS_BIND)
