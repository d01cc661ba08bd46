"""Conversations of an agent behind the gateway: its messages as tokens, and the model's turns as messages.

::

    Said..., tools --messages_of--> Message... --GatewaySpeech--> tokens --engine--> text --Spoken--> content, calls

A turn that comes back is recognised by its content without outer white space and by its calls as values; ids, the order
of keys and the form of the JSON do not count. Reasoning counts only where it comes back: most clients leave it out.
Turns that the model did not write are rendered as it would write them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from agent_rl.messages import Said, SaidCall
from agent_rl.messages.rollouts import THOUGHT_CLOSING, THOUGHT_OPENING
from agent_rl.rollout.conversation import Message
from agent_rl.rollout.parsing import (
    CLOSING,
    OPENING,
    AnyCall,
    MalformedCall,
    ParsedCall,
    begun,
    parse_calls,
    place_id,
)
from agent_rl.rollout.prompts import PromptError

if TYPE_CHECKING:
    from agent_rl.rollout.prompts import ChatFormat

SHOWN = 10
"""Ids of calls in an error."""
TOOLS = "tools"
"""The role of the list of tools, the first of an agent's messages."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """A turn of the model as its client reads it."""

    content: str
    reasoning: str = ""
    calls: tuple[SaidCall, ...] = ()

    @property
    def message(self) -> Message:
        """The turn, as it would come back, and with the ids that the model wrote."""
        turn = _assistant(Said("assistant", self.content, self.reasoning, self.calls))
        pairs = zip(turn.calls, self.calls, strict=True)
        return turn._replace(
            calls=tuple(
                replace(call, id=own.id) if own.id and isinstance(call, ParsedCall) else call for call, own in pairs
            )
        )


def spoken(chat: ChatFormat, text: str) -> Spoken:
    """Read a whole turn. A call that is malformed stays in the content."""
    calls = tuple(
        SaidCall(call.name, json.dumps(call.arguments, ensure_ascii=False), call.id)
        for call in chat.sound_calls(text)
        if isinstance(call, ParsedCall)
    )
    reasoning, content = _parted(chat.without_calls(text) if calls else text)
    return Spoken(content.rstrip() if calls else content, reasoning, calls)


def spoken_so_far(chat: ChatFormat, text: str) -> Spoken:
    """What is certain of a turn that is being written: content and reasoning that a client may see already."""
    certain = text[: chat.certain(text)]
    for tag in (THOUGHT_OPENING, THOUGHT_CLOSING):  # a tag may have begun
        certain = certain[: len(certain) - begun(certain, tag)]
    reasoning, content = _parted(certain)
    return Spoken(content.rstrip(), reasoning)


def _parted(text: str) -> tuple[str, str]:
    """Reasoning and the rest."""
    start = text.lstrip()
    if not start.startswith(THOUGHT_OPENING):
        return "", text
    reasoning, _, content = start.removeprefix(THOUGHT_OPENING).partition(THOUGHT_CLOSING)
    return reasoning.strip(), content.lstrip()


def messages_of(said: Sequence[Said], tools: str) -> tuple[Message, ...]:
    """The messages of a request. Consecutive ones of the assistant are one turn.

    Results stand in the order of the calls that they answer. Raises PromptError for one that names none of the turn.
    """
    found = [Message(TOOLS, tools, _canonical(tools))]
    calls: tuple[SaidCall, ...] = ()
    for is_turn, group in groupby(said, key=lambda each: each.role == "assistant"):
        given = list(group)
        if is_turn:
            turn = _joined(given)
            calls = turn.calls
            found.append(_assistant(turn))
            continue
        results = [each for each in given if each.role == "tool"]
        answers = iter(sorted(zip(_answered(results, calls), results, strict=True), key=lambda each: each[0]))
        for each in given:
            place, result = next(answers) if each.role == "tool" else (-1, each)
            found.append(Message(each.role, result.content, answers=place))
    return tuple(found)


def _answered(results: Sequence[Said], calls: Sequence[SaidCall]) -> list[int]:
    """The places of the calls that results of tools answer: by id, or the only one that is left.

    A turn without calls may have had one that is malformed: its results answer none. Raises PromptError.
    """
    places: dict[str, list[int]] = {}
    for at, call in enumerate(calls):
        if call.id:
            places.setdefault(call.id, []).append(at)
    named = {result.call_id for result in results}
    left = [at for at, call in enumerate(calls) if not call.id or call.id not in named]
    found = []
    for result in results if calls else ():
        alone = left[0] if len(left) == 1 and not (result.call_id and calls[left[0]].id) else None
        among = places.get(result.call_id, [])  # a model may write an id twice
        place = among.pop(0) if len(among) > 1 else (among[0] if among else alone)
        if place is None:
            of = f"has the id {result.call_id!r:.80}" if result.call_id else "has no id"
            known = ", ".join(f"{call.id!r:.80}" for call in calls[:SHOWN])
            raise PromptError(f"a result of a tool {of}; name the call that it answers: the turn before has {known}")
        found.append(place)
    return found or [-1] * len(results)


def _joined(turns: Sequence[Said]) -> Said:
    if len(turns) == 1:
        return turns[0]
    return Said(
        "assistant",
        "".join(each.content for each in turns),
        "".join(each.reasoning for each in turns),
        tuple(call for each in turns for call in each.calls),
    )


def _assistant(said: Said) -> Message:
    tagged = [_tagged(place, call) for place, call in enumerate(said.calls)]
    thought = f"{THOUGHT_OPENING}\n{said.reasoning}\n{THOUGHT_CLOSING}\n\n" if said.reasoning else ""
    content = thought + "\n".join(part for part in (said.content, *(text for text, _ in tagged)) if part)
    same = [said.content.strip(), [[call.name, _canonical(call.arguments)] for call in said.calls]]
    return Message("assistant", content, json.dumps(same), calls=tuple(call for _, call in tagged))


def _tagged(place: int, call: SaidCall) -> tuple[str, AnyCall]:
    """A call in its tags, and as it is read there. Arguments that are no JSON object are the text of one."""
    name = json.dumps(call.name, ensure_ascii=False)
    for arguments in (call.arguments, json.dumps({"arguments": call.arguments}, ensure_ascii=False)):
        text = f'{OPENING}{{"name": {name}, "arguments": {arguments}}}{CLOSING}'
        read = parse_calls(text)
        if len(read) == 1 and isinstance(read[0], ParsedCall):
            return text, replace(read[0], id=place_id(place))
    return text, read[0]  # a call without a name


def _canonical(text: str) -> str:
    """A JSON text in one form; any other text as it is."""
    try:
        return json.dumps(json.loads(text, parse_float=_number), sort_keys=True)
    except (ValueError, RecursionError):
        return text


def _number(text: str) -> float:
    """JavaScript writes 1.0 as 1, and -0.0 as 0."""
    number = float(text)
    return int(number) if number.is_integer() else number


class GatewaySpeech:
    """The messages of an agent as tokens: a list of tools, then what was said."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat

    def opening(self, messages: Sequence[Message]) -> list[int]:
        """The tokens of a conversation, turn by turn as a rollout has them."""
        tools: list[Mapping[str, Any]] = json.loads(messages[0].content)
        start = next((at for at, each in enumerate(messages) if each.role == "assistant"), len(messages))
        if start < 2:
            raise PromptError("a conversation must begin with a message of the user or a system message")
        tokens = self._chat.asked_tokens([(each.role, each.content) for each in messages[1:start]], tools)
        return tokens + self._go_on(messages[start:])

    def later(self, messages: Sequence[Message], turn: Message) -> list[int]:
        """The tokens from the end of the model's turn to its next one."""
        return self._go_on(messages, turn)

    def _go_on(self, messages: Sequence[Message], turn: Message | None = None) -> list[int]:
        tokens: list[int] = []
        for is_turn, group in groupby(messages, key=lambda each: each.role == "assistant"):
            given = list(group)
            if is_turn:
                turn = given[0]
                tokens += self._chat.given_turn_tokens(turn.content)
            elif turn is not None:
                answered = [each.answers for each in given if each.role == "tool"]
                calls = [turn.calls[at] if at >= 0 else MalformedCall("") for at in answered]
                tokens += self._chat.between_tokens([(each.role, each.content) for each in given], calls)
        if messages and messages[-1].role == "assistant":
            raise PromptError("the last message is the assistant's; a turn that has begun cannot be continued")
        return tokens


LEAST_QUOTED = 8
"""Characters of a text that is found within another one; a shorter one may be there by chance."""


def said_by_others(messages: Sequence[Message]) -> list[str]:
    """The texts of these messages that users and systems say, with single blanks."""
    return [_solid(each.content) for each in messages if each.role in {"user", "system"}]


def said_in(text: str, others: Sequence[str]) -> bool:
    """Whether a text of the model is one of these, or, if it is not too short, a part of one."""
    solid = _solid(text)
    return bool(solid) and any(solid == each or (len(solid) >= LEAST_QUOTED and solid in each) for each in others)


def _solid(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


class Unfolding:
    """The text of tokens that come one after the other. Characters of which tokens are missing come when whole."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self._tokens: list[int] = []
        self._known = self._read = 0
        self.text = ""

    def add(self, tokens: Sequence[int]) -> None:
        """Further tokens. A few earlier ones are decoded with them, since tokenizers join neighbours."""
        self._tokens += tokens
        known = self._chat.decode(self._tokens[self._known : self._read])
        whole = self._chat.decode(self._tokens[self._known :])
        if len(whole) > len(known) and not whole.endswith("\ufffd"):
            self.text += whole[len(known) :]
            self._known, self._read = self._read, len(self._tokens)
