"""A rollout by a user's own loop: ``async def rollout(problem, model, tools)`` in place of the agent loop.

::

    rollout(problem, model, tools) --messages--> model --> Conversation --> engine.generate --> the turn's text
                                   `-arguments-> tools["name"] -----------> ToolCall, ToolResult --> the result's text

The loop runs in the generator. Its own time, without waiting for ``model`` and ``tools``, is bounded. The rollout ends
when the loop returns. When the model has no turn or token left, and when engine or executors fail, the loop is
cancelled; it never sees such a failure.

A loop may call ``model`` several times at once, and open conversations beside the first one with ``model.branch()``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import trio

from actors.engines.base import EngineError
from actors.rollout_generator.agent_loop import AgentLoop, EnvironmentFaultError
from actors.rollout_generator.tool_calls import ToolsUnavailableError
from actors.rollout_generator.turns import NoRoom, RolloutOver, TurnWriter
from actors.user_threads import Deadline, DeadlineError
from agent_rl.config.plugins import ContractError, defined_at, place_of
from agent_rl.environments.base import BlockedError
from agent_rl.rollout.conversation import Conversation, LoopSpeech, sound_messages
from agent_rl.rollout.parsing import ParsedCall

if TYPE_CHECKING:
    from actors.user_threads import Pause
    from agent_rl.environments.base import Rollout, Tool
    from agent_rl.messages import BranchCause
    from agent_rl.rollout.episode import Episode


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
        return LoopModel(self._loop, self._loop.conversation("sub_agent"))


class UserLoop:
    """One rollout by a user's own loop."""

    def __init__(
        self, agent: AgentLoop, episode: Episode, tools: Mapping[str, Tool], seconds: float, pause: Pause
    ) -> None:
        """``seconds``: limit of the loop's own time; ``pause``: of the generator, after a loop has blocked it."""
        self._agent = agent
        self._episode = episode
        self._writer = TurnWriter(agent, episode)
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
                model = LoopModel(self, self.conversation())
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
        if self._failure is not None or self._episode.ended is not None:
            await self._end()
        try:
            planned = partial(conversation.plan, sound_messages(messages))
            _require_limit(max_tokens)
            with self._deadline.suspended():
                written = await self._writer.write(conversation, planned, max_tokens=max_tokens)
                if self._episode.ended is not None:
                    await self._end()
                await self._pause.over()
                return written.text
        except ContractError as error:
            self._failure = error
            raise
        except EngineError as error:
            self._failure = error
            await self._end()
        except NoRoom:
            self._episode.ended = "truncated" if self._episode.turns else "prompt_too_long"
            await self._end()
        except RolloutOver:
            await self._end()

    async def _end(self) -> NoReturn:
        self._scope.cancel()
        await trio.sleep_forever()
        raise AssertionError

    def conversation(self, cause: BranchCause | None = None) -> Conversation:
        """A conversation; with a cause, one beside the first one."""
        speech = LoopSpeech(self._agent.chat, self._episode.request.problem)
        return Conversation(self._episode, speech, cause)

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
                self._episode.record_call(record)
                return text

        return call


def _require_limit(max_tokens: object) -> None:
    if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
        raise ContractError(f"max_tokens is {max_tokens!r:.60}; give a number of at least 1, or None")
