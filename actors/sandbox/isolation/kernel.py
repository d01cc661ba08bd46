"""Isolation calls of the kernel that the standard library lacks, over libc: namespaces, mounts, capabilities, Landlock.

Standard library only: warm interpreters import this module, and every fork pays for its memory. Each function raises
OSError with the name of the failed call. The numbers are from Linux' headers.
"""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOATIME, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 1024, 4096, 16384, 1 << 18
MNT_DETACH = 2
FIRST_SLOT_FD = 512
"""The pidfd of the slot to enter. The filter permits to enter only from this number on, which no child can open."""
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID = 1, 2
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_SET_SECCOMP = 1, 4, 8, 22
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
SECCOMP_MODE_FILTER = 2
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
SYS_MOUNT_SETATTR = 442
SYS_LANDLOCK_CREATE_RULESET, SYS_LANDLOCK_ADD_RULE, SYS_LANDLOCK_RESTRICT_SELF = 444, 445, 446
LANDLOCK_CREATE_RULESET_VERSION = 1
LANDLOCK_RULE_PATH_BENEATH = 1
LANDLOCK_READ = 0b1101
"""Execute files, read files, read directories."""
LANDLOCK_LIST = 0b1000
"""Read directories."""
LANDLOCK_ALL = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1}
"""All rights over files, by interface version. Rights after version 3 do not matter to sandboxed code."""
LANDLOCK_FILE = 0b111 | 1 << 14
"""The rights in a rule for a single file: execute, write, read, truncate."""
LANDLOCK_SCOPES, LANDLOCK_WITH_SCOPES = 3, 6
"""Deny abstract Unix sockets and signals to processes outside the domain; since this interface version."""
LANDLOCK_QUIET, LANDLOCK_WITH_QUIET = 0b101, 7
"""Log no refusals of this domain and domains within it in the host's audit log; since this interface version."""
CAPABILITY_VERSION = 0x20080522

IsolationStep: TypeAlias = tuple[Callable[..., "int | None"], tuple[Any, ...]]
"""A function and its arguments, prepared before the fork. A result of -1 means failure."""

libc = ctypes.CDLL(None, use_errno=True)
prctl = libc.prctl
set_signal = libc.signal
"""C's signal(), without Python's bookkeeping. Handler None: the default."""

direct = ctypes.PyDLL(None)
"""libc for children and the forker. It keeps the interpreter's lock and stores no ``errno``, which saves pages that a
fork would copy. The caller checks each result."""
fork = direct.fork
"""Fork a process of one thread without fork hooks. Returns 0 in the child and -1 on failure.

``os.fork`` repairs locks and lists of threads, which one thread does not need, and each touched page is copied. This
function does not reseed the standard random generator.
"""


class MountAttributes(ctypes.Structure):
    """``struct mount_attr``."""

    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns", ctypes.c_uint64),
    )


class Ruleset(ctypes.Structure):
    """``struct landlock_ruleset_attr``."""

    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class PathBeneath(ctypes.Structure):
    """``struct landlock_path_beneath_attr``."""

    _pack_ = 1
    _fields_ = (("access", ctypes.c_uint64), ("parent", ctypes.c_int32))


class CapabilityHeader(ctypes.Structure):
    """``struct __user_cap_header_struct``."""

    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class FilterProgram(ctypes.Structure):
    """``struct sock_fprog``."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


NO_CAPABILITIES = (ctypes.c_uint32 * 6)()
CAPABILITY_HEADER = CapabilityHeader(CAPABILITY_VERSION, 0)


def _checked(result: int, name: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def start_helper(work: Callable[[], object]) -> int:
    """Fork a process that does ``work`` and ends, at the latest when this process ends. Returns its number.

    What ``work`` raises is printed to standard error, because nothing else reports it. Raises OSError.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            set_signal(int(signal.SIGTERM), None)
            prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
            if os.getppid() == parent:
                work()
        except Exception:  # noqa: BLE001  printed: the process ends
            traceback.print_exc()
        finally:
            os._exit(0)
    return pid


def unshare(flags: int) -> None:
    """Leave the given namespaces for new ones."""
    _checked(libc.unshare(flags), "unshare")


def setns(fd: int, flags: int) -> None:
    """Enter the given namespaces of the process with the pidfd ``fd``."""
    _checked(libc.setns(fd, flags), "setns")


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """The system call of that name."""
    values = [None if value is None else value.encode() for value in (source, target, kind, options)]
    _checked(libc.mount(values[0], values[1], values[2], ctypes.c_ulong(flags), values[3]), f"mount of {target}")


def make_read_only(path: str) -> None:
    """Make a mount and all below it read-only, and ignore set-user-ID bits there (Linux 5.12)."""
    attributes = MountAttributes(set=MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    result = libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, path.encode(), AT_RECURSIVE, ctypes.byref(attributes), size)
    _checked(result, "mount_setattr")


def pivot_root(path: str) -> None:
    """Make the mount at ``path`` the root directory, and detach the previous root."""
    os.chdir(path)
    _checked(libc.syscall(SYS_PIVOT_ROOT[os.uname().machine], b".", b"."), "pivot_root")
    _checked(libc.umount2(b".", MNT_DETACH), "umount2")
    os.chdir("/")


def control(option: int, value: int) -> None:
    """prctl(2)."""
    _checked(prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


def keep_capabilities_through_change_of_user(uid: int) -> None:
    """Become ``uid`` and keep root's capabilities."""
    control(PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    current = (ctypes.c_uint32 * 6)()
    _checked(libc.capget(ctypes.byref(CAPABILITY_HEADER), current), "capget")
    current[0], current[3] = current[1], current[4]  # make the permitted capabilities effective
    _checked(libc.capset(ctypes.byref(CAPABILITY_HEADER), current), "capset")


def drop_capabilities() -> IsolationStep:
    """Give up every capability."""
    return direct.capset, (ctypes.byref(CAPABILITY_HEADER), NO_CAPABILITIES)


def keep_capabilities(kept: int) -> None:
    """Give up every capability but those of the mask ``kept``."""
    mask = (ctypes.c_uint32 * 6)(kept, kept)
    _checked(libc.capset(ctypes.byref(CAPABILITY_HEADER), mask), "capset")


def install_filter(program: bytes) -> None:
    """Filter all later system calls of this process and its children with a seccomp program."""
    control(PR_SET_NO_NEW_PRIVS, 1)
    structure = FilterProgram(len(program) // 8, program)
    _checked(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(structure), 0, 0), "seccomp")


def filter_step(program: bytes) -> IsolationStep:
    """The step that adds a filter, for a process that can no longer gain privileges."""
    pointer = ctypes.pointer(FilterProgram(len(program) // 8, program))
    return direct.prctl, (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, pointer, 0, 0)


def landlock_version() -> int:
    """The version of the Landlock interface; 0 without Landlock."""
    result: int = libc.syscall(SYS_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), LANDLOCK_CREATE_RULESET_VERSION)
    return max(0, result)


def scope_steps() -> list[IsolationStep]:
    """The steps that block signals and abstract Unix sockets to outside processes. Empty without kernel support.

    The ruleset is made once, here; each child only enters it. It does not restrict files.
    """
    if landlock_version() < LANDLOCK_WITH_SCOPES:
        return []
    ruleset = Ruleset(scopes=LANDLOCK_SCOPES)
    size = ctypes.c_size_t(ctypes.sizeof(ruleset))
    fd = _checked(libc.syscall(SYS_LANDLOCK_CREATE_RULESET, ctypes.byref(ruleset), size, 0), "landlock_create_ruleset")
    return [(direct.syscall, (SYS_LANDLOCK_RESTRICT_SELF, fd, quiet(landlock_version())))]


def quiet(version: int) -> int:
    """Flags of ``landlock_restrict_self`` for no logging: a call could fill the host's log."""
    return LANDLOCK_QUIET if version >= LANDLOCK_WITH_QUIET else 0


def landlock(version: int, readable: Sequence[int], listed: Sequence[int], writable: Sequence[int]) -> None:
    """Confine this process and its children to the given files and to all below the given directories (descriptors)."""
    rights = LANDLOCK_ALL[min(version, 3)]
    ruleset = Ruleset(files=rights, scopes=LANDLOCK_SCOPES if version >= LANDLOCK_WITH_SCOPES else 0)
    size = ctypes.c_size_t(24 if version >= LANDLOCK_WITH_SCOPES else 8)
    fd = _checked(libc.syscall(SYS_LANDLOCK_CREATE_RULESET, ctypes.byref(ruleset), size, 0), "landlock_create_ruleset")
    for paths, access in ((readable, LANDLOCK_READ), (listed, LANDLOCK_LIST), (writable, rights)):
        for path in paths:
            is_directory = stat.S_ISDIR(os.fstat(path).st_mode)
            rule = PathBeneath(access if is_directory else access & rights & LANDLOCK_FILE, path)
            _checked(
                libc.syscall(SYS_LANDLOCK_ADD_RULE, fd, LANDLOCK_RULE_PATH_BENEATH, ctypes.byref(rule), 0),
                "landlock_add_rule",
            )
    _checked(libc.syscall(SYS_LANDLOCK_RESTRICT_SELF, fd, quiet(version)), "landlock_restrict_self")
    os.close(fd)
