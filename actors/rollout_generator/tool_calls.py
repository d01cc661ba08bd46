"""Tool calls of a generator: their order, their executor, further attempts, states, and the text of results.

::

    ToolCaller.call --> a place, in turn --> the executor with the fewest calls, or the rollout's --> ToolResult
                                                 |  lost, silent, or without an interpreter
                                                 `--> another, up to tool_attempts --> ToolsUnavailableError
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from actors.fair_queue import FairQueue
from agent_rl.config.plugins import described
from agent_rl.environments.base import ToolOutput
from agent_rl.environments.load import Toolboxes
from agent_rl.environments.tools import rendered
from agent_rl.messages import ObserveTurn, RolloutRequest, ToolCall, ToolOutcome, ToolResult, TurnObserved
from agent_rl.rollout.parsing import ParsedCall, cut_middle, harmless
from transport import CallFailed, CallTimeout, PeerLost

if TYPE_CHECKING:
    from actors.base import ActorContext
    from agent_rl.environments.base import Tool
    from agent_rl.messages import Problem
    from agent_rl.rollout.episode import RolloutTally

END_SECONDS = 30.0
"""Deadline of the call that tells an executor the end of a rollout."""


class ToolsUnavailableError(Exception):
    """No executor could run a call: a failure of the infrastructure, not of the model."""


def first_of(errors: BaseExceptionGroup[Exception]) -> Exception:
    """An error in a group of groups."""
    error = errors.exceptions[0]
    return first_of(error) if isinstance(error, BaseExceptionGroup) else error


@dataclass(frozen=True, slots=True)
class ToolResponse:
    """The text that the model reads of a call, and the outcome. ``cut``: the text was longer."""

    text: str
    outcome: ToolOutcome
    run_seconds: float
    cut: bool


class ToolCaller:
    """The calls of all rollouts of a generator, over its link ``tools``."""

    def __init__(self, context: ActorContext, tally: RolloutTally, toolboxes: Toolboxes) -> None:
        self._context = context
        self._tally = tally
        self._toolboxes = toolboxes
        self._places = FairQueue(0)

    @property
    def waiting(self) -> int:
        """Number of calls that wait for a place."""
        return self._places.waiting

    def tool(self, request: RolloutRequest, name: str) -> Tool | None:
        """The tool of this name in the rollout's environment."""
        return self._toolboxes[request.problem.environment].get(name)

    async def call(
        self, request: RolloutRequest, number: str, call: ParsedCall, states: dict[str, bytes]
    ) -> ToolResponse:
        """Run a call when its turn comes. ``number``: its name within the rollout. Raises ToolsUnavailableError.

        ``states``: the rollout's snapshots, by tool; a call of a tool with state changes them. The caller makes such
        calls one after the other.
        """
        tool, rollout = self.tool(request, call.name), request.rollout
        stateful = tool is not None and tool.stateful
        message = ToolCall(
            call=f"{rollout}/{number}",
            rollout=rollout,
            tool=call.name,
            arguments=call.arguments,
            problem=request.problem,
            seed=request.seed,
            state=states.setdefault(call.name, b"") if stateful else b"",
        )
        async with self._place(rollout):
            result: ToolResult = await self._ask("tools", message, message.call, rollout if stateful else None)
        if stateful and result.state is not None:
            states[call.name] = result.state
        return self._response(tool, result)

    def known(self, problem: Problem) -> Mapping[str, Tool]:
        """The tools of the problem's environment, by name."""
        return self._toolboxes[problem.environment]

    async def observe(self, turn: ObserveTurn) -> TurnObserved:
        """The environment's answer to a turn, from any executor. Raises ToolsUnavailableError."""
        async with self._place(turn.rollout):
            what = f"turn {len(turn.transcript.texts)} of {turn.rollout}"
            answer: TurnObserved = await self._ask("turns", turn, what, None)
        return answer

    def _place(self, rollout: str) -> AbstractAsyncContextManager[None]:
        """A place in turn. Their number follows that of the executors: hosts with executors may join and leave."""
        executors = len(self._context.node.targets("tools"))
        self._places.resize(self._context.settings.tool_calls_outstanding * executors)
        return self._places.place(rollout)

    def end(self, request: RolloutRequest, states: Mapping[str, bytes]) -> None:
        """The rollout has ended: where it called tools with state, tell the executor that has its sessions."""
        if states:
            self._context.nursery.start_soon(self._end, request)

    def _response(self, tool: Tool | None, result: ToolResult) -> ToolResponse:
        settings = self._context.settings
        output = ToolOutput(
            outcome=result.outcome,
            stdout=result.stdout,
            stderr=result.stderr,
            value=result.value,
            note=result.note,
            run_seconds=result.run_seconds,
        )
        if output.outcome == "error" and settings.error_detail == "last_line":
            output = replace(output, stderr=output.stderr.rstrip().rpartition("\n")[2])
        outcome = output.outcome
        try:
            text = harmless((rendered if tool is None else tool.render)(output))
        except Exception as error:  # noqa: BLE001 - the user's code; the model reads of the failure
            self._context.log.warning("a tool cannot render its result", call=result.call, error=described(error))
            outcome = "error"
            text = harmless(f"Error: the result cannot be shown: {type(error).__name__}: {error}")
        shown = cut_middle(text, settings.tool_response_chars)
        return ToolResponse(shown, outcome, result.run_seconds, len(shown) < len(text))

    async def _ask(self, link: str, request: Any, what: str, key: str | None) -> Any:
        """The reply of an executor, with ``key`` of the one the key is pinned to. Raises ToolsUnavailableError."""
        settings = self._context.settings
        for attempt in range(1, settings.tool_attempts + 1):
            error = "no executor ran it"
            await self._context.link(link).until_reachable()  # while there is no executor, rollouts wait
            try:
                reply = await self._context.link(link)(request, timeout=settings.tool_timeout_seconds, key=key)
                if not (isinstance(reply, ToolResult) and reply.outcome == "unavailable"):
                    return reply
                error = reply.stderr or error
            except (CallTimeout, PeerLost, CallFailed) as failure:
                error = str(failure)
            self._tally.calls_failed += 1
            self._context.log.warning("tool call failed", call=what, attempt=attempt, error=error)
        raise ToolsUnavailableError(
            f"tools unavailable: {what} had no result in {settings.tool_attempts} attempts; the last: {error}"
        )

    async def _end(self, request: RolloutRequest) -> None:
        """Tell the executor the rollout's end. If the call is lost, its session stays until the place is needed."""
        rollout, tools = request.rollout, self._context.link("tools")
        over = ToolCall(f"{rollout}/end", rollout, "", {}, request.problem, request.seed, ends=True)
        try:
            await tools(over, timeout=END_SECONDS, key=rollout)
        except (CallTimeout, PeerLost, CallFailed) as error:
            self._context.log.info("an executor does not know of a rollout's end", rollout=rollout, error=str(error))
        finally:
            tools.forget(rollout)
