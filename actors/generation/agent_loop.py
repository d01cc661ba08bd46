"""The agent loop of a generator: the engine writes a turn, tools or the environment answer it, until the episode has ended.

::

    Episode.tokens --> engine.generate --> Episode.wrote --> calls: ToolCall... --> Episode.responded --+
        ^                                              `---> none: ObserveTurn ---> Episode.observed ---+
        +-----------------------------------------------------------------------------------------------+
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from actors.engines.base import EngineError, TurnRequest
from actors.generation.tool_calls import ToolCaller, ToolsUnavailableError
from agent_rl.messages import Float32Vector, Int32Matrix, Int32Vector, ObserveTurn, ToolCallRecord, TurnObserved
from agent_rl.rollout.parsing import MalformedCall, ParsedCall

if TYPE_CHECKING:
    from actors.base import ActorContext
    from actors.engines.base import Engine
    from agent_rl.messages import Policy
    from agent_rl.rollout.episode import Episode
    from agent_rl.rollout.prompts import ChatFormat


class EnvironmentFaultError(Exception):
    """The environment did not answer a turn, through a fault of its own; the message says where."""


class AgentLoop:
    """Runs episodes, any number at once."""

    def __init__(self, context: ActorContext, chat: ChatFormat, engine: Engine, tools: ToolCaller) -> None:
        self._context = context
        self.chat = chat
        self._engine = engine
        self._tools = tools

    @property
    def policy(self) -> Policy:
        """The policy served now."""
        return self._engine.policy

    async def run(self, episode: Episode) -> None:
        """Run an episode to its end. Raises EngineError, ToolsUnavailableError and EnvironmentFaultError."""
        while episode.ended is None:
            turn, stopped = await self.write(episode)
            calls = episode.wrote(*turn, stopped=stopped)
            if calls:
                responses, records = await self.answer(episode, calls)
                episode.responded(responses, records, self._engine.policy)
            elif episode.ended is None:
                episode.observed(await self._observed(episode), self._engine.policy)

    async def _observed(self, episode: Episode) -> TurnObserved:
        """The environment's answer to the last turn. Raises ToolsUnavailableError and EnvironmentFaultError."""
        request = episode.request
        asked = ObserveTurn(request.rollout, request.problem, episode.transcript, episode.state, request.seed)
        answer = await self._tools.observe(asked)
        if answer.fault:
            raise EnvironmentFaultError(answer.fault)
        return answer

    async def write(self, episode: Episode) -> tuple[tuple[Int32Vector, Float32Vector, Int32Matrix], bool]:
        """Have the engine write a turn: its arrays, as of `Episode.wrote`, and whether it stopped. Raises EngineError."""
        request = episode.request
        result = await self._engine.generate(
            TurnRequest(
                rollout=request.rollout,
                tokens=episode.tokens,
                max_tokens=episode.budget,
                temperature=request.sampling.temperature,
                stop_tokens=self.chat.stop_tokens,
                seed=request.seed,
            )
        )
        turn, stopped = (result.tokens, result.logprobs, result.policies), result.finish == "stop"
        if wrong := episode.rubbish(*turn, stopped=stopped, stop=self.chat.stop_tokens):
            raise EngineError(f"the engine returned {wrong}")
        return turn, stopped

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
