"""A warm interpreter's namespaces and its read-only root, and the slots that calls run in. Standard library only.

::

    owner (host) --exec--> interpreter: user, mount, network, IPC and UTS namespaces of its own, root = a few read-only mounts
                             |- maker: forked before the warm-up, small; makes slots on request, through a middleman:
                             |    `- init of a slot: user, PID and mount namespace, /tmp of its own; sleeps until the maker ends
                             `- child of a call: forked into a free slot's PID namespace, enters its user and mount namespace

Entering a slot costs a fortieth of a millisecond, making one over a millisecond. So a slot is used again as long as a call left
nothing in it: no process, no file, no changed attribute of /tmp. Otherwise it is killed, and a fresh one takes its place.
"""

# pathlib is memory that every fork would pay for:
# ruff: noqa: PTH103, PTH112, PTH115, PTH120, PTH123, PTH211

from __future__ import annotations

import ctypes
import itertools
import os
import select
import signal
import socket
import sys
from typing import Any, NoReturn

from actors.sandbox import kernel
from actors.sandbox.shares import Share, Shares

INSIDE = 1000
"""The user and group that calls are in their own namespace, and the interpreter is in its own."""
FIRST_OF_SLOTS = 2000
"""The first user of a slot in the interpreter's namespace."""
HOME = "/tmp"  # noqa: S108  a call's own
ELSEWHERE = "/host"
"""Below which the interpreter's root shows what the host has below HOME and /dev: these are not the host's there."""
STAGING = "/proc"
"""Where the new root is put together: a directory that every host has, and that nothing is bound from."""
DEVICES = ("null", "zero", "full", "random", "urandom")
ALL_NAMESPACES = (
    kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
)
SLOT_NAMESPACES = kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWPID


def enter_namespaces(plan: list[list[str]], first_user: int, users: int, blocks: int) -> tuple[int, int]:
    """Leave the host's namespaces and root; a descriptor of the host's /proc, which is not there any more, and how many users slots can have.

    ``plan`` says what of the host is to be seen (see ``build_root``). Root becomes a user that nobody is, since limits on processes do not
    bind root: the first of one of ``blocks`` blocks of ``users`` each, from ``first_user`` on. Capabilities are kept within the new namespace.
    """
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
    root = os.geteuid() == 0
    mapper = None
    if root:
        kernel.unshare(kernel.CLONE_NEWNS)  # while directories that only root may pass can be reached
        build_root(plan)
        outer_user = first_user + os.getpid() % blocks * users
        if users > 1:
            mapper = Mapper(proc, f"{INSIDE} {outer_user} 1\n{FIRST_OF_SLOTS} {outer_user + 1} {users - 1}")
        kernel.keep_capabilities_through_change_of_user(outer_user)
    user, group = os.geteuid(), os.getegid()
    kernel.control(kernel.PR_SET_DUMPABLE, 1)  # otherwise our own maps would not be ours to write
    kernel.unshare(ALL_NAMESPACES)
    mapped = mapper is not None and mapper.has_mapped()
    write_maps(proc, None if mapped else user, group)
    if not root:
        build_root(plan)
    return proc, users - 1 if mapped else 0


class Mapper:
    """A process that stays outside, where root has the right to give a new user namespace more than one user."""

    def __init__(self, proc: int, users: str) -> None:
        """Fork it. It waits until it is told."""
        process = os.getpid()
        ours, self.told = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.close(self.told)
                if os.read(ours, 1):
                    write(proc, f"{process}/uid_map", users)
                    status = 0
            finally:
                os._exit(status)
        os.close(ours)

    def has_mapped(self) -> bool:
        """Tell it that this process is in its new namespace; whether it could map the users."""
        os.write(self.told, b"m")
        os.close(self.told)
        return os.waitpid(self.pid, 0)[1] == 0


def write(directory: int, path: str, text: str) -> None:
    """Write a file of the kernel's at once."""
    fd = os.open(path, os.O_WRONLY, dir_fd=directory)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def write_maps(proc: int, user: int | None, group: int) -> None:
    """Make the outer ``group`` and, where it is not None, ``user`` the only ones of this process' new user namespace, named INSIDE there."""
    write(proc, "self/setgroups", "deny")
    write(proc, "self/gid_map", f"{INSIDE} {group} 1")
    if user is not None:
        write(proc, "self/uid_map", f"{INSIDE} {user} 1")


def build_root(plan: list[list[str]]) -> None:
    """Mount what ``plan`` says, read-only, and make that the root.

    Each step is (kind, path): ``bind`` shows the host's path (see ``shown_at``), ``hide`` puts an empty directory over one,
    ``link`` copies a symbolic link.
    """
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", STAGING, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755,size=1m")
    for kind, path in plan:
        target = STAGING + shown_at(path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if kind == "link":
            os.symlink(os.readlink(path), target)
        elif kind == "hide":
            kernel.mount("tmpfs", target, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755,size=1m")
        else:
            bind(path, target)
    os.makedirs(f"{STAGING}/dev")
    for device in DEVICES:
        bind(f"/dev/{device}", f"{STAGING}/dev/{device}")
    os.symlink(HOME, f"{STAGING}/dev/shm")  # noqa: S108  where semaphores of multiprocessing are
    os.makedirs(f"{STAGING}{HOME}", exist_ok=True)
    os.makedirs(f"{STAGING}/etc", exist_ok=True)
    with open(f"{STAGING}/etc/passwd", "w") as passwd:
        passwd.write(f"tool:x:{INSIDE}:{INSIDE}::{HOME}:/bin/sh\n")
    kernel.make_read_only(STAGING)
    kernel.pivot_root(STAGING)


def shown_at(path: str) -> str:
    """Where the interpreter's root shows a path of the host."""
    return ELSEWHERE + path if path.startswith((f"{HOME}/", "/dev/")) else path


def import_from_where_shown() -> None:
    """Import from now on from where the new root shows what was imported from so far."""
    sys.path[:] = map(shown_at, sys.path)
    sys.path_importer_cache.clear()
    for name in ("prefix", "exec_prefix", "base_prefix", "base_exec_prefix"):
        setattr(sys, name, shown_at(getattr(sys, name)))
    for module in list(sys.modules.values()):
        folders = getattr(module, "__path__", None)
        if isinstance(folders, list):
            folders[:] = map(shown_at, folders)


def bind(path: str, target: str) -> None:
    """Show ``path``, and all that is mounted in it, at ``target``."""
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    kernel.mount(path, target, None, kernel.MS_BIND | kernel.MS_REC)


class Maker:
    """The small process that makes slots, and the link to it."""

    def __init__(self, proc: int, scratch: str, users: int) -> None:
        """Fork it, from a process with a single thread and before anything large is loaded.

        ``scratch``: options of a slot's /tmp.
        """
        self.link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self.link.close()
                kernel.set_signal(int(signal.SIGTERM), None)
                kernel.prctl(kernel.PR_SET_PDEATHSIG, int(signal.SIGKILL))
                if os.getppid() == server:
                    close_all_but(theirs.fileno(), proc)
                    make_slots(theirs, proc, scratch, users)
            finally:
                os._exit(0)
        theirs.close()

    def ask(self) -> None:
        """Ask for a slot; the link becomes readable when it is there."""
        self.link.send(b"s")

    def take(self) -> Slot:
        """The slot that was asked for. Raises OSError where it could not be made, RuntimeError when the maker is gone."""
        data, fds, _, _ = socket.recv_fds(self.link, 512, 3)
        if not data:
            raise RuntimeError("the maker of slots has ended")
        if len(fds) != 3:
            raise OSError(data.decode())
        return Slot(*fds)


def close_all_but(*fds: int) -> None:
    """Close every descriptor but standard ones and these."""
    low = 3
    for fd in sorted(fds):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, 1 << 20)


def make_slots(link: socket.socket, proc: int, scratch: str, users: int) -> None:
    """The maker's loop: a slot for each request, until the interpreter is gone. The kernel reaps middlemen and inits.

    Each slot has another one of ``users``, as far as there are any.
    """
    numbers = itertools.cycle(range(FIRST_OF_SLOTS, FIRST_OF_SLOTS + users) if users else (INSIDE,))
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    lifeline, held = os.pipe()
    while link.recv(1):
        user = next(numbers)
        try:
            pid = os.fork()
        except OSError as error:  # too many processes, or no memory for one
            link.send(str(error).encode()[:500])
            continue
        if pid == 0:
            try:
                os.close(held)
                make_slot(link, lifeline, proc, scratch, user)
            except OSError as error:
                link.send(str(error).encode()[:500])
            finally:
                os._exit(0)


def make_slot(link: socket.socket, lifeline: int, proc: int, scratch: str, user: int) -> None:
    """Enter new namespaces as ``user`` and leave a process there as their init. The middleman ends; the slot lives with the maker."""
    group = os.getegid()
    os.setresuid(user, user, user)
    kernel.control(kernel.PR_SET_DUMPABLE, 1)  # otherwise our own maps would not be ours to write
    kernel.unshare(SLOT_NAMESPACES)
    write_maps(proc, user, group)
    os.umask(0o077)
    kernel.mount("tmpfs", HOME, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOATIME, f"mode=700,{scratch}")
    os.chdir(HOME)
    pid = os.fork()
    if pid == 0:
        be_init(lifeline)
    fds = [
        os.pidfd_open(pid),
        os.open(HOME, os.O_PATH | os.O_DIRECTORY),
        os.open(f"{pid}/task/{pid}/children", os.O_RDONLY, dir_fd=proc),
    ]
    socket.send_fds(link, [b"s"], fds)


def be_init(lifeline: int) -> NoReturn:
    """Init of a slot: adopts and forgets what calls leave, until the maker ends; its own end ends all in the slot."""
    try:
        set_aside = os.dup2(lifeline, 3)
        os.closerange(4, 1 << 20)
        os.closerange(0, 3)
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Python's own handler is the only one that an init would heed
        while os.read(set_aside, 1):
            pass
    finally:
        os._exit(0)


class Slot:
    """One place for a call, in namespaces of its own."""

    def __init__(self, pidfd: int, directory: int, children: int) -> None:
        self.pidfd, self.directory, self.children = pidfd, directory, children
        self.share: Share
        self.made = os.fstat(directory).st_ctime_ns
        self.inodes = self.used()

    @property
    def door(self) -> int:
        """What the forker enters it by."""
        return self.pidfd

    def is_clean(self) -> bool:
        """Whether a call that has ended left nothing. Everything it started has the slot's init as its parent now."""
        try:
            if os.pread(self.children, 64, 0):
                return False
        except ProcessLookupError:
            return False  # its init was killed from outside
        return self.used() == self.inodes and os.fstat(self.directory).st_ctime_ns == self.made

    def used(self) -> int:
        """Files and directories in /tmp."""
        state = os.fstatvfs(self.directory)
        return state.f_files - state.f_ffree

    def processes(self) -> list[int]:
        """What the slot's init has adopted."""
        return [int(pid) for pid in os.pread(self.children, 1 << 16, 0).split()]

    def end(self) -> None:
        """Kill whatever is in it, and forget it."""
        try:  # noqa: SIM105  contextlib would be memory that every fork pays for
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass  # something outside, such as want of memory, has
        for fd in (self.pidfd, self.directory, self.children):
            os.close(fd)


class NamespaceSlots:
    """The slots of one interpreter: made on demand, up to ``most`` and those of the ``spares``."""

    spares = 2
    """Children that wait for their call: more would serve bursts, of which the cores could not run more at once anyway."""

    keep: tuple[int, ...] = ()
    """Descriptors that the forker needs."""

    def __init__(self, maker: Maker, most: int, epoll: select.epoll, shares: Shares) -> None:
        self.maker, self.most, self.shares = maker, most + self.spares, shares
        self.free: list[Slot] = []
        self.made = self.asked = 0
        epoll.register(maker.link, select.EPOLLIN)

    @property
    def fileno(self) -> int:
        """What becomes readable when ``arrive`` is to be called."""
        return self.maker.link.fileno()

    def get(self) -> Slot | None:
        """A free slot, or None."""
        return self.free.pop() if self.free else None

    def want(self, count: int) -> None:
        """So many calls wait for a slot: ask for what is not on its way yet, as far as that is allowed."""
        while self.asked < min(count, self.most - self.made):
            self.asked += 1
            self.maker.ask()

    def arrive(self) -> None:
        """Take a slot that was asked for. Raises OSError where none can be made."""
        self.asked -= 1
        slot = self.maker.take()
        slot.share = self.shares.get()
        self.free.append(slot)
        self.made += 1

    def prepare(self, door: int) -> bool:
        """In the forker: the next child is born into the slot's PID namespace. False where that is no more."""
        kernel.direct.dup3(door, kernel.FIRST_SLOT_FD, os.O_CLOEXEC)
        return bool(kernel.direct.setns(kernel.FIRST_SLOT_FD, kernel.CLONE_NEWPID) == 0)

    def entering(self, _door: ctypes.c_int) -> list[kernel.Step]:
        """The steps by which a child enters the slot's other namespaces, and gives up what that took."""
        return [
            (kernel.direct.setns, (kernel.FIRST_SLOT_FD, kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS)),
            (kernel.direct.setresuid, (INSIDE, INSIDE, INSIDE)),
            (kernel.direct.chdir, (HOME.encode(),)),
            kernel.drop_capabilities(),
            *kernel.scope_steps(),
        ]

    def put_back(self, slot: Slot) -> bool:
        """A call has ended: its slot may be used again, or is replaced. Says which."""
        if slot.is_clean():
            self.free.append(slot)
            return True
        self.discard(slot)
        return False

    def discard(self, slot: Slot) -> None:
        """End a slot and all in it."""
        slot.end()
        self.shares.put_back(slot.share)
        self.made -= 1

    def process_limit(self, limit: int) -> int | None:
        """Tasks that the call's user may have: its own and the slot's init."""
        return limit + 1

    def end(self) -> None:
        """Kill everything in every free slot; the maker's end kills the rest."""
        for slot in self.free:
            slot.end()
        self.free.clear()
        self.maker.link.close()
        os.kill(self.maker.pid, signal.SIGKILL)

    def report(self) -> dict[str, Any]:
        """Figures."""
        return {"slots": self.made}
