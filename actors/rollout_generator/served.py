"""Rollouts whose agent is a program behind the gateway: it asks for turns by HTTP, with the rollout's key.

::

    gateway --TurnAsked--> ServedRollouts.answer --> ServedRollout --> TurnWriter --> engine
       ^                                                  | TurnPart... , Choice...
       `-------------------------- TurnGiven -------------'

A request is written in a task of its rollout, whoever waits for it: when a gateway is lost, the client asks again, and
gets what was written. Requests are known until their rollout ends.
"""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import trio

from actors.engines.base import EngineError
from actors.rollout_generator.asks import Ask, TurnWatch
from actors.rollout_generator.tool_calls import ToolsUnavailableError, first_of
from actors.rollout_generator.turns import NoRoom, RolloutOver, TurnWriter
from agent_rl.config.hidden import without
from agent_rl.config.plugins import ContractError
from agent_rl.messages import Choice, Finish, Refusal, Said, SaidCall, ToolCallRecord, TurnAsked, TurnGiven, TurnPart
from agent_rl.rollout.completed import token_by_token
from agent_rl.rollout.conversation import Conversation, Message
from agent_rl.rollout.keys import MODEL, generator_of, key_for
from agent_rl.rollout.parsing import ParsedCall
from agent_rl.rollout.prompts import LONG_TEXT, PromptError
from agent_rl.rollout.said import (
    GatewaySpeech,
    Spoken,
    messages_of,
    said_by_others,
    said_in,
    spoken,
)

if TYPE_CHECKING:
    from actors.rollout_generator.agent_loop import AgentLoop
    from actors.rollout_generator.turns import Written
    from agent_rl.messages import BranchCause, CompletedTurn, Float32Vector, Int32Vector
    from agent_rl.rollout.conversation import Plan
    from agent_rl.rollout.episode import Episode
    from agent_rl.rollout.parsing import AnyCall

MESSAGE_CHARS = 4
"""What any message has at least, with the template's own text."""
KNOWN_ENDS = 10_000
"""Keys of ended rollouts that are told from unknown ones."""


_NOTHING = np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float32)


class ServedRollout:
    """One rollout whose agent is at the gateway."""

    def __init__(
        self,
        agent: AgentLoop,
        episode: Episode,
        nursery: trio.Nursery,
        told: Callable[[Written], None] | None = None,
        tools: str = "[]",
        secrets: Sequence[str] = (),
    ) -> None:
        """``told`` of each turn that is written. Turns that the episode has taken in are given to who asks for them.

        ``secrets`` are hidden where the agent says them: what it says is kept, and trained on. ``tools``: a JSON list
        of schemas of the environment's tools, which are listed and run where a request lists none.
        """
        self.episode = episode
        self.failure: Exception | None = None
        self.overflowed = False
        """A request had more messages than a sequence has room for."""
        self._concluded = False
        self.over = trio.Event()
        """The rollout has ended, or has failed, and the agent was told so."""
        self._agent, self._tools, self._secrets = agent, tools, secrets
        self.disturbed = trio.Event()
        """Set once a gateway was lost since the program was started."""
        self._chat = agent.chat
        self._writer = TurnWriter(agent, episode)
        self._conversation = Conversation(episode, GatewaySpeech(agent.chat))
        self._nursery = nursery
        self._asks: dict[str, Ask] = {}
        self._same: dict[bytes, Ask] = {}
        """The newest request by the digest of its messages."""
        self._texts: list[str] = []
        self._told = told
        self._resumed: dict[bytes, deque[tuple[CompletedTurn, Sequence[int]]]] = {}
        """Turns of an earlier process by what asked for them, each with its prompt."""
        self._earlier: dict[bytes, deque[Ask]] = {}
        """Requests of an agent that was started again, by the digests of their messages."""
        for turn, strand, length in episode.resumed:
            assert turn.place is not None
            said = spoken(agent.chat, episode.text_of(turn.written))
            self._conversation.resume(turn, strand, length, said.message)
            self._texts.append(said.content)
            prompt = strand.whole[: length - len(turn.written)]
            self._resumed.setdefault(turn.place.digest, deque()).append((turn, prompt))

    def _kept(self, asked: TurnAsked, ask: Ask) -> dict[int, tuple[Choice, int]]:
        """The choices of a request that an earlier process has written, each with the version of its policy."""
        found = {}
        left = self._resumed.get(ask.digest, deque())
        for number in range(asked.count):
            at = next((at for at, (turn, _) in enumerate(left) if turn.place and turn.place.choice == number), None)
            if at is None:
                continue
            turn, ask.prompt = left[at]
            del left[at]
            assert turn.place is not None
            watch = TurnWatch(self._chat, ask, number, asked.stop)
            watch.wrote(turn.written, turn.logprobs, token_by_token(turn.policies))
            said = spoken(self._chat, watch.before_stop(self.episode.text_of(turn.written)))
            watch.finished(said)
            choice = _choice(said, turn.written, turn.logprobs, stopped=turn.place.stopped, cut_at=watch.cut_at)
            found[number] = choice, int(turn.policies[-1, 1])
        return found

    def replay_cut_replies(self) -> bool:
        """Whether a gateway was lost. Then the agent, started again, is given the turns that it was given, in the same
        order.
        """
        if not self.disturbed.is_set():
            return False
        asks = list(dict.fromkeys(self._asks.values()))
        self.disturbed = trio.Event()
        self._asks.clear()
        self._earlier.clear()
        for ask in asks:
            ask.cut = False
            self._earlier.setdefault(ask.digest, deque()).append(ask)
        return True

    @property
    def cut(self) -> bool:
        """Whether a reply to the agent was begun and not ended: the agent has left, or its gateway is lost."""
        return any(ask.cut for ask in self._asks.values())

    async def answer(self, asked: TurnAsked) -> TurnGiven:
        """Turns, or parts of them."""
        ask = self._asks.get(asked.ask)
        if ask is None:
            if asked.follows:
                return TurnGiven(refusal="failed", why="the request is not known here; ask again")
            try:
                found = await self._begin(asked)
            except PromptError as error:
                return TurnGiven(refusal="request", why=str(error))
            if isinstance(found, TurnGiven):
                return found
            ask = found
        return await ask.answer(asked)

    async def _begin(self, asked: TurnAsked) -> Ask | TurnGiven:
        """Raises PromptError."""
        size = len(asked.tools) + sum(map(_size, asked.messages))
        if self.episode.longest is not None and size > self.episode.longest * self._chat.longest_token:
            return TurnGiven(refusal="overflow", why=self._overflow())  # however they are encoded
        asked = self._hidden(asked)
        if len(asked.tokens) and (last := int(asked.tokens.max())) >= self._chat.vocabulary:
            raise PromptError(f"the token {last} is none of the {self._chat.vocabulary} of the tokenizer")
        runs = asked.tools == "[]" and not len(asked.tokens) and self._tools != "[]"
        side = not runs and self._is_side_call(asked)
        conversation = self._conversation

        def read() -> tuple[tuple[Message, ...], list[str], BranchCause]:
            given = () if len(asked.tokens) else messages_of(asked.messages, self._tools if runs else asked.tools)
            others = said_by_others(given)
            return given, others, asked.evidence or self._cause(others, side=side)

        def plan_now() -> Plan:
            if len(asked.tokens):
                return conversation.plan_tokens(asked.tokens.tolist())
            return conversation.plan(given, cause)

        if size <= LONG_TEXT:
            given, others, cause = read()
            as_of, plan = conversation.changes, plan_now()
        else:  # it takes seconds
            given, others, cause = await trio.to_thread.run_sync(read)
            as_of = conversation.changes
            plan = await trio.to_thread.run_sync(plan_now)
            if self._concluded:
                return TurnGiven(refusal="ended", why="rollout concluded")

        def planned() -> Plan:
            return plan if conversation.changes == as_of else plan_now()

        plan = planned()
        prompt = [*(() if plan.strand is None else plan.strand.whole[: plan.shared]), *plan.tokens]
        if asked.counts:
            return TurnGiven(prompt=np.array(prompt, dtype=np.int32))
        digest, bounds = plan.digests[-1], (asked.count, asked.max_tokens, asked.stop)
        if (earlier := self._earlier.get(digest)) and earlier[0].bounds == bounds:
            ask = self._asks[asked.ask] = self._same[digest] = earlier.popleft()
            return ask
        if asked.again and (known := self._same.get(digest)) is not None and known.bounds == bounds:
            self._asks[asked.ask] = known
            return known
        ask = Ask(digest, bounds, prompt=prompt)
        kept = self._kept(asked, ask)
        if len(kept) < asked.count and self.episode.ended is None and self.episode.room_after(plan)[1] < 1:
            return TurnGiven(refusal="overflow", why=self._overflow())
        self._asks[asked.ask] = self._same[digest] = ask
        self.episode.lists_tools = self.episode.lists_tools or asked.tools != "[]"
        self._taken_up(others)
        self._nursery.start_soon(partial(self._write, ask, asked, planned, given if runs else (), kept, side=side))
        return ask

    def _hidden(self, asked: TurnAsked) -> TurnAsked:
        """What an agent said, without secrets."""
        hide = partial(without, self._secrets)

        def hidden(said: Said) -> Said:
            calls = tuple(SaidCall(hide(each.name), hide(each.arguments), hide(each.id)) for each in said.calls)
            return Said(said.role, hide(said.content), hide(said.reasoning), calls, hide(said.call_id))

        return replace(asked, messages=tuple(map(hidden, asked.messages)), tools=hide(asked.tools))

    def _is_side_call(self, asked: TurnAsked) -> bool:
        """Whether a request is beside the task: its harness says so, another model is named, a single token is asked
        for, or no tools are listed where others list some.
        """
        if asked.evidence is not None:
            return asked.evidence == "side_call"
        other = asked.model not in {"", MODEL} and not asked.model.endswith(f"/{MODEL}")
        return (
            other
            or asked.max_tokens == 1
            or (self.episode.lists_tools and asked.tools == "[]" and not len(asked.tokens))
        )

    def _cause(self, others: Sequence[str], *, side: bool) -> BranchCause:
        """Why messages that continue nothing begin a conversation."""
        if any(said_in(text, others) for text in tuple(self._texts)):
            return "compaction"
        return "side_call" if side else "sub_agent"

    def _taken_up(self, others: Sequence[str]) -> None:
        """What the agent went on with was no side call."""
        for strand in self.episode.strands:
            left_out = strand.side or strand.cause == "side_call"
            if left_out and any(said_in(self._texts[turn - 1], others) for turn in strand.turns):
                strand.side, strand.cause = False, "compaction"

    async def _write(
        self,
        ask: Ask,
        asked: TurnAsked,
        planned: Callable[[], Plan],
        given: tuple[Message, ...],
        choices: dict[int, tuple[Choice, int]],
        *,
        side: bool,
    ) -> None:
        """Write the turns of a request that ``choices`` lacks.

        With ``given``, its messages, calls are run here until a turn has none.
        """

        async def write_turn(number: int, planned: Callable[[], Plan]) -> tuple[Spoken, Written, str]:
            watch = TurnWatch(self._chat, ask, number, asked.stop, listens=asked.streams)
            said: list[Spoken] = []

            def read(text: str) -> Message:
                said.append(spoken(self._chat, watch.before_stop(text)))
                if not given:
                    self._record_calls(text)
                return said[0].message

            written = await self._writer.write(
                self._conversation,
                planned,
                max_tokens=asked.max_tokens or None,
                watch=watch,
                said=read,
                side=side,
                choice=number,
            )
            self._texts.append(said[0].content)
            watch.finished(said[0])
            if self._told is not None:
                self._told(written)
            return said[0], written, watch.cut_at

        async def write(number: int) -> None:
            messages, trace = given, ""
            said, written, cut_at = await write_turn(number, planned)
            while given and written.stopped and (calls := self._chat.sound_calls(written.text)):
                ask.read()  # what was written before the calls comes first
                calling, ids = _calling(said, calls, self.episode.turns)
                ask.part(TurnPart(number, "", "", *_NOTHING, (calling,)))
                responses, records = await self._agent.answer(self.episode, calls)
                for record in records:
                    self.episode.record_call(record)
                places = iter(range(len(said.calls)))
                answers_of = [next(places) if isinstance(call, ParsedCall) else -1 for call in calls]
                pairs = zip(responses, answers_of, strict=True)
                answered = tuple(Message("tool", text, answers=place) for text, place in pairs)
                messages = (*messages, said.message, *answered)
                shown = "".join(map(_shown, records))
                trace += f"{said.content}\n{shown}".lstrip()
                answers = (Said("tool", text, call_id=call) for call, text in zip(ids, responses, strict=True))
                ask.part(TurnPart(number, "", shown, *_NOTHING, tuple(answers)))
                following = partial(self._conversation.plan, messages, "rewrite")
                said, written, cut_at = await write_turn(number, following)
            if trace:
                said = replace(said, reasoning=trace + said.reasoning)
            choice = _choice(said, written.tokens, written.logprobs, stopped=written.stopped, cut_at=cut_at)
            choices[number] = choice, int(written.policies[-1, 1])

        refusal: tuple[Refusal, str] | None = None
        try:
            async with trio.open_nursery() as nursery:
                for number in range(asked.count):
                    if number not in choices:
                        nursery.start_soon(write, number)
        except* NoRoom:
            refusal = "overflow", self._overflow()
        except* RolloutOver:
            refusal = self._ended()
        except* PromptError as error:
            refusal = "request", str(error.exceptions[0])
        except* (EngineError, ContractError, ToolsUnavailableError) as error:
            self.failure = self.failure or first_of(error)
            refusal = "failed", str(self.failure)
            self.over.set()
        if refusal is not None:
            ask.end(TurnGiven(refusal=refusal[0], why=refusal[1]))
        else:
            version = max(version for _, version in choices.values())
            prompt = np.array(ask.prompt, dtype=np.int32)
            done = tuple(choices[number][0] for number in range(asked.count))
            ask.end(TurnGiven(prompt=prompt, choices=done, policy_version=version))

    def _record_calls(self, text: str) -> None:
        """The calls of the turn just written. The agent runs them, and nobody hears how they end."""
        turn = self.episode.turns
        for call in self._chat.sound_calls(text):
            if isinstance(call, ParsedCall):
                record = ToolCallRecord(turn, call.name, "success", 0.0, 0.0, arguments=call.arguments)
            else:
                record = ToolCallRecord(turn, "", "malformed", 0.0, 0.0, response=call.error)
            self.episode.record_call(record)

    def conclude(self) -> None:
        """The rollout has ended: who waits for a turn hears of it."""
        self._concluded = True
        for ask in self._asks.values():
            if ask.given is None:
                ask.end(TurnGiven(refusal="ended", why="rollout concluded"))

    def _overflow(self) -> str:
        self.overflowed = True
        return "the messages leave no room in a sequence of the model"

    def _ended(self) -> tuple[Refusal, str]:
        """Why no turn is written any more."""
        self.over.set()
        episode = self.episode
        trajectory = episode.ended or "finished"
        if trajectory in {"truncated", "prompt_too_long"}:
            return "overflow", f"the messages leave no room: the rollout stopped ({trajectory})"
        return "ended", f"rollout concluded ({trajectory})"


def _size(said: Said) -> int:
    """Characters of a message, and what it costs besides."""
    calls = sum(len(each.name) + len(each.arguments) for each in said.calls)
    return MESSAGE_CHARS + len(said.content) + len(said.reasoning) + calls


def _calling(said: Spoken, calls: Sequence[AnyCall], turn: int) -> tuple[Said, list[str]]:
    """A turn with calls that are run here, and the id of each of ``calls``: empty for a malformed one."""
    read = iter([replace(each, id=each.id or f"call_{turn}_{at}") for at, each in enumerate(said.calls)])
    paired = [next(read) if isinstance(call, ParsedCall) else None for call in calls]
    sound = tuple(filter(None, paired))
    return Said("assistant", said.content, said.reasoning, sound), ["" if each is None else each.id for each in paired]


def _shown(record: ToolCallRecord) -> str:
    """A call that was run here, for people."""
    call = f"{record.tool}({json.dumps(record.arguments, ensure_ascii=False)})" if record.tool else "a malformed call"
    return f"{call}\n{record.response.rstrip()}\n"


def _choice(said: Spoken, tokens: Int32Vector, logprobs: Float32Vector, *, stopped: bool, cut_at: str) -> Choice:
    finish: Finish = "stop" if stopped or cut_at else "length"
    if said.calls and finish == "stop":
        finish = "tool_calls"
    return Choice(said.content, said.reasoning, said.calls, finish, tokens, logprobs, cut_at)


class ServedRollouts:
    """The rollouts of a generator that agents at the gateway ask for turns."""

    def __init__(self, generator: int) -> None:
        self._generator = generator
        self._rollouts: dict[str, ServedRollout] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._lost: set[str] = set()
        self._back = trio.Event()

    def gateway_lost(self, gateway: str) -> None:
        """Connections of agents have ended: a program that fails now is not at fault."""
        self._lost.add(gateway)
        for rollout in self._rollouts.values():
            rollout.disturbed.set()

    def gateway_back(self, gateway: str) -> None:
        """A gateway is heard again, or has a new process."""
        self._lost.discard(gateway)
        self._back.set()
        self._back = trio.Event()

    async def gateways_heard(self, seconds: float) -> None:
        """Wait until all gateways are heard, at most so long."""
        with trio.move_on_after(seconds):
            while self._lost:
                await self._back.wait()

    @asynccontextmanager
    async def serving(
        self,
        agent: AgentLoop,
        episode: Episode,
        told: Callable[[Written], None] | None = None,
        tools: str = "[]",
        secrets: Sequence[str] = (),
    ) -> AsyncIterator[tuple[str, ServedRollout]]:
        """Within this block the rollout is served. Gives its key, which is a secret too. The rest is for
        `ServedRollout`.
        """
        key = key_for(self._generator)
        async with trio.open_nursery() as nursery:
            rollout = self._rollouts[key] = ServedRollout(agent, episode, nursery, told, tools, (*secrets, key))
            if self._lost:
                rollout.disturbed.set()
            try:
                yield key, rollout
            finally:
                del self._rollouts[key]
                self._ended[key] = None
                while len(self._ended) > KNOWN_ENDS:
                    self._ended.popitem(last=False)
                rollout.conclude()
                nursery.cancel_scope.cancel()

    def another_key(self) -> str:
        """A key of this generator that no rollout has."""
        return key_for(self._generator)

    async def answer(self, asked: TurnAsked) -> TurnGiven:
        """Turns, or parts of them, or why there are none."""
        rollout = self._rollouts.get(asked.key)
        if rollout is None:
            if asked.key in self._ended:
                return TurnGiven(refusal="ended", why="rollout concluded")
            if generator_of(asked.key) != self._generator:
                return TurnGiven(refusal="failed", why="the generator of this rollout is lost")
            return TurnGiven(refusal="key", why="no rollout has this key")
        return await rollout.answer(asked)
