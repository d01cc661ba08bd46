"""A rollout by a user's own loop: ``async def rollout(problem, model, tools)`` in place of the agent loop.

::

    rollout(problem, model, tools) --messages--> model --> Conversation --> engine.generate --> the turn's text
                                   `-arguments-> tools["name"] -----------> ToolCall, ToolResult --> the result's text

The loop runs in the generator. Its own time, without waiting for ``model`` and ``tools``, is bounded. The rollout ends
when the loop returns. When the model has no turn or token left, and when engine or executors fail, the loop is
cancelled; it never sees such a failure.

A loop may call ``model`` several times at once, and open conversations beside the first one with ``model.branch()``. A
turn may have all tokens that turns under way leave, or ``max_tokens``; one that gets none waits for those to end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NoReturn

import trio

from actors.engines.base import EngineError
from actors.rollout_generator.agent_loop import AgentLoop, EnvironmentFaultError
from actors.rollout_generator.tool_calls import ToolsUnavailableError
from actors.user_threads import Deadline, DeadlineError
from agent_rl.config.plugins import ContractError, defined_at, place_of
from agent_rl.environments.base import BlockedError
from agent_rl.rollout.conversation import Conversation
from agent_rl.rollout.parsing import ParsedCall

if TYPE_CHECKING:
    from actors.user_threads import Pause
    from agent_rl.environments.base import Rollout, Tool
    from agent_rl.rollout.episode import Episode, Strand


class LoopModel:
    """The ``model`` of a loop: called with messages, it returns the model's next turn."""

    def __init__(self, loop: UserLoop, conversation: Conversation) -> None:
        self._loop = loop
        self._conversation = conversation

    async def __call__(self, messages: object, *, max_tokens: int | None = None) -> str:
        """The model's next turn after these messages, of at most ``max_tokens`` tokens."""
        return await self._loop.write(self._conversation, messages, max_tokens)

    def branch(self) -> LoopModel:
        """A conversation of its own, of a sub-agent for instance. Its turns are trained with the rollout's reward."""
        return LoopModel(self._loop, self._loop.conversation())


class UserLoop:
    """One rollout by a user's own loop."""

    def __init__(
        self, agent: AgentLoop, episode: Episode, tools: Mapping[str, Tool], seconds: float, pause: Pause
    ) -> None:
        """``seconds``: limit of the loop's own time; ``pause``: of the generator, after a loop has blocked it."""
        self._agent = agent
        self._episode = episode
        self._writing: dict[int, Strand] = {}
        """The strands whose turns are being written."""
        self._turn_over = trio.lowlevel.ParkingLot()
        self._known = tools
        self._deadline = Deadline(seconds)
        self._seconds = seconds
        self._pause = pause
        self._scope = trio.CancelScope()
        self._calls = 0
        self._in_order = trio.Lock()
        self._failure: Exception | BlockedError | None = None

    async def run(self, rollout: Rollout) -> None:
        """Run the loop. Raises EngineError, ToolsUnavailableError, and EnvironmentFaultError for the loop's faults."""
        episode = self._episode
        fault = ""
        await self._pause.over()
        try:
            with self._scope, self._deadline.enforced():
                model = LoopModel(self, Conversation(episode, self._agent.chat))
                await rollout(episode.request.problem, model, {name: self._tool(name) for name in self._known})
        except DeadlineError:
            fault = f"has taken more than {self._seconds:g} s of its own time, without model() and tools"
        except (Exception, BlockedError) as error:  # noqa: BLE001 - the user's code may raise anything
            self._failure = self._failure or error
            if isinstance(error, BlockedError):
                self._pause.begin()
        if isinstance(self._failure, EngineError | ToolsUnavailableError):
            raise self._failure
        if self._failure is not None:
            refused = isinstance(self._failure, ContractError)
            fault = str(self._failure) if refused else f"fails with {type(self._failure).__name__}: {self._failure}"
        elif not fault and not episode.turns and episode.ended is None:
            fault = "has returned without a turn of the model; await model(messages)"
        if fault:
            place = (place_of(self._failure) if self._failure else "") or defined_at(rollout)
            where = f" ({place})" if place and place not in fault else ""
            raise EnvironmentFaultError(
                f"environment {episode.request.problem.environment!r}: its own rollout: {fault}{where}"
            )
        episode.finish()

    async def write(self, conversation: Conversation, messages: object, max_tokens: int | None) -> str:
        """The model's next turn after these messages."""
        episode = self._episode
        if self._failure is not None or episode.ended is not None:
            await self._end()
        strand: Strand | None = None
        try:
            with self._deadline.suspended():
                while self._writing and episode.turns + len(self._writing) >= episode.request.sampling.max_turns:
                    await self._turn_over.park()
                if episode.ended is None and not episode.may_go_on:
                    episode.ended = "turn_limit"
                if episode.ended is None:
                    strand = conversation.open(messages, self._agent.policy)
                if strand is not None and episode.ended is None:
                    await self._reserve(strand, max_tokens)
                if strand is None or episode.ended is not None:
                    await self._end()
                turn, stopped = await self._agent.write(episode, strand)
                text = episode.wrote_text(*turn, stopped=stopped, strand=strand)
                conversation.wrote(strand, text, stopped=stopped)
                if episode.ended is not None:
                    await self._end()
                await self._pause.over()
                return text
        except ContractError as error:
            self._failure = error
            raise
        except EngineError as error:
            self._failure = error
            await self._end()
        finally:
            if strand is not None and self._writing.pop(strand.number, None) is not None:
                strand.room = 0
                self._turn_over.unpark_all()

    async def _reserve(self, strand: Strand, max_tokens: int | None) -> None:
        """Give the turn its tokens, as soon as turns under way leave some. The rollout ends where none are left."""
        if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
            raise ContractError(f"max_tokens is {max_tokens!r:.60}; give a number of at least 1, or None")
        episode, most = self._episode, self._episode.request.sampling.max_turns
        while True:
            left = episode.budget_of(strand) - sum(each.room for each in self._writing.values())
            if left > 0 and episode.turns + len(self._writing) < most:
                break
            if not self._writing:
                episode.ended = "truncated" if left < 1 else "turn_limit"
                return
            await self._turn_over.park()
        strand.room = left if max_tokens is None else min(left, max_tokens)
        strand.limited = strand.room < left
        self._writing[strand.number] = strand

    async def _end(self) -> NoReturn:
        self._scope.cancel()
        await trio.sleep_forever()
        raise AssertionError

    def conversation(self) -> Conversation:
        """A conversation beside the first one."""
        return Conversation(self._episode, self._agent.chat, "sub_agent")

    def _tool(self, name: str) -> Callable[..., Awaitable[str]]:
        """A tool of the environment: from its arguments to the text that a model would read."""
        stateful = self._known[name].stateful

        async def call(**arguments: Any) -> str:
            self._calls += 1
            number = self._calls
            with self._deadline.suspended():
                try:
                    async with self._in_order if stateful else nullcontext():
                        text, record = await self._agent.call(self._episode, number, ParsedCall(name, arguments))
                except ToolsUnavailableError as error:
                    self._failure = error
                    await self._end()
                self._episode.called(record)
                return text

        return call
