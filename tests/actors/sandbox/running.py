"""Sandboxes for tests: run one, know what the host allows, look for processes by the name they gave themselves."""

import contextlib
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio

from actors.sandbox.isolation.levels import IsolationError
from actors.sandbox.owner.client import ExecutionLimits, Sandbox
from actors.sandbox.owner.pool import Pool
from agent_rl.environments.base import ToolOutput
from benchmarks.tool_processes import children_of

P = TypeVar("P", bound=Pool)


@asynccontextmanager
async def live(pool: P) -> AsyncIterator[P]:
    """It, running."""
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(pool.run)
            yield pool
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def sandboxed(
    level: Any = "host", *, groups: Sequence[str] | None = None, **settings: Any
) -> AsyncIterator[Sandbox]:
    """A running sandbox. The test is skipped where the host lacks its level, or control groups that it asks for."""
    await trio.to_thread.run_sync(require, level)
    if groups is not None:
        await trio.to_thread.run_sync(groups_or_skip, *groups)
    async with live(Sandbox(isolation=level, **settings)) as sandbox:
        yield sandbox


def run_with(pool: P, main: Callable[[P], Awaitable[Any]]) -> Any:
    async def body() -> Any:
        async with live(pool):
            return await main(pool)

    return trio.run(body)


def execute_all(codes: list[str], limits: ExecutionLimits | None = None, **settings: Any) -> list[ToolOutput]:
    async def main(sandbox: Sandbox) -> list[ToolOutput]:
        return [await sandbox.execute(code, limits=limits) for code in codes]

    return run_with(Sandbox(**settings), main)


@functools.cache
def lacking(level: Any) -> str:
    """Why the host can't have a level of isolation; empty when it can."""

    async def nothing(sandbox: Sandbox) -> str:
        return ""

    try:
        return run_with(Sandbox(isolation=level), nothing)
    except BaseExceptionGroup as group:
        refusals, rest = group.split(IsolationError)
        if rest is not None or refusals is None:
            raise
        return str(refusals.exceptions[0])


def require(level: str) -> None:
    """Skip the test where the host lacks what it tests, saying so."""
    reason = lacking(level)
    if reason:
        pytest.skip(f"this host does not allow it: {reason}")


def named(name: str) -> str:
    """Code that gives its process, and those it forks later, a name of at most 15 letters, which ``living`` finds."""
    return f"import ctypes\n_ = ctypes.CDLL(None).prctl(15, b{name!r})\n"


def pids(name: str) -> list[int]:
    """The processes of the host that have the name."""
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if is_alive(int(path.parent.name)) and path.read_text() == f"{name}\n":
                found.append(int(path.parent.name))
    return found


def commands(*words: bytes) -> list[int]:
    """The processes of the host whose command has all these words."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has just ended
            said = path.read_bytes()
            found += [int(path.parent.name)] * all(word in said for word in words)
    return found


def below(pid: int) -> list[int]:
    """All processes that a process, or one below it, has started and not reaped."""
    found = children_of(pid)
    return [*found, *(other for child in found for other in below(child))]


def living(name: str) -> int:
    """How many processes of the host have the name."""
    return len(pids(name))


def state(pid: int) -> str:
    """Z when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def is_alive(pid: int) -> bool:
    return state(pid) != "Z"


def interpreter_pid(sandbox: Sandbox) -> int:
    process = sandbox._ready[0]._process
    return process.pid


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while not (held := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)  # the kernel's business: there is no event for processes of others
    return held  # not asked again: it may hold for a moment alone


async def eventually(condition: Callable[[], bool]) -> bool:
    return await trio.to_thread.run_sync(wait_until, condition)


def groups_or_skip(*controllers: str) -> dict[str, str]:
    """The limits of a sandbox's control groups. Skips the test where the wanted ones, or all, are unavailable."""

    async def found(sandbox: Sandbox) -> tuple[dict[str, str], list[str]]:
        return sandbox.groups.limits, sandbox.groups.lacking

    limits, lacking = run_with(Sandbox(), found)
    if not limits or any(name not in limits for name in controllers):
        pytest.skip(f"this host does not allow control groups: {'; '.join(lacking)}")
    return limits
