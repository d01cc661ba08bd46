"""The program of a warm interpreter: it forks a child for each call and watches over it.

It is a fresh ``exec`` and has never held more of the system than the modules it was told to import: no key, no token, no
environment, and no call's code, input or output, which reach the children in files in memory that this process doesn't
read. It stays small, in few modules and with a single thread, since every call is a fork of it.

::

    owner --socket--> requests --> Server.start --fork--> child.run
                                     ^   |                  |
                    a free slot -----+   |                  v
    owner <--socket-- verdicts <-- Server.finish <-- pidfd, exit status

Children are killed here, at their deadlines; what they say themselves is read, and judged, by the owner. When the owner closes
the link, or dies, everything below this process is killed.
"""

# pathlib is memory that every fork would pay for:
# ruff: noqa: PTH123, PTH208

from __future__ import annotations

import heapq
import os
import resource
import select
import signal
import socket
import time
from typing import Any, NoReturn, TypeAlias

from actors.sandbox.child import (
    BROKEN_OFF,
    SESSION_CPU_SECONDS,
    Bounds,
    Work,
    ceilings,
    die_with_parent,
    leave_server,
    reseed,
    run,
    run_session,
    set_limits,
)
from actors.sandbox.directories import Directories, Directory
from actors.sandbox.kernel import fork
from actors.sandbox.namespaces import Slot
from actors.sandbox.wire import (
    CALL,
    CANCEL,
    CANCELLED,
    CPU_TIMEOUT,
    DONE,
    END_SESSION,
    NEXT_CELL,
    NO_VERDICT,
    NOT_RUN,
    REPLY,
    REQUEST,
    SESSION_GOES_ON,
    SESSION_LEFT_PROCESSES,
    TIMEOUT,
)

Place: TypeAlias = Slot | Directory
SPARE_FDS = 16


class OwnerGone(BaseException):
    """The link is closed or the owner has died: end, and leave nothing behind."""


class Farewell:
    """Raises OwnerGone once. An owner's death shows twice, as a signal and on the link; the second must not stop
    the cleaning up that the first began.
    """

    def __init__(self) -> None:
        self.said = False

    def say(self, *_signal_and_frame: object) -> None:
        """Raise OwnerGone, unless that was done."""
        if not self.said:
            self.said = True
            raise OwnerGone


class Call:
    """A call that runs, or waits for a slot: its descriptors, its process, and what was decided about it."""

    def __init__(self, number: int, session: int, bounds: Bounds, fds: list[int]) -> None:
        self.id, self.session, self.bounds, self.fds = number, session, bounds, fds
        self.started = self.deadline = 0.0
        self.verdict = NO_VERDICT


class Child:
    """A process that runs a call, or the cells of a session one after the other."""

    def __init__(self, pid: int, pidfd: int, place: Place, control: socket.socket | None) -> None:
        self.pid, self.pidfd, self.place, self.control = pid, pidfd, place, control
        self.call: Call | None = None
        self.session = 0

    def kill(self) -> None:
        """Kill it and its group, as long as it is not reaped."""
        os.kill(self.pid, signal.SIGKILL)
        try:  # noqa: SIM105  each object that is made after a fork may cost a page
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # it may not lead a group yet


class Server:
    """The loop: requests in, children watched, verdicts out."""

    def __init__(self, link: socket.socket, farewell: Farewell, work: Work, most: int) -> None:
        self.link, self.farewell, self.work, self.most = link, farewell, work, most
        self.slots: Any = None  # NamespaceSlots or Directories, once isolated
        self.waiting: list[Call] = []
        self.outgoing: list[bytes] = []
        self.deadlines: list[tuple[float, int, Child, Call]] = []
        self.running: dict[int, Child] = {}  # by pidfd: with a call, or a session between two
        self.by_control: dict[int, Child] = {}
        self.sessions: dict[int, Child] = {}
        self.null = os.open(os.devnull, os.O_RDONLY)
        self.tasks = os.open("/proc/self/task", os.O_PATH)
        self.proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
        self.inherited_bytes = 0
        self.ceilings: dict[int, int] = {}
        self.blocked = False
        self.epoll = select.epoll()
        self.epoll.register(link, select.EPOLLIN)

    def serve(self) -> NoReturn:
        """Run until the owner is gone (raises OwnerGone)."""
        with open(os.open("self/statm", os.O_RDONLY, dir_fd=self.proc)) as statm:
            self.inherited_bytes = int(statm.read().split()[0]) * resource.getpagesize()
        self.ceilings = ceilings()
        link, slots = self.link.fileno(), self.slots.fileno
        while True:
            ready = [fd for fd, _ in self.epoll.poll(self.seconds_to_deadline())]
            for fd in ready:
                if fd in self.running:
                    self.finish(self.running[fd])
                elif fd in self.by_control:
                    self.cell_done(self.by_control[fd])
            self.kill_late()
            if slots in ready:
                self.slot_arrived()
            if link in ready:  # last: a descriptor opened now may have the number of one that was ready
                self.send()
                self.receive()

    def seconds_to_deadline(self) -> float | None:
        """How long to wait for events; None without end."""
        while self.deadlines:
            deadline, _, child, call = self.deadlines[0]
            if child.call is call and call.verdict == NO_VERDICT:
                return max(0.0, deadline - time.monotonic())
            heapq.heappop(self.deadlines)
        return None

    def kill_late(self) -> None:
        """Kill the children whose time is up."""
        now = time.monotonic()
        while self.deadlines and self.deadlines[0][0] <= now:
            _, _, child, call = heapq.heappop(self.deadlines)
            if child.call is call and call.verdict == NO_VERDICT:
                call.verdict = TIMEOUT
                child.kill()

    def watch(self, child: Child, call: Call) -> None:
        """``child`` runs ``call`` from here on."""
        child.call = call
        heapq.heappush(self.deadlines, (call.deadline, call.id, child, call))

    def receive(self) -> None:
        """Take requests off the link and act on them."""
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self.link, REQUEST.size, 4)
            except BlockingIOError:
                return
            except ConnectionResetError:
                data = b""
            if not data:
                self.farewell.say()
                return
            kind, number, session, *bounds = REQUEST.unpack(data)
            if kind == CALL:
                self.start(Call(number, session, Bounds(*bounds), fds))
            elif kind == NEXT_CELL:
                self.next_cell(self.sessions.get(session), Call(number, session, Bounds(*bounds), fds))
            elif kind == CANCEL:
                self.cancel(number)
            elif kind == END_SESSION and session in self.sessions:
                self.sessions[session].kill()

    def cancel(self, number: int) -> None:
        """Stop a call whose result nobody wants any more."""
        for call in self.waiting:
            if call.id == number:
                call.verdict = CANCELLED
        for child in self.running.values():
            if child.call is not None and child.call.id == number:
                child.call.verdict = CANCELLED
                child.kill()

    def reply(self, kind: int, number: int, verdict: int, status: int, seconds: float, text: bytes = b"") -> None:
        """Put a message on the link, sent as the owner takes it."""
        self.outgoing.append(REPLY.pack(kind, number, verdict, status, seconds) + text)
        self.send()

    def send(self) -> None:
        """Send what fits: a slow owner must not hold up deadlines."""
        while self.outgoing:
            try:
                self.link.send(self.outgoing[0])
            except BlockingIOError:
                if not self.blocked:
                    self.epoll.modify(self.link, select.EPOLLIN | select.EPOLLOUT)
                self.blocked = True
                return
            except (BrokenPipeError, ConnectionResetError):
                self.farewell.say()
                return
            self.outgoing.pop(0)
        if self.blocked:
            self.epoll.modify(self.link, select.EPOLLIN)
            self.blocked = False

    def start(self, call: Call) -> None:
        """Fork the child of a call, or keep the call until there is a slot for it."""
        try:
            place = self.slots.get()
        except OSError as error:
            self.refuse(call, error)
            return
        if place is None:
            self.waiting.append(call)
            self.slots.want(len(self.waiting))
            return
        self.require_single_thread()
        ours = theirs = None
        fds = [call.fds[3] if len(call.fds) > 3 else self.null, call.fds[1], call.fds[2], call.fds[0]]
        if call.session:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.setblocking(False)
            fds.append(theirs.fileno())
        call.started = time.monotonic()
        call.deadline = call.started + call.bounds.wall_seconds
        processes = self.slots.process_limit(call.bounds.processes)
        try:
            place.prepare()
            pid = fork()
        except OSError:  # whatever lived in the slot was killed from outside
            self.reply(DONE, call.id, NOT_RUN, 0, 0.0)
            self.slots.discard(place)
            pid = -1
        if pid == 0:
            try:
                self.be_child(call, place, fds, processes)
            finally:
                os._exit(BROKEN_OFF)  # whatever happens, a child never returns into the server's loop
        for fd in call.fds:
            os.close(fd)
        if theirs is not None:
            theirs.close()
        if pid < 0:
            return
        child = Child(pid, os.pidfd_open(pid), place, ours)
        self.watch(child, call)
        self.running[child.pidfd] = child
        self.epoll.register(child.pidfd, select.EPOLLIN)
        if ours is not None:
            child.session = call.session
            self.sessions[call.session] = self.by_control[ours.fileno()] = child
            self.epoll.register(ours, select.EPOLLIN)

    def require_single_thread(self) -> None:
        """Raise RuntimeError when a module has started a thread: a fork would be without it, and what it holds locked."""
        threads = os.fstat(self.tasks).st_nlink - 2
        if threads != 1:
            raise RuntimeError(f"the warm interpreter has {threads} threads: warm modules must start none")

    def be_child(self, call: Call, place: Place, fds: list[int], processes: int | None) -> NoReturn:
        """The child's side of the fork."""
        place.enter()
        leave_server(fds)
        cpu_seconds = SESSION_CPU_SECONDS if call.session else call.bounds.cpu_seconds
        set_limits(call.bounds, self.inherited_bytes, processes, cpu_seconds, self.ceilings)
        reseed()
        die_with_parent()
        if call.session:
            run_session(self.work, call.bounds)
        run(self.work, call.bounds.output_bytes)

    def next_cell(self, child: Child | None, call: Call) -> None:
        """Give a session its next cell; it is not run where the session's process is gone or occupied."""
        if child is None or child.call is not None or child.control is None:
            self.reply(DONE, call.id, NOT_RUN, 0, 0.0)
        else:
            try:
                while child.control.recv(16):  # what the code may have said unasked; nothing when it has closed it
                    pass
            except (BlockingIOError, ConnectionResetError):
                pass
            call.started = time.monotonic()
            call.deadline = call.started + call.bounds.wall_seconds
            self.watch(child, call)
            os.kill(child.pid, signal.SIGCONT)
            try:
                socket.send_fds(child.control, [b"c"], call.fds)
            except OSError:
                child.kill()  # it does not listen: its end is reported as that of the cell
        for fd in call.fds:
            os.close(fd)

    def cell_done(self, child: Child) -> None:
        """A session says that its cell has ended: stop it until the next."""
        assert child.control is not None
        try:
            said = child.control.recv(16)
        except (BlockingIOError, ConnectionResetError):
            said = b""
        call = child.call
        if not said or call is None:
            if not said:
                self.epoll.unregister(child.control)
                del self.by_control[child.control.fileno()]
            return
        seconds = time.monotonic() - call.started
        if call.verdict != NO_VERDICT:
            return  # it is being killed
        os.kill(child.pid, signal.SIGSTOP)
        if self.descendants(child):
            call.verdict = SESSION_LEFT_PROCESSES
            child.kill()
            return
        child.call = None
        self.reply(DONE, call.id, SESSION_GOES_ON, 0, seconds)

    def descendants(self, child: Child) -> bool:
        """Whether a session has processes beside its own, which would go on running between its cells."""
        if child.place.processes():
            return True
        tasks = os.open(f"{child.pid}/task", os.O_RDONLY, dir_fd=self.proc)
        try:
            for task in os.listdir(tasks):
                try:
                    fd = os.open(f"{task}/children", os.O_RDONLY, dir_fd=tasks)
                except (FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
                    continue
                try:
                    if os.read(fd, 16):
                        return True
                finally:
                    os.close(fd)
            return False
        finally:
            os.close(tasks)

    def finish(self, child: Child) -> None:
        """A child has exited: end its group, judge its end, give its slot back, reply, and start what waited."""
        call = child.call
        seconds = time.monotonic() - call.started if call is not None else 0.0
        child.kill()  # before it is reaped: until then its number can't name another group
        _, status, used = os.wait4(child.pid, 0)
        status = os.waitstatus_to_exitcode(status)
        child.call = None
        del self.running[child.pidfd]
        self.epoll.unregister(child.pidfd)  # closing it would not do: other children may hold it for a moment more
        os.close(child.pidfd)
        if child.control is not None:
            del self.sessions[child.session]
            if self.by_control.pop(child.control.fileno(), None) is not None:
                self.epoll.unregister(child.control)
            child.control.close()
        if isinstance(self.slots, Directories):
            self.slots.kill_orphans({other.pid for other in self.running.values()})
        self.slots.put_back(child.place)
        if call is not None and call.verdict != CANCELLED:
            verdict = call.verdict
            spent = (
                used.ru_utime + used.ru_stime >= call.bounds.cpu_seconds / 2
            )  # the limit counts coarser than this does
            if verdict == NO_VERDICT and (status == -signal.SIGXCPU or (spent and status == -signal.SIGKILL)):
                verdict = CPU_TIMEOUT  # the first limit sends the one, the second the other
            self.reply(DONE, call.id, verdict, status, seconds)
        self.start_waiting()

    def slot_arrived(self) -> None:
        """The maker has made a slot, or says why it can't: then calls wait for those there are, as long as any may come back."""
        try:
            self.slots.arrive()
        except OSError as error:
            if not self.running and not self.slots.asked:
                refused, self.waiting = self.waiting, []
                for call in refused:
                    self.refuse(call, error)
        else:
            self.start_waiting()

    def refuse(self, call: Call, error: OSError) -> None:
        """A call can't be started, for want of disk, memory or processes."""
        if call.verdict != CANCELLED:
            self.reply(DONE, call.id, NOT_RUN, 0, 0.0, str(error).encode("utf-8", "replace"))
        for fd in call.fds:
            os.close(fd)

    def start_waiting(self) -> None:
        """Start the calls there are slots for."""
        waiting, self.waiting = self.waiting, []
        for position, call in enumerate(waiting, 1):
            if call.verdict == CANCELLED:
                for fd in call.fds:
                    os.close(fd)
                continue
            self.start(call)
            if self.waiting:  # it waits again, and so do those behind it
                self.waiting += waiting[position:]
                self.slots.want(len(self.waiting))
                return

    def kill_all(self) -> None:
        """Kill every process below this one, and wait for them."""
        for child in self.running.values():
            child.kill()
        for child in self.running.values():
            os.waitpid(child.pid, 0)
        self.running.clear()
        if self.slots is not None:
            self.slots.end()
