"""The agent loop of a generator: the engine writes a turn, tools answer its calls, until the episode has ended.

::

    Episode.tokens --> engine.generate --> Episode.wrote --> ToolCall... --> Episode.responded --+
        ^                                                                                        |
        +----------------------------------------------------------------------------------------+
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from actors.engines.base import EngineError, TurnRequest
from actors.generation.tool_calls import ToolCaller, ToolsUnavailableError
from agent_rl.messages import ToolCallRecord
from agent_rl.rollout.parsing import MalformedCall, ParsedCall

if TYPE_CHECKING:
    from actors.base import ActorContext
    from actors.engines.base import Engine
    from agent_rl.rollout.episode import Episode
    from agent_rl.rollout.prompts import ChatFormat


class AgentLoop:
    """Runs episodes, any number at once."""

    def __init__(self, context: ActorContext, chat: ChatFormat, engine: Engine, tools: ToolCaller) -> None:
        self._context = context
        self._chat = chat
        self._engine = engine
        self._tools = tools

    async def run(self, episode: Episode) -> None:
        """Run an episode to its end. Raises EngineError and ToolsUnavailableError."""
        while episode.ended is None:
            calls = await self._write(episode)
            if calls:
                responses, records = await self.answer(episode, calls)
                episode.responded(responses, records, self._engine.policy)

    async def _write(self, episode: Episode) -> tuple[ParsedCall | MalformedCall, ...]:
        """Have the engine write a turn; its calls. Raises EngineError."""
        request = episode.request
        result = await self._engine.generate(
            TurnRequest(
                rollout=request.rollout,
                tokens=episode.tokens,
                max_tokens=episode.budget,
                temperature=request.sampling.temperature,
                stop_tokens=self._chat.stop_tokens,
                seed=request.seed,
            )
        )
        turn, stopped = (result.tokens, result.logprobs, result.policies), result.finish == "stop"
        if wrong := episode.rubbish(*turn, stopped=stopped, stop=self._chat.stop_tokens):
            raise EngineError(f"the engine returned {wrong}")
        return episode.wrote(*turn, stopped=stopped)

    async def answer(
        self, episode: Episode, calls: Sequence[ParsedCall | MalformedCall]
    ) -> tuple[list[str], list[ToolCallRecord]]:
        """The turn's calls run at once, within bounds; responses and records come back in their order."""
        if len(calls) == 1:  # as in most turns: tasks of their own would be a tenth of what the loop costs
            text, record = await self.call(episode, 0, calls[0])
            return [text], [record]
        answers: list[tuple[str, ToolCallRecord] | None] = [None] * len(calls)
        left = iter(enumerate(calls))
        failed: list[ToolsUnavailableError] = []

        async def work() -> None:
            try:
                for index, call in left:
                    answers[index] = await self.call(episode, index, call)
            except ToolsUnavailableError as error:
                failed.append(error)
                nursery.cancel_scope.cancel()

        tools = [self._tools.tool(episode.request, call.name) for call in calls if isinstance(call, ParsedCall)]
        builds = any(tool is not None and tool.stateful for tool in tools)  # each call may build on the one before
        at_once = 1 if builds else self._context.settings.tool_calls_at_once
        async with trio.open_nursery() as nursery:
            for _ in range(min(at_once, len(calls))):
                nursery.start_soon(work)
        if failed:
            raise failed[0]
        done = [answer for answer in answers if answer is not None]
        return [text for text, _ in done], [record for _, record in done]

    async def call(self, episode: Episode, index: int, call: ParsedCall | MalformedCall) -> tuple[str, ToolCallRecord]:
        """What the model reads of one call, and the record of it. Raises ToolsUnavailableError."""
        turn = episode.turns
        if isinstance(call, MalformedCall):
            return call.error, ToolCallRecord(turn, "", "malformed", 0.0, 0.0, response=call.error)
        started = self._context.now()
        result = await self._tools.call(episode.request, f"{turn}.{index}", call)
        seconds = self._context.now() - started
        times = (result.run_seconds, seconds)
        return result.text, ToolCallRecord(
            turn, call.name, result.outcome, *times, result.cut, call.arguments, result.text
        )
