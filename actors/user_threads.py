"""Bounds users' code: interrupts what blocks the event loop; deadlines, bounded threads, no end of the process.

::

    the loop turns --> the thread rearms faulthandler's timer
    the loop stands, in code that runs within `interruptible`
        `--> the thread sends SIGURG, twice a second --> the main thread's handler raises BlockedError in that code
    the loop still stands --> faulthandler's timer writes the stack --> the supervisor kills the actor and reads it

While the loop stands, peers hear nothing, and take the actor for lost after ``transport.limits.silent_after`` (5 s).
So code is interrupted earlier, after ``BLOCKED_SECONDS``: its error is then an ordinary one, and reaches who asked.

The handler runs in the main thread between two bytecodes, as that of Ctrl-C does. It raises nothing while a function of
the actor or of trio is the innermost one, whose state an exception would break. Code that cannot be interrupted keeps
the interpreter's lock, or catches BaseException in a loop.

A deadline stops while the code waits for the sandbox::

    with deadline.enforced():                 the code's own time is counted
        await tool.call(...)
            await sandbox.execute(...)        with deadline.suspended(): it is not
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from math import inf
from types import FrameType
from typing import Any, NoReturn, TypeVar

import trio

from agent_rl.config.plugins import place_in
from agent_rl.environments.base import BlockedError

BLOCKED_SECONDS = 3.0
"""The longest that code may block the event loop, whatever its deadline."""
TICK_SECONDS = 0.5
"""How often the thread looks whether the loop has turned."""
REPORT_SECONDS = 2.0
"""How long before the supervisor kills a silent actor its stack is written."""
PAUSE_SECONDS = 1.5
"""Longer than the interval of heartbeats (`transport.Limits`)."""
PROTECTED = re.compile(
    r"(actors|transport|agent_rl(?!\.environments)|trio|outcome|sortedcontainers|attrs?|structlog|zmq)\b"
)
"""Modules in whose functions nothing is interrupted: an exception could break the actor's state or the loop's."""


@dataclass(frozen=True, eq=False, slots=True)
class _Running:
    """Code of users that runs: the seconds for which it may block the loop."""

    seconds: float
    process: int


_RUNNING: ContextVar[_Running | None] = ContextVar("interruptible", default=None)
"""The code of users that runs now. Tasks that the code starts inherit it."""


_LEAVE = os._exit


def _leave(status: int) -> NoReturn:
    """`os._exit` that raises SystemExit in code of users: it would end the actor, and nobody could say where."""
    running = _RUNNING.get()
    if running is not None and running.process == os.getpid():  # a process that the code has forked may leave
        raise SystemExit(f"os._exit({status}) would end the whole actor")
    _LEAVE(status)


@contextmanager
def interruptible(seconds: float = inf) -> Iterator[None]:
    """Mark the block as code of users, which cannot leave the process by `os._exit`.

    After ``seconds`` without a turn of the loop, 3 at most, it gets BlockedError.

    Raises that BlockedError itself where nurseries have put it into groups.
    """
    os._exit = _leave
    token = _RUNNING.set(_Running(min(seconds, BLOCKED_SECONDS), os.getpid()))
    try:
        yield
    except BaseExceptionGroup as group:
        blocked, _ = group.split(BlockedError)
        if blocked is None:
            raise
        error: BaseException = blocked
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
    finally:
        _RUNNING.reset(token)


class Pause:
    """Lets the loop turn after code of users has blocked it, before any other code of users begins.

    Otherwise the rollouts of a group, which often come together, would block the loop one after the other, and peers
    would take the actor for lost.
    """

    def __init__(self) -> None:
        self._until = -inf

    async def over(self) -> None:
        """Wait for the end of the pause. Nothing runs between its end and what follows."""
        while trio.current_time() < self._until:  # noqa: ASYNC110  another call may have begun a new pause
            await trio.sleep_until(self._until)

    def begin(self) -> None:
        """The loop was blocked just now."""
        self._until = trio.current_time() + PAUSE_SECONDS


class Watchdog:
    """Watches the event loop of an actor's process. ``run`` must be called in the main thread.

    ``silent_seconds`` is when the supervisor kills the actor; ``report`` is a file for its stack, None for no report.
    """

    def __init__(self, silent_seconds: float = inf, report: int | None = None) -> None:
        self._report = report
        self._report_after = max(1.0, silent_seconds - REPORT_SECONDS) if silent_seconds < inf else None
        self._stopping = threading.Event()
        self._turned = True
        self._blocking: _Running | None = None
        self._looks = 0
        """At how many looks in a row ``_blocking`` held the loop."""

    async def run(self) -> None:
        """Watch until cancelled."""
        before = signal.signal(signal.SIGURG, self._interrupt)
        self._arm()  # what an actor gets again at its start may block it before the thread's first look
        try:
            token, main = trio.lowlevel.current_trio_token(), threading.get_ident()
            await trio.to_thread.run_sync(
                self._watch, token, main, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1)
            )
        finally:
            self._stopping.set()
            faulthandler.cancel_dump_traceback_later()
            signal.signal(signal.SIGURG, before)

    def _watch(self, token: trio.lowlevel.TrioToken, main: int) -> None:
        """In the thread."""
        while not self._stopping.wait(TICK_SECONDS):
            if self._turned:
                self._turned = False
                self._arm()
                with suppress(trio.RunFinishedError):
                    token.run_sync_soon(self._turn)
            else:
                signal.pthread_kill(main, signal.SIGURG)

    def _arm(self) -> None:
        if self._report is not None and self._report_after is not None:
            faulthandler.dump_traceback_later(self._report_after, file=self._report)

    def _turn(self) -> None:
        """In the loop: it turns. A report of a time when it did not is void."""
        self._turned, self._blocking = True, None
        if self._report is not None and os.lseek(self._report, 0, os.SEEK_END):
            os.ftruncate(self._report, 0)
            os.lseek(self._report, 0, os.SEEK_SET)

    def _interrupt(self, _number: int, frame: FrameType | None) -> None:
        """In the main thread, while the loop stands. Raises BlockedError in code of users that has held it too long."""
        running, innermost = _RUNNING.get(), _innermost(frame)
        if running is None or innermost is None:
            return
        self._looks = self._looks + 1 if running is self._blocking else 1
        self._blocking = running
        if self._looks * TICK_SECONDS < running.seconds:
            return
        self._looks = 0
        place = (
            place_in(traceback.extract_stack(innermost))
            or f"{innermost.f_code.co_filename}, line {innermost.f_code.co_firstlineno}"
        )
        raise BlockedError(
            f"it held the event loop for {running.seconds:g} s without an await; await what takes long, or run it with "
            f"context.in_thread ({place})"
        )


def _innermost(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is not the standard library's; None where it is the actor's own."""
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if PROTECTED.match(module):
            return None
        if module.partition(".")[0] not in sys.stdlib_module_names:
            return frame
        frame = frame.f_back
    return None


def blocked_at(report: str) -> str:
    """Where the loop stood in code of users, by faulthandler's ``report``: ``name (file, line n)``, or nothing."""
    stacks = re.split(r"^(?:Thread|Current thread) 0x\w+.*\n", report, flags=re.MULTILINE)
    mains = [stack for stack in stacks if 'lifeline.py"' in stack]
    for file, line, name in re.findall(r'^  File "(.*)", line (\d+) in (.*)$', (mains or stacks)[-1], re.MULTILINE):
        if place := place_in([traceback.FrameSummary(file, int(line), name, lookup_line=False)]):
            return f"{name} ({place})"
    return ""


T = TypeVar("T")

THREAD_WAIT_SECONDS = 60.0
"""How long a call waits for a thread. Threads that come back do so sooner; those that hang may never."""


class DeadlineError(Exception):
    """The code went on beyond its deadline, and was given up; the message says where it was, where that is known."""


class NoThreadError(Exception):
    """Every thread is held by a call that hangs; the message names them."""


class Deadline:
    """Seconds of its own time that a piece of code has."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._scope = trio.CancelScope(deadline=trio.current_time() + seconds)
        self._suspensions = 0
        self.hangs_at = ""

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self._left if self._suspensions else max(0.0, self._scope.deadline - trio.current_time())

    @contextmanager
    def enforced(self) -> Iterator[None]:
        """Count the time of the block. Raises DeadlineError when it was too much, and BlockedError."""
        self._scope.deadline = trio.current_time() + self._left
        with self._scope, interruptible(self._left):
            yield
        if self._scope.cancelled_caught:
            raise DeadlineError(self.hangs_at)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Count nothing meanwhile."""
        if not self._suspensions:
            self._left, self._scope.deadline = self.left, inf
        self._suspensions += 1
        try:
            yield
        finally:
            self._suspensions -= 1
            if not self._suspensions:
                self._scope.deadline = trio.current_time() + self._left


class Threads:
    """At most ``most`` threads for code that blocks. A call that hangs keeps its thread until the call returns."""

    def __init__(
        self, most: int, in_thread: Callable[..., Awaitable[Any]], wait_seconds: float = THREAD_WAIT_SECONDS
    ) -> None:
        self.most, self.wait_seconds = most, wait_seconds
        self.limiter = trio.CapacityLimiter(most)
        self._in_thread = in_thread
        self.hung: dict[object, str] = {}
        """Those that are taken by calls that were given up: which tool, and where it is."""

    async def run(self, work: Callable[[], T], deadline: Deadline, name: str) -> T:
        """Run ``work`` in a thread, called ``name`` in messages. Raises what it raises, and NoThreadError."""
        place = _Place(self, deadline)
        identity: list[int] = []

        def identified() -> T:
            identity.append(threading.get_ident())
            return work()

        try:
            result: T = await self._in_thread(identified, abandon_on_cancel=True, limiter=place)
        except trio.Cancelled:
            frame = sys._current_frames().get(identity[0]) if identity else None  # noqa: SLF001
            if frame is not None and place.held:
                deadline.hangs_at = place_in(traceback.extract_stack(frame))
                self.hung[place] = f"{name} ({deadline.hangs_at})" if deadline.hangs_at else name
            raise
        return result


class _Place:
    """A thread's place, waiting for which no time is counted; trio takes it for a limiter."""

    def __init__(self, threads: Threads, deadline: Deadline) -> None:
        self._threads, self._deadline = threads, deadline
        self.held = False

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        """Wait for it. Raises NoThreadError when none comes back."""
        threads = self._threads
        with self._deadline.suspended(), trio.move_on_after(threads.wait_seconds):
            await threads.limiter.acquire_on_behalf_of(borrower)
            self.held = True
        if not self.held:
            who = ", ".join(sorted(set(threads.hung.values())))
            taken = f"all {threads.most} threads for code that blocks are taken"
            raise NoThreadError(f"{taken}, {len(threads.hung)} of them by calls that hang: {who}")

    def release_on_behalf_of(self, borrower: object) -> None:
        """The thread's work has ended."""
        self.held = False
        self._threads.hung.pop(self, None)
        self._threads.limiter.release_on_behalf_of(borrower)
