"""The program of a warm interpreter: it has a child forked for each call and watches over it.

It is a fresh ``exec`` and has never held more of the system than the modules it was told to import: no key, no token, no
environment, and no call's code, input or output, which reach the children in files in memory that this process doesn't
read. The modules themselves are in the process that it has forks made by (see ``forks.py``).

::

    owner --socket--> requests --> Server.start --> Forks.child --fork--> child.run
                                     ^   |                                  |
                    a free slot -----+   |                                  v
    owner <--socket-- verdicts <-- Server.finish <-- pidfd, exit status

Children are killed here, at their deadlines; what they say themselves is read, and judged, by the owner. When the owner closes
the link, or dies, everything below this process is killed.
"""

# pathlib is memory that every fork would pay for:

from __future__ import annotations

import heapq
import os
import select
import signal
import socket
import time
from contextlib import suppress
from typing import Any, NoReturn

from actors.sandbox.inside.children import Call, Child, Place
from actors.sandbox.inside.directories import Directories
from actors.sandbox.inside.forks import ForkerGone
from actors.sandbox.inside.looks import Looks
from actors.sandbox.isolation.rlimits import Bounds
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
    receive,
)

RETRY_SECONDS = 1.0
"""Until another child is made to wait after one has died waiting, or there was no slot for it and none has come."""
SETTLING_SECONDS = 0.5
"""Until a session that was stopped is looked at again: its threads go on for a moment, in which they may fork."""


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


class Server:
    """The loop: requests in, children watched, verdicts out."""

    def __init__(self, link: socket.socket, farewell: Farewell, most: int) -> None:
        self.link, self.farewell, self.most = link, farewell, most
        self.slots: Any = None  # NamespaceSlots or Directories, once isolated
        self.forks: Any = None  # once isolated
        self.shares: Any = None  # of processor.Shares, before
        self.waiting: list[Call] = []
        self.spares: list[Child] = []
        self.next_spare = 0.0
        self.outgoing: list[bytes] = []
        self.deadlines: list[tuple[float, int, Child, Call]] = []
        self.looks = Looks()
        self.running: dict[int, Child] = {}  # by pidfd: all of them
        self.by_control: dict[int, Child] = {}
        self.sessions: dict[int, Child] = {}
        self.null = os.open(os.devnull, os.O_RDWR)
        self.proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
        self.blocked = False
        self.epoll = select.epoll()
        self.epoll.register(link, select.EPOLLIN)

    def serve(self) -> NoReturn:
        """Run until the owner is gone (raises OwnerGone)."""
        link, slots, forks = self.link.fileno(), self.slots.fileno, self.forks.link.fileno()
        self.epoll.register(forks, select.EPOLLIN)
        while True:
            ready = [fd for fd, _ in self.epoll.poll(self.seconds_to_wait())]
            for fd in ready:  # all of them before any descriptor is opened, which may have the number of another one
                if fd in self.running:
                    self.finish(self.running[fd])
                elif fd in self.by_control:
                    self.said(self.by_control[fd])
            self.kill_late()
            self.looks.look(time.monotonic())
            if forks in ready:
                raise ForkerGone  # it says nothing unasked
            if slots in ready:
                self.slot_arrived()
            if link in ready:
                self.send()
                self.receive()
            self.start_waiting()
            if not ready and self.seconds_to_spare() == 0.0:
                self.make_spares()
            elif not ready and self.forks.unreaped:
                self.forks.reap_some()

    def seconds_to_wait(self) -> float | None:
        """How long to wait for events; None without end."""
        if self.forks.unreaped:
            return 0.0
        waits = self.seconds_to_deadline(), self.seconds_to_spare(), self.looks.seconds(time.monotonic())
        return min((seconds for seconds in waits if seconds is not None), default=None)

    def seconds_to_spare(self) -> float | None:
        """How long until a child is to be made that waits for a call; None when none is, until something happens.

        While a call runs, or ends, one that waits is enough: a fork would take its time away from it. Where that is taken, as many as may wait
        are forked in a row.
        """
        busy = len(self.running) > len(self.spares) + len(self.sessions)
        if len(self.spares) >= (min(1, self.slots.spares) if busy else self.slots.spares):
            return None
        return max(0.0, self.next_spare - time.monotonic()) if self.next_spare else 0.0

    def seconds_to_deadline(self) -> float | None:
        """How long until a child is to be killed; None when none runs a call."""
        while self.deadlines:
            deadline, _, child, call = self.deadlines[0]
            if child.settling is call or (child.call is call and call.verdict == NO_VERDICT):
                return max(0.0, deadline - time.monotonic())
            heapq.heappop(self.deadlines)
        return None

    def kill_late(self) -> None:
        """Kill the children whose time is up, and sessions that were not alone when they stopped."""
        now = time.monotonic()
        while self.deadlines and self.deadlines[0][0] <= now:
            _, _, child, call = heapq.heappop(self.deadlines)
            if child.call is call and call.verdict == NO_VERDICT:
                call.verdict = TIMEOUT
                child.kill()
            elif child.settling is call:
                child.settling = None
                self.kill_orphans()
                if not child.is_at_rest(self.proc):
                    child.kill()

    def watch(self, child: Child, call: Call) -> None:
        """``child`` runs ``call`` from here on."""
        child.call, child.settling = call, None
        self.looks.begin(child, call)
        heapq.heappush(self.deadlines, (call.deadline, call.id, child, call))

    def receive(self) -> None:
        """Take requests off the link and act on them."""
        while True:
            try:
                data, fds = receive(self.link, REQUEST.size)
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
        """Give a call to a child, a waiting or a new one, or keep it until there is a slot for one."""
        while self.spares:
            if self.hand_over(self.spares.pop(), call):
                return
        try:
            place = self.slots.get()
        except OSError as error:
            self.refuse(call, error)
            return
        if place is None:
            self.waiting.append(call)
            self.slots.want(len(self.waiting))
            return
        child = self.fork([place])
        if not child or not self.hand_over(child[0], call):
            self.reply(DONE, call.id, NOT_RUN, 0, 0.0)
            call.close()

    def fork(self, places: list[Place]) -> list[Child]:
        """New children, without those that could not be, or that were to live where all has been killed from outside."""
        try:
            children = self.forks.children(places)
        except OSError:
            children = [None] * len(places)
        for place, child in zip(places, children, strict=True):
            if child is None:
                self.slots.discard(place)
            else:
                self.running[child.pidfd] = self.by_control[child.control.fileno()] = child
                self.epoll.register(child.pidfd, select.EPOLLIN)
                self.epoll.register(child.control, select.EPOLLIN)
        return [child for child in children if child is not None]

    def hand_over(self, child: Child, call: Call) -> bool:
        """Have a child that waits run the call; False when it has died."""
        call.started = time.monotonic()
        call.deadline = call.started + call.bounds.wall_seconds
        processes = self.slots.process_limit(call.bounds.processes)
        if not child.hand_over(call, self.forks.limits(call.bounds, processes, is_session=call.session != 0)):
            return False
        call.close()
        self.watch(child, call)
        if call.session:
            self.sessions[call.session] = child
        return True

    def make_spares(self) -> None:
        """Nothing else is to be done: have as many children wait as may. Where none can be made, try again later, not at once."""
        wanted = self.slots.spares - len(self.spares)
        places = [place for place in (self.slots.get() for _ in range(wanted)) if place is not None]
        children = self.fork(places) if places else []
        self.spares += children
        if not children:
            self.slots.want(wanted)
            self.next_spare = time.monotonic() + RETRY_SECONDS

    def next_cell(self, child: Child | None, call: Call) -> None:
        """Give a session its next cell; it is not run where the session's process is gone or occupied."""
        if child is None or child.call is not None:
            self.reply(DONE, call.id, NOT_RUN, 0, 0.0)
        else:
            call.started = time.monotonic()
            call.deadline = call.started + call.bounds.wall_seconds
            self.watch(child, call)
            child.next_cell(call)
        call.close()

    def said(self, child: Child) -> None:
        """A child says that its report is written: that is the call's end, whoever says so. A session is stopped until its next cell."""
        said = child.said()
        call = child.call
        if said is None:
            self.epoll.unregister(child.control)
            del self.by_control[child.control.fileno()]
        if not said or call is None or call.verdict != NO_VERDICT:  # with a verdict it is being killed
            return
        seconds = time.monotonic() - call.started
        if not child.session:
            child.call = None
            self.reply(DONE, call.id, NO_VERDICT, 0, seconds)
            os.kill(child.pid, signal.SIGKILL)  # it is ending, unless other code than ours has said so
            return
        os.kill(child.pid, signal.SIGSTOP)
        self.kill_orphans()
        if child.has_descendants(self.proc):
            call.verdict = SESSION_LEFT_PROCESSES
            child.kill()
            return
        child.call, child.settling = None, call
        heapq.heappush(self.deadlines, (time.monotonic() + SETTLING_SECONDS, call.id, child, call))
        self.reply(DONE, call.id, SESSION_GOES_ON, 0, seconds)

    def finish(self, child: Child) -> None:
        """A child has exited: end its group, judge its end where it did not report, and give its slot back."""
        call = child.call
        seconds = time.monotonic() - call.started if call is not None else 0.0
        child.kill_group()  # before it is reaped: until then its number can't name another group
        if self.by_control.pop(child.control.fileno(), None) is not None:
            if call is not None:
                child.said()  # it may have been told after its death what to run
            self.epoll.unregister(child.control)
        child.call = child.settling = None
        if call is not None and call.verdict != CANCELLED:
            verdict = call.verdict
            ended, used = self.forks.reap(child.pid)
            status = os.waitstatus_to_exitcode(ended)
            spent = used >= call.bounds.cpu_seconds / 2  # the limit counts coarser
            if verdict == NO_VERDICT and (status == -signal.SIGXCPU or (spent and status == -signal.SIGKILL)):
                verdict = CPU_TIMEOUT  # the first limit sends the one, the second the other
            elif verdict == NO_VERDICT and call is child.unread:
                verdict = NOT_RUN
            self.reply(DONE, call.id, verdict, status, seconds)
        else:
            self.forks.reap_later(child.pid)
        if child in self.spares:  # killed from outside, or it found no place: not to be tried again at once
            self.spares.remove(child)
            self.next_spare = time.monotonic() + RETRY_SECONDS
        del self.running[child.pidfd]
        self.epoll.unregister(child.pidfd)  # closing it would not do: other children may hold it for a moment more
        os.close(child.pidfd)
        self.sessions.pop(child.session, None)
        child.control.close()
        self.kill_orphans()
        self.slots.put_back(child.place)

    def kill_orphans(self) -> None:
        """Where there are no slots, this process adopts what calls leave running."""
        if isinstance(self.slots, Directories):
            self.slots.kill_orphans(self.forks.pid)

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
            self.next_spare = 0.0

    def refuse(self, call: Call, error: OSError) -> None:
        """A call can't be started, for want of disk, memory or processes."""
        if call.verdict != CANCELLED:
            self.reply(DONE, call.id, NOT_RUN, 0, 0.0, str(error).encode("utf-8", "replace"))
        call.close()

    def start_waiting(self) -> None:
        """Start the calls there are slots for."""
        waiting, self.waiting = self.waiting, []
        for position, call in enumerate(waiting, 1):
            if call.verdict == CANCELLED:
                call.close()
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
        if self.forks is not None:
            self.forks.end()
        for child in self.running.values():
            with suppress(ChildProcessError):  # the forker's last deed was to reap it
                os.waitpid(child.pid, 0)
        self.running.clear()
        if self.slots is not None:
            self.slots.end()
