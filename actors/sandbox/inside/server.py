"""The server of a warm interpreter: it has a child forked for each call, and watches the child.

The server is a fresh ``exec``. It never holds a key, a token, an environment, or the code, input or output of a call.
The children get these in files in memory, which the server does not read. The imported modules are in the forker
(``forks.py``).

::

    owner --socket--> requests --> Server.start --> Forks.child --fork--> child.run
                                     ^   |                                  |
                    a free slot -----+   |                                  v
    owner <--socket-- verdicts <-- Server.finish <-- pidfd, exit status

The server kills children at their deadlines. The owner reads and judges the children's reports. When the owner closes
the link or dies, the server kills every process below it.
"""

# pathlib takes memory, and every fork would pay for it:

from __future__ import annotations

import heapq
import os
import select
import signal
import socket
import time
from contextlib import suppress
from typing import Any, NoReturn

from actors.sandbox import wire
from actors.sandbox.inside.children import CallPlace, Child, SandboxCall
from actors.sandbox.inside.directories import Directories
from actors.sandbox.inside.forks import ForkerGone
from actors.sandbox.inside.shares import TaskThrottle
from actors.sandbox.isolation.rlimits import Bounds

RETRY_SECONDS = 1.0
"""Seconds until the server tries again to make a waiting child, after one died or no slot came."""
SETTLING_SECONDS = 0.5
"""Seconds until the server looks again at a stopped session, whose threads may run and fork for a moment."""


class OwnerGone(BaseException):
    """The link is closed or the owner has died: end, and leave nothing behind."""


class Farewell:
    """Raises OwnerGone once. The owner's death shows twice, as a signal and on the link. The second must not interrupt
    the cleaning up.
    """

    def __init__(self) -> None:
        self.said = False

    def say(self, *_signal_and_frame: object) -> None:
        """Raise OwnerGone, unless it was raised before."""
        if not self.said:
            self.said = True
            raise OwnerGone


class Server:
    """The loop: reads requests, watches children, sends verdicts."""

    def __init__(self, link: socket.socket, farewell: Farewell, most: int) -> None:
        self.link, self.farewell, self.most = link, farewell, most
        self.slots: Any = None  # NamespaceSlots or Directories, set by `isolate`
        self.forks: Any = None  # set by `isolate`
        self.shares: Any = None  # Shares, set before
        self.waiting: list[SandboxCall] = []
        self.spares: list[Child] = []
        self.next_spare = 0.0
        self.outgoing: list[bytes] = []
        self.deadlines: list[tuple[float, int, Child, SandboxCall]] = []
        self.throttle = TaskThrottle()
        self.running: dict[int, Child] = {}  # all children, by pidfd
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
            for fd in ready:  # handle all before a descriptor is opened, which may reuse a number
                if fd in self.running:
                    self.finish(self.running[fd])
                elif fd in self.by_control:
                    self.said(self.by_control[fd])
            self.kill_late()
            self.throttle.look(time.monotonic())
            if forks in ready:
                raise ForkerGone  # the forker only speaks when asked
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
        """Seconds to wait for events; None for no limit."""
        if self.forks.unreaped:
            return 0.0
        waits = self.seconds_to_deadline(), self.seconds_to_spare(), self.throttle.seconds(time.monotonic())
        return min((seconds for seconds in waits if seconds is not None), default=None)

    def seconds_to_spare(self) -> float | None:
        """Seconds until a spare child is to be made; None when none is due before the next event.

        While a call runs or ends, one spare child is enough: a fork would take processor time from the call. When the
        last spare is taken, all spares are forked at once.
        """
        busy = len(self.running) > len(self.spares) + len(self.sessions)
        if len(self.spares) >= (min(1, self.slots.spares) if busy else self.slots.spares):
            return None
        return max(0.0, self.next_spare - time.monotonic()) if self.next_spare else 0.0

    def seconds_to_deadline(self) -> float | None:
        """Seconds until a child must be killed; None when no child runs a call."""
        while self.deadlines:
            deadline, _, child, call = self.deadlines[0]
            if child.settling is call or (child.call is call and call.verdict == wire.NO_VERDICT):
                return max(0.0, deadline - time.monotonic())
            heapq.heappop(self.deadlines)
        return None

    def kill_late(self) -> None:
        """Kill children past their deadline, and stopped sessions with further processes."""
        now = time.monotonic()
        while self.deadlines and self.deadlines[0][0] <= now:
            _, _, child, call = heapq.heappop(self.deadlines)
            if child.call is call and call.verdict == wire.NO_VERDICT:
                call.verdict = wire.TIMEOUT
                child.kill()
            elif child.settling is call:
                child.settling = None
                self.kill_orphans()
                if not child.is_at_rest(self.proc):
                    child.kill()

    def watch(self, child: Child, call: SandboxCall) -> None:
        """``child`` starts to run ``call``."""
        child.call, child.settling = call, None
        self.throttle.begin(child, call)
        heapq.heappush(self.deadlines, (call.deadline, call.id, child, call))

    def receive(self) -> None:
        """Read requests from the link and act on them."""
        while True:
            try:
                data, fds = wire.receive(self.link, wire.REQUEST.size)
            except BlockingIOError:
                return
            except ConnectionResetError:
                data = b""
            if not data:
                self.farewell.say()
                return
            kind, number, session, *bounds = wire.REQUEST.unpack(data)
            if kind == wire.CALL:
                self.start(SandboxCall(number, session, Bounds(*bounds), fds))
            elif kind == wire.NEXT_CELL:
                self.next_cell(self.sessions.get(session), SandboxCall(number, session, Bounds(*bounds), fds))
            elif kind == wire.CANCEL:
                self.cancel(number)
            elif kind == wire.END_SESSION and session in self.sessions:
                self.sessions[session].kill()

    def cancel(self, number: int) -> None:
        """Stop a call that its owner has cancelled."""
        for call in self.waiting:
            if call.id == number:
                call.verdict = wire.CANCELLED
        for child in self.running.values():
            if child.call is not None and child.call.id == number:
                child.call.verdict = wire.CANCELLED
                child.kill()

    def reply(self, kind: int, number: int, verdict: int, status: int, seconds: float, text: bytes = b"") -> None:
        """Queue a message to the owner."""
        self.outgoing.append(wire.REPLY.pack(kind, number, verdict, status, seconds) + text)
        self.send()

    def send(self) -> None:
        """Send what the link takes: a slow owner must not delay deadlines."""
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

    def start(self, call: SandboxCall) -> None:
        """Give a call to a spare or new child, or queue it until a slot is free."""
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
            self.reply(wire.DONE, call.id, wire.NOT_RUN, 0, 0.0)
            call.close()

    def fork(self, places: list[CallPlace]) -> list[Child]:
        """Fork children. Leaves out failed ones, and those whose slot was killed from outside."""
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

    def hand_over(self, child: Child, call: SandboxCall) -> bool:
        """Give a waiting child the call; False when the child has died."""
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
        """When idle: fill up the spare children. On failure, try again after a delay."""
        wanted = self.slots.spares - len(self.spares)
        places = [place for place in (self.slots.get() for _ in range(wanted)) if place is not None]
        children = self.fork(places) if places else []
        self.spares += children
        if not children:
            self.slots.want(wanted)
            self.next_spare = time.monotonic() + RETRY_SECONDS

    def next_cell(self, child: Child | None, call: SandboxCall) -> None:
        """Give a session its next cell. The cell is not run when the session's process is gone or busy."""
        if child is None or child.call is not None:
            self.reply(wire.DONE, call.id, wire.NOT_RUN, 0, 0.0)
        else:
            call.started = time.monotonic()
            call.deadline = call.started + call.bounds.wall_seconds
            self.watch(child, call)
            child.next_cell(call)
        call.close()

    def said(self, child: Child) -> None:
        """A child says that its report is written, which ends the call. A session is stopped until its next cell."""
        said = child.said()
        call = child.call
        if said is None:
            self.epoll.unregister(child.control)
            del self.by_control[child.control.fileno()]
        if not said or call is None or call.verdict != wire.NO_VERDICT:  # with a verdict, the child is being killed
            return
        seconds = time.monotonic() - call.started
        if not child.session:
            child.call = None
            self.reply(wire.DONE, call.id, wire.NO_VERDICT, 0, seconds)
            os.kill(child.pid, signal.SIGKILL)  # it ends by itself, unless the model's code has sent the message
            return
        os.kill(child.pid, signal.SIGSTOP)
        self.kill_orphans()
        if child.has_descendants(self.proc):
            call.verdict = wire.SESSION_LEFT_PROCESSES
            child.kill()
            return
        child.call, child.settling = None, call
        heapq.heappush(self.deadlines, (time.monotonic() + SETTLING_SECONDS, call.id, child, call))
        self.reply(wire.DONE, call.id, wire.SESSION_GOES_ON, 0, seconds)

    def finish(self, child: Child) -> None:
        """A child has exited: kill its group, judge its end if it did not report, and return its slot."""
        call = child.call
        seconds = time.monotonic() - call.started if call is not None else 0.0
        child.kill_group()  # before it is reaped: until then its number cannot name another group
        if self.by_control.pop(child.control.fileno(), None) is not None:
            if call is not None:
                child.said()  # its last message may still be unread
            self.epoll.unregister(child.control)
        child.call = child.settling = None
        if call is not None and call.verdict != wire.CANCELLED:
            verdict = call.verdict
            ended, used = self.forks.reap(child.pid)
            status = os.waitstatus_to_exitcode(ended)
            spent = used >= call.bounds.cpu_seconds / 2  # the kernel's limit counts more coarsely
            if verdict == wire.NO_VERDICT and (status == -signal.SIGXCPU or (spent and status == -signal.SIGKILL)):
                verdict = wire.CPU_TIMEOUT  # the soft limit sends SIGXCPU, the hard limit SIGKILL
            elif verdict == wire.NO_VERDICT and call is child.unread:
                verdict = wire.NOT_RUN
            self.reply(wire.DONE, call.id, verdict, status, seconds)
        else:
            self.forks.reap_later(child.pid)
        if child in self.spares:  # killed from outside, or without a place: do not try again at once
            self.spares.remove(child)
            self.next_spare = time.monotonic() + RETRY_SECONDS
        del self.running[child.pidfd]
        self.epoll.unregister(child.pidfd)  # closing is not enough: other children may still hold the descriptor
        os.close(child.pidfd)
        self.sessions.pop(child.session, None)
        child.control.close()
        self.kill_orphans()
        self.slots.put_back(child.place)

    def kill_orphans(self) -> None:
        """Without slots, this process adopts the processes that calls leave behind: kill them."""
        if isinstance(self.slots, Directories):
            self.slots.kill_orphans(self.forks.pid)

    def slot_arrived(self) -> None:
        """Take a slot from the maker. On failure, calls wait for the existing slots, or fail when there are none."""
        try:
            self.slots.arrive()
        except OSError as error:
            if not self.running and not self.slots.asked:
                refused, self.waiting = self.waiting, []
                for call in refused:
                    self.refuse(call, error)
        else:
            self.next_spare = 0.0

    def refuse(self, call: SandboxCall, error: OSError) -> None:
        """Report that a call cannot be started, for lack of disk, memory or processes."""
        if call.verdict != wire.CANCELLED:
            self.reply(wire.DONE, call.id, wire.NOT_RUN, 0, 0.0, str(error).encode("utf-8", "replace"))
        call.close()

    def start_waiting(self) -> None:
        """Start queued calls while slots are free."""
        waiting, self.waiting = self.waiting, []
        for position, call in enumerate(waiting, 1):
            if call.verdict == wire.CANCELLED:
                call.close()
                continue
            self.start(call)
            if self.waiting:  # this call waits again, and so do the calls behind it
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
            with suppress(ChildProcessError):  # the forker reaped it just before its end
                os.waitpid(child.pid, 0)
        self.running.clear()
        if self.slots is not None:
            self.slots.end()
