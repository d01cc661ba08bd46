"""A generator's side of tool calls: whose turn it is, which executor runs a call, what becomes of a lost one's, sessions.

::

    ToolCaller.call --> a place, in turn --> the executor with the fewest calls, or the session's --> ToolResult
                                                 |  lost, silent, or without an interpreter
                                                 `--> another, up to tool_attempts --> ToolsUnavailableError
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from actors.fair_queue import FairQueue
from agent_rl.messages import ToolCall, ToolResult
from agent_rl.rollout.parsing import ParsedCall
from agent_rl.rollout.prompts import JUPYTER_TOOL, SESSION_TOOLS
from transport import CallFailed, CallTimeout, PeerLost

if TYPE_CHECKING:
    from actors.base import ActorContext
    from agent_rl.rollout.episode import RolloutTally

END_SESSION_SECONDS = 30.0
"""How long it is tried to tell an executor that a session is over."""


class ToolsUnavailableError(Exception):
    """The tool service could not run a call: the infrastructure's failure, not the model's."""


@dataclass
class ToolSession:
    """A rollout's calls of a tool with state: how many there were, and the code of those that its state consists of."""

    calls: int = 0
    kept: list[str] = field(default_factory=list)

    def next_cell(self) -> int:
        """The number of the next call."""
        self.calls += 1
        return self.calls


class ToolCaller:
    """The calls of all rollouts of a generator, over its link ``tools``."""

    def __init__(self, context: ActorContext, tally: RolloutTally) -> None:
        roles = context.topology.actors
        executors = sum(roles[role].replicas for role in roles[context.role].targets("tools"))
        self._context = context
        self._tally = tally
        self._places = FairQueue(context.settings.tool_calls_outstanding * executors)
        self._sessions: dict[str, ToolSession] = {}

    @property
    def waiting(self) -> int:
        """Calls that wait for a place."""
        return self._places.waiting

    async def call(self, rollout: str, number: str, turn: int, call: ParsedCall) -> ToolResult:
        """What became of a call, ``number`` within its rollout; waits for its turn. Raises ToolsUnavailableError."""
        session = self._sessions.setdefault(rollout, ToolSession()) if call.name in SESSION_TOOLS else None
        request = ToolCall(
            call=f"{rollout}/{number}",
            session=rollout,
            cell=turn if session is None else session.next_cell(),
            tool=call.name,
            arguments=call.arguments,
            earlier=() if session is None else tuple(session.kept),
        )
        async with self._places.place(rollout):
            result = await self._ask(request, None if session is None else rollout)
        if session is not None and result.kept:
            session.kept.append(call.arguments["code"])
        return result

    def end(self, rollout: str) -> None:
        """The rollout has ended: its session is over."""
        if self._sessions.pop(rollout, None) is not None:
            self._context.nursery.start_soon(self._end_session, rollout)

    async def _ask(self, request: ToolCall, key: str | None) -> ToolResult:
        """The result of some executor, with ``key`` of the one the key is pinned to. Raises ToolsUnavailableError."""
        settings = self._context.settings
        for attempt in range(1, settings.tool_attempts + 1):
            error = "no executor ran it"
            try:
                result: ToolResult = await self._context.link("tools")(
                    request, timeout=settings.tool_timeout_seconds, key=key
                )
                if result.outcome != "unavailable":
                    return result
            except (CallTimeout, PeerLost, CallFailed) as failure:
                error = str(failure)
            self._tally.calls_failed += 1
            self._context.log.warning("tool call failed", call=request.call, attempt=attempt, error=error)
        raise ToolsUnavailableError(
            f"tools unavailable: {request.call} had no result in {settings.tool_attempts} attempts; the last: {error}"
        )

    async def _end_session(self, rollout: str) -> None:
        """Tell the session's executor that it is over. Where that gets lost, the session stays until its place is needed."""
        tools = self._context.link("tools")
        over = ToolCall(f"{rollout}/end", rollout, 0, JUPYTER_TOOL, {}, ends=True)
        try:
            await tools(over, timeout=END_SESSION_SECONDS, key=rollout)
        except (CallTimeout, PeerLost, CallFailed) as error:
            self._context.log.info("session not ended", session=rollout, error=str(error))
        finally:
            tools.forget(rollout)
