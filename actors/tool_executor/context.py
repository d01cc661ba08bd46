"""The services of an executor for the code of tools and environments: the `Context` of `agent_rl.environments.base`."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from actors.sandbox.owner.client import Sandbox
from actors.sandbox.owner.functions import FunctionSandbox
from actors.sandbox.owner.interpreter import ExecutionLimits
from actors.tool_executor.mcp_servers import McpServers
from actors.user_threads import Deadline, Pause, Threads
from agent_rl.environments.base import BadArgumentError, BlockedError, CheckUnavailableError, ToolOutput
from agent_rl.messages import JudgementWanted, ObserveTurn, ToolCall

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Services:
    """The state that all contexts of an executor share. ``functions`` is None where no tool's code runs in the
    sandbox.
    """

    sandbox: Sandbox
    checks: FunctionSandbox
    functions: FunctionSandbox | None
    threads: Threads
    pause: Pause
    servers: McpServers


class ExecutorContext:
    """The `Context` of one call.

    Use::

        async with context.enforced():
            output = await tool.call(arguments, state, context)
    """

    def __init__(
        self,
        services: Services,
        asked: ToolCall | ObserveTurn | JudgementWanted,
        seconds: float,
        *,
        log: Any,
        name: str,
        key: str,
    ) -> None:
        """``asked`` is what the code is run for, ``seconds`` its deadline.

        ``name`` is the code's, for messages and for its session of cells; under the same ``key`` a cell runs once.
        """
        self._services = services
        self.seconds, self._deadline = seconds, Deadline(seconds)
        self._name, self._key, self._judges = name, key, isinstance(asked, JudgementWanted)
        self.rollout, self.problem, self.seed, self._log = asked.rollout, asked.problem, asked.seed, log
        self.queue_seconds = 0.0
        """Waiting for the sandbox so far."""

    @cached_property
    def log(self) -> Any:
        """The executor's log, with the code's name and the rollout. Bound when first used: most code logs nothing."""
        return self._log.bind(code=self._name, rollout=self.rollout)

    @asynccontextmanager
    async def enforced(self) -> AsyncIterator[None]:
        """Within it the deadline holds. Raises DeadlineError and BlockedError."""
        await self._services.pause.over()
        try:
            with self._deadline.enforced():
                yield
        except BlockedError:
            self._services.pause.begin()
            raise

    @property
    def deadline(self) -> float:
        """Seconds that are left."""
        return self._deadline.left

    async def execute(self, code: str, stdin: str = "", *, seconds: float | None = None) -> ToolOutput:
        """Run untrusted Python in a fresh child of the sandbox."""
        with self._deadline.suspended():
            limits = self._limits(seconds)
            return self._waited(await self._services.sandbox.execute(code, stdin, limits=limits, name=self.rollout))

    async def run_cell(self, code: str, earlier: Sequence[str], *, seconds: float | None = None) -> ToolOutput:
        """Run untrusted Python on top of the cells ``earlier``."""
        session = session_name(self.rollout, self._name)
        with self._deadline.suspended():
            limits = self._limits(seconds)
            return self._waited(await self._services.sandbox.run_cell(session, self._key, code, earlier, limits=limits))

    async def call(self, function: str, *arguments: str) -> ToolOutput:
        """Call ``module:name`` with texts in a fresh child of the sandbox."""
        if self._services.functions is None:
            raise RuntimeError('Context.call needs a tool with runs = "sandbox" in the run, whose interpreters it uses')
        with self._deadline.suspended():
            return self._waited(await self._services.functions.call(function, *arguments, name=self.rollout))

    async def check(self, function: str, *arguments: str) -> str:
        """Call ``module:name``, trusted code, in a checker's child. Raises CheckError, CheckUnavailableError."""
        with self._deadline.suspended():
            group = self.rollout.partition("/")[0]  # its samples often share an answer that is hard to judge
            return await self._services.checks.check(function, *arguments, name=group)

    async def ask_server(
        self, server: str, tool: str, arguments: Mapping[str, Any], *, again: bool = False
    ) -> ToolOutput:
        """Call a tool of an MCP server of the environment. Raises BadArgumentError, and CheckUnavailableError where a
        judgement needs a server that does not start: it is asked for again.
        """
        call, environment = self._services.servers.call, self.problem.environment
        waiting = self._deadline.suspended
        output = await call(environment, server, tool, arguments, rollout=self.rollout, again=again, waiting=waiting)
        if self._judges and output.outcome == "unavailable":
            raise CheckUnavailableError(output.stderr)
        return output

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run what blocks in one of the executor's threads."""
        return await self._services.threads.run(work, self._deadline, self._name)

    def _limits(self, seconds: float | None) -> ExecutionLimits:
        limits = self._services.sandbox.settings.limits
        if seconds is None:
            return limits
        if not 0 < seconds <= limits.wall_seconds:
            raise BadArgumentError(f"a call may take up to {limits.wall_seconds:g} seconds, not {seconds:g}")
        return dataclasses.replace(limits, wall_seconds=float(seconds))

    def _waited(self, output: ToolOutput) -> ToolOutput:
        self.queue_seconds += output.queue_seconds
        return output


def session_name(rollout: str, name: str) -> str:
    """The session in the sandbox of a rollout's tool."""
    return f"{rollout} {name}"
