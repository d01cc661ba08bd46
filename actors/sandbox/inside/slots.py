"""The slots in which calls run, and the process that makes slots. Standard library only.

::

    interpreter
      |- maker: forked before the warm-up, small; makes slots on request, through a middleman:
      |    `- init of a slot: own user, PID and mount namespace, /tmp and user; waits until the server or the maker ends
      `- child of a call: forked into a free slot's PID namespace, enters its user and mount namespace

To enter a slot takes 1/40 ms; to make one takes over 1 ms. So a slot is reused if the call left nothing in it: no
process, no file, no changed attribute of /tmp. Otherwise the slot is killed and replaced. Before reuse, the slot's init
resets the counter of process numbers, so that numbers reveal nothing about earlier calls.
"""

# pathlib takes memory, and every fork would pay for it:

from __future__ import annotations

import ctypes
import itertools
import os
import select
import signal
import socket
import struct
from collections import deque
from typing import Any, NoReturn

from actors.sandbox.inside.shares import CpuShare, Shares
from actors.sandbox.isolation import kernel
from actors.sandbox.isolation.namespaces import FIRST_OF_SLOTS, HOME, INSIDE, close_all_but, write_maps

NAMESPACES = kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWPID
LAST_NUMBER = "sys/kernel/ns_last_pid"
"""The kernel's last process number of a namespace. Init has 1, and the child of each call gets 2."""
REWINDING_SECONDS = 0.05
"""Seconds the init of a slot may take to reset the number. A slot that takes longer is replaced."""


class Maker:
    """The small process that makes slots, and the link to it."""

    def __init__(self, proc: int, scratch: str, users: int) -> None:
        """Fork the maker, with one thread only and before large imports. ``scratch``: mount options of /tmp."""
        self.link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

        def work() -> None:
            close_all_but(theirs.fileno(), proc)
            make_slots(theirs, proc, scratch, users)

        self.pid = kernel.start_helper(work)
        theirs.close()

    def ask(self) -> None:
        """Ask for a slot. The link becomes readable when the slot is ready."""
        self.link.send(b"s")

    def take(self) -> Slot:
        """The requested slot. Raises OSError when it could not be made, RuntimeError when the maker has ended."""
        data, fds, _, _ = socket.recv_fds(self.link, 512, 4)
        if not data:
            raise RuntimeError("the maker of slots has ended")
        if len(fds) != 4:
            raise OSError(data.decode())
        return Slot(*fds)


def make_slots(link: socket.socket, proc: int, scratch: str, users: int) -> None:
    """The maker's loop: a slot for each request, until the interpreter ends. The kernel reaps middlemen and inits.

    Each slot gets a different one of ``users``, as far as they last.
    """
    numbers = itertools.cycle(range(FIRST_OF_SLOTS, FIRST_OF_SLOTS + users) if users else (INSIDE,))
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    lifeline, own_end = os.pipe()
    while _asked(link):
        user = next(numbers)
        try:
            pid = os.fork()
        except OSError as error:  # too many processes, or no memory for another
            link.send(str(error).encode()[:500])
            continue
        if pid == 0:
            try:
                os.close(own_end)
                make_slot(link, lifeline, proc, scratch, user)
            except Exception as error:  # noqa: BLE001  the server reports it
                link.send(str(error).encode()[:500])
            finally:
                os._exit(0)


def _asked(link: socket.socket) -> bool:
    """Wait for a request. False: the interpreter has ended, or was killed."""
    try:
        return bool(link.recv(1))
    except ConnectionResetError:
        return False


def make_slot(link: socket.socket, lifeline: int, proc: int, scratch: str, user: int) -> None:
    """Enter new namespaces as ``user`` and leave an init there. The middleman ends; the slot ends with the maker."""
    group = os.getegid()
    os.setresuid(user, user, user)
    kernel.control(kernel.PR_SET_DUMPABLE, 1)  # otherwise this process could not write its own maps
    kernel.unshare(NAMESPACES)
    write_maps(proc, user, group)
    os.umask(0o077)
    kernel.mount("tmpfs", HOME, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOATIME, f"mode=700,{scratch}")
    os.chdir(HOME)
    bell, rung = socket.socketpair()
    bell.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, int(REWINDING_SECONDS * 1e6)))
    try:
        numbers = os.open(LAST_NUMBER, os.O_WRONLY, dir_fd=proc)
    except OSError:  # an old kernel, or a read-only /proc/sys in a container: process numbers then keep counting
        numbers = os.open(os.devnull, os.O_WRONLY)
    pid = os.fork()
    if pid == 0:
        be_init(lifeline, rung.fileno(), numbers)
    fds = [
        os.pidfd_open(pid),
        os.open(HOME, os.O_PATH | os.O_DIRECTORY),
        os.open(f"{pid}/task/{pid}/children", os.O_RDONLY, dir_fd=proc),
        bell.fileno(),
    ]
    socket.send_fds(link, [b"s"], fds)


def be_init(*fds: int) -> NoReturn:
    """Init of a slot: adopts processes left by calls until maker or server ends. Its end kills all in the slot.

    ``fds``: a pipe of the maker, the link to the server, and the file of the last process number.
    """
    try:
        for low, fd in enumerate(fds):
            os.dup2(fd, 64 + low)
        lifeline, rung, numbers = range(64, 67)
        os.closerange(67, 1 << 20)
        os.closerange(0, 64)
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # an init ignores all other signals without a handler
        events = select.poll()
        events.register(lifeline, select.POLLIN)
        events.register(rung, select.POLLIN)
        while all(fd == rung for fd, _ in events.poll()) and os.read(rung, 1):
            os.pwrite(numbers, b"1", 0)
            os.write(rung, b"1")
    finally:
        os._exit(0)  # whatever the reason: the server sees the end and replaces the slot


class Slot:
    """A place for one call, in its own namespaces."""

    def __init__(self, pidfd: int, directory: int, children: int, bell: int) -> None:
        self.pidfd, self.directory, self.children, self.bell = pidfd, directory, children, bell
        self.used_before = False
        self.share: CpuShare
        self.made = os.fstat(directory).st_ctime_ns
        self.inodes = self.used()

    @property
    def door(self) -> int:
        """The descriptor by which the forker enters the slot."""
        return self.pidfd

    def is_clean(self) -> bool:
        """Whether the ended call left nothing. The slot's init is now the parent of all processes that remain."""
        try:
            if os.pread(self.children, 64, 0):
                return False
        except ProcessLookupError:
            return False  # the init was killed from outside
        return self.used() == self.inodes and os.fstat(self.directory).st_ctime_ns == self.made

    def rewind(self) -> None:
        """Ask the init to reset the counter of process numbers."""
        try:  # noqa: SIM105  contextlib takes memory, and every fork would pay for it
            os.write(self.bell, b"1")
        except BrokenPipeError:
            pass  # the init was killed from outside, which is noticed when the slot is needed
        self.used_before = True

    def is_ready(self) -> bool:
        """Whether the init has reset the counter, so that the slot is as new."""
        try:
            return not self.used_before or os.read(self.bell, 1) == b"1"
        except (BlockingIOError, ConnectionResetError):
            return False

    def used(self) -> int:
        """Number of files and directories in /tmp."""
        state = os.fstatvfs(self.directory)
        return state.f_files - state.f_ffree

    def processes(self) -> list[int]:
        """The processes that the slot's init has adopted."""
        return [int(pid) for pid in os.pread(self.children, 1 << 16, 0).split()]

    def end(self) -> None:
        """Kill all processes in the slot and close it."""
        try:  # noqa: SIM105  contextlib takes memory, and every fork would pay for it
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass  # the init was killed from outside, for example for lack of memory
        for fd in (self.pidfd, self.directory, self.children, self.bell):
            os.close(fd)


class NamespaceSlots:
    """The slots of one interpreter: made on demand, up to ``most`` and the number of ``spares``."""

    spares = 2
    """Number of waiting children. More would serve bursts, which the cores could not run at once anyway."""

    keep: tuple[int, ...] = ()
    """Descriptors that the forker must keep open."""

    def __init__(self, maker: Maker, most: int, epoll: select.epoll, shares: Shares) -> None:
        self.maker, self.most, self.shares = maker, most + self.spares, shares
        self.free: deque[Slot] = deque()
        self.made = self.asked = 0
        epoll.register(maker.link, select.EPOLLIN)

    @property
    def fileno(self) -> int:
        """The descriptor that becomes readable when ``arrive`` is to be called."""
        return self.maker.link.fileno()

    def get(self) -> Slot | None:
        """The free slot that has been unused the longest; None when there is none."""
        while self.free:
            slot = self.free.popleft()
            if slot.is_ready():
                return slot
            self.discard(slot)
        return None

    def want(self, count: int) -> None:
        """``count`` calls wait: ask the maker for the missing slots, up to the limit."""
        while self.asked < min(count, self.most - self.made):
            self.asked += 1
            self.maker.ask()

    def arrive(self) -> None:
        """Take a requested slot. Raises OSError when none can be made."""
        self.asked -= 1
        slot = self.maker.take()
        slot.share = self.shares.get()
        self.free.append(slot)
        self.made += 1

    def prepare(self, door: int) -> bool:
        """In the forker: put the next child into the slot's PID namespace. False when the slot has ended."""
        kernel.direct.dup3(door, kernel.FIRST_SLOT_FD, os.O_CLOEXEC)
        return bool(kernel.direct.setns(kernel.FIRST_SLOT_FD, kernel.CLONE_NEWPID) == 0)

    def entering(self, _door: ctypes.c_int) -> list[kernel.IsolationStep]:
        """The steps by which a child enters the slot's other namespaces, then gives up the rights for that."""
        return [
            (kernel.direct.setns, (kernel.FIRST_SLOT_FD, kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS)),
            (kernel.direct.setresuid, (INSIDE, INSIDE, INSIDE)),
            (kernel.direct.chdir, (HOME.encode(),)),
            kernel.drop_capabilities(),
            *kernel.scope_steps(),
        ]

    def put_back(self, slot: Slot) -> bool:
        """Take the slot of an ended call for reuse, or replace it. Returns whether it can be reused."""
        if slot.is_clean():
            slot.rewind()
            self.free.append(slot)
            return True
        self.discard(slot)
        return False

    def discard(self, slot: Slot) -> None:
        """Kill a slot and everything in it."""
        slot.end()
        self.shares.put_back(slot.share)
        self.made -= 1

    def process_limit(self, limit: int) -> int | None:
        """The number of tasks of the call's user: its own and the slot's init."""
        return limit + 1

    def end(self) -> None:
        """Kill everything in free slots. The end of the maker kills the rest."""
        for slot in self.free:
            slot.end()
        self.free.clear()
        self.maker.link.close()
        os.kill(self.maker.pid, signal.SIGKILL)

    def report(self) -> dict[str, Any]:
        """Figures of the slots."""
        return {"slots": self.made}
