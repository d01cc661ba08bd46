"""How long trusted code may take: a deadline that stops while the code waits for the sandbox, and bounded threads.

::

    with deadline.enforced():                 the code's own time is counted
        await tool.call(...)
            await sandbox.execute(...)        with deadline.suspended(): it is not
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any, TypeVar

import trio

from actors.blocking import interruptible
from agent_rl.config.plugins import place_in

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
