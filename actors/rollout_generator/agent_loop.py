"""The agent loop of a generator: the engine writes a turn, and tools or the environment answer, until the episode ends.

::

    .tokens --> engine.generate --> .append_turn, .begin_calls --> calls: ToolCall --> .append_tool_results --+
       ^                                                       `-> none: ObserveTurn --> .append_observation --+
       +------------------------------------------------------------------------------------ completed <-------+

Methods are those of `Episode`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np
import trio

from actors.engines.base import EngineError, TurnRequest
from actors.rollout_generator.tool_calls import ToolCaller, ToolsUnavailableError
from agent_rl.messages import Float32Vector, Int32Matrix, Int32Vector, ObserveTurn, ToolCallRecord, TurnObserved
from agent_rl.rollout.parsing import MalformedCall, ParsedCall
from agent_rl.rollout.said import Unfolding
from agent_rl.scheduling.ids import strand_seed

if TYPE_CHECKING:
    from actors.base import ActorContext
    from actors.engines.base import Engine
    from actors.rollout_generator.tracing import Tracing
    from agent_rl.messages import PolicyVersion
    from agent_rl.rollout.episode import Episode, Strand
    from agent_rl.rollout.prompts import ChatFormat


class EnvironmentFaultError(Exception):
    """A fault of the environment: it did not answer a turn. The message says where."""


class TaskFaultError(Exception):
    """A fault of a single task: nothing says whether its rollout is right. The message names the task."""


def sequence_name(rollout: str, strand: Strand) -> str:
    """The name by which the engine knows a sequence of a rollout."""
    return f"{rollout}+{strand.number}" if strand.number else rollout


class Watch:
    """Sees a turn while it is written, and may cut it: then ``cut_at`` is set and ``scope`` cancelled."""

    listens = True
    """Whether `wrote` is to be called while the turn is written; `ended` is called in any case."""

    def __init__(self, chat: ChatFormat) -> None:
        self.scope = trio.CancelScope()
        self.cut_at = ""
        """What the turn was cut at: a stop string, or the end of a call."""
        self.failure: Exception | None = None
        """Why the turn cannot be read, if it cannot; then ``scope`` is cancelled, too."""
        self._chat = chat
        self._unfolding = Unfolding(chat)
        self._unfolding.text = chat.prefill
        self._told: list[tuple[Int32Vector, Float32Vector, Int32Matrix]] = []
        self._count = 0
        """Tokens that were told."""

    def began(self, prompt: Sequence[int]) -> None:
        """The engine is asked to go on from these tokens."""

    def wrote(self, tokens: Int32Vector, logprobs: Float32Vector, policies: Int32Matrix) -> None:
        """As `TurnRequest.wrote`."""
        raise NotImplementedError

    def ended(self, tokens: Int32Vector, logprobs: Float32Vector, policies: Int32Matrix) -> None:
        """The whole turn, of which an engine may have told a part or nothing."""
        rest = slice(self._count, None)
        self.wrote(tokens[rest], logprobs[rest], policies[rest])

    @property
    def turn(self) -> tuple[Int32Vector, Float32Vector, Int32Matrix]:
        """What was told, at least one token: of a turn that was cut, all up to its end."""
        tokens, logprobs, policies = zip(*self._told, strict=True)
        return np.concatenate(tokens), np.concatenate(logprobs), np.concatenate(policies)


class Ending(Watch):
    """Ends a turn at the token that makes a call complete, in formats where that ends it. Later tokens are dropped."""

    def wrote(self, tokens: Int32Vector, logprobs: Float32Vector, policies: Int32Matrix) -> None:
        """Look at each token."""
        for place, token in enumerate(tokens.tolist(), 1):
            if self.cut_at or self.failure:
                return
            self._told.append((tokens[place - 1 : place], logprobs[place - 1 : place], policies[place - 1 : place]))
            self._count += 1
            before = len(self._unfolding.text)
            self._unfolding.add([token])
            near = self._unfolding.text[max(0, before - len(self._chat.closing)) :]
            try:
                if self._chat.closing in near and self._chat.complete(self._unfolding.text):
                    self.cut_at = self._chat.closing
            except Exception as error:  # noqa: BLE001 - the engine must not hear of it
                self.failure = error
        if self.cut_at or self.failure:
            self.scope.cancel()


class AgentLoop:
    """Runs any number of episodes at once."""

    def __init__(
        self,
        context: ActorContext,
        chat: ChatFormat,
        engine: Engine,
        tools: ToolCaller,
        tracing: Tracing | None = None,
    ) -> None:
        self._context = context
        self._tracing = tracing
        self.chat = chat
        self._engine = engine
        self._tools = tools

    @property
    def policy(self) -> PolicyVersion:
        """The policy served now."""
        return self._engine.policy

    async def run(self, episode: Episode, completed: Callable[[], bool] | None = None) -> None:
        """Run an episode to its end. ``completed`` is called after each turn that is answered and does not end it.

        When it returns False, the rollout goes on elsewhere.

        Raises EngineError, ToolsUnavailableError and EnvironmentFaultError.
        """
        ends = bool(self.chat.closing)
        while episode.ended is None:
            turn, stopped = await self.write(episode, watch=Ending(self.chat) if ends else None)
            if calls := episode.begin_calls(episode.append_turn(*turn, stopped=stopped)):
                responses, records = await self.answer(episode, calls)
                episode.append_tool_results(responses, records, self._engine.policy)
            elif episode.ended is None:
                episode.append_observation(await self._observe(episode), self._engine.policy)
            if completed is not None and episode.ended is None and not completed():
                return

    async def _observe(self, episode: Episode) -> TurnObserved:
        """The environment's answer to the last turn. Raises ToolsUnavailableError and EnvironmentFaultError."""
        request = episode.request
        answer = await self._tools.observe(
            ObserveTurn(request.rollout, request.problem, episode.transcript, episode.state, request.seed)
        )
        if answer.fault:
            raise EnvironmentFaultError(answer.fault)
        return answer

    async def write(
        self, episode: Episode, strand: Strand | None = None, watch: Watch | None = None
    ) -> tuple[tuple[Int32Vector, Float32Vector, Int32Matrix], bool]:
        """The engine writes a turn: arrays as for `Episode.append_turn`, whether it stopped. Raises EngineError."""
        request = episode.request
        if strand is None:
            strand = episode.strands[0]
            strand.room, strand.limited = 0, False
        asked = TurnRequest(
            rollout=sequence_name(request.rollout, strand),
            tokens=episode.tokens_of(strand),
            max_tokens=strand.room or episode.budget_of(strand),
            temperature=request.sampling.temperature,
            stop_tokens=self.chat.stop_tokens,
            seed=strand_seed(request.seed, strand.number),
            top_p=request.sampling.top_p,
            top_k=request.sampling.top_k,
            wrote=watch.wrote if watch is not None and watch.listens else None,
            keeps_cache=watch is not None,
        )
        began = self._context.now()
        turn, stopped = await self._generated(asked, strand, watch)
        if self._tracing is not None:
            self._tracing.turn(episode, began, len(asked.tokens), len(turn[0]), stopped=stopped)
        if fault := episode.turn_fault(*turn, stopped=stopped, stop=self.chat.stop_tokens, strand=strand):
            raise EngineError(f"the engine returned {fault}")
        return turn, stopped

    async def _generated(
        self, asked: TurnRequest, strand: Strand, watch: Watch | None
    ) -> tuple[tuple[Int32Vector, Float32Vector, Int32Matrix], bool]:
        if watch is not None:
            watch.began(asked.tokens)
        with watch.scope if watch is not None else nullcontext():
            result = await self._engine.generate(asked)
            turn = result.tokens, result.logprobs, result.policies
            if watch is not None:
                watch.ended(*turn)
            if watch is None or len(watch.turn[0]) == len(turn[0]):
                return turn, result.finish == "stop"
        assert watch is not None
        if watch.failure is not None:
            raise watch.failure
        strand.room, strand.limited = len(watch.turn[0]), True  # it ends here, and the rollout goes on
        return watch.turn, False

    def release(self, episode: Episode) -> None:
        """The rollout has ended: the engine drops its KV cache."""
        for strand in episode.strands:
            self._engine.release(sequence_name(episode.request.rollout, strand))

    async def answer(
        self, episode: Episode, calls: Sequence[ParsedCall | MalformedCall]
    ) -> tuple[list[str], list[ToolCallRecord]]:
        """Run the turn's calls, several at once. Returns responses and records in the order of the calls."""
        if len(calls) == 1:  # most turns have one; a task for it would be a tenth of the loop's cost
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
        stateful = any(tool is not None and tool.stateful for tool in tools)
        at_once = 1 if stateful else self._context.settings.tool_calls_at_once
        async with trio.open_nursery() as nursery:
            for _ in range(min(at_once, len(calls))):
                nursery.start_soon(work)
        if failed:
            raise failed[0]
        done = [answer for answer in answers if answer is not None]
        return [text for text, _ in done], [record for _, record in done]

    async def call(self, episode: Episode, index: int, call: ParsedCall | MalformedCall) -> tuple[str, ToolCallRecord]:
        """The text that the model reads of one call, and the call's record. Raises ToolsUnavailableError."""
        turn = episode.turns
        if isinstance(call, MalformedCall):
            return call.error, ToolCallRecord(turn, "", "malformed", 0.0, 0.0, response=call.error)
        started = self._context.now()
        result = await self._tools.call(episode.request, f"{turn}.{index}", call, episode.tool_states)
        seconds = self._context.now() - started
        times = (result.run_seconds, seconds)
        record = ToolCallRecord(turn, call.name, result.outcome, *times, result.cut, call.arguments, result.text)
        if self._tracing is not None:
            self._tracing.call(episode, started, record)
        return result.text, record
