"""The conversations of a user's own loop, or of an agent behind the gateway, as a tree of tokens.

::

    messages --> Conversation.plan --> Plan --> Conversation.open --> Episode.begin, .add_messages or .branch
                                                                          | engine
                                                                          `--> Conversation.wrote

Each token was sampled after exactly the tokens before it, and is trained in this place. Messages that extend what was
said continue the very tokens: those of turns are kept and never encoded again. Messages that change what was said begin
a branch at the last token that both have in common. Turns before that place are shared, and all others of the branch
are context there, whoever wrote them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from agent_rl.config.plugins import ContractError
from agent_rl.environments.judging import sound_message
from agent_rl.messages import BranchCause, EnvironmentMessage
from agent_rl.rollout.episode import longest_common

if TYPE_CHECKING:
    from agent_rl.messages import CompletedTurn, PolicyVersion, Problem
    from agent_rl.rollout.episode import Episode, Strand
    from agent_rl.rollout.parsing import AnyCall
    from agent_rl.rollout.prompts import ChatFormat

SHOWN = 60
"""Characters of a text in an error message."""


class Message(NamedTuple):
    """A message. ``same``: by which it is recognised when it comes back, in place of its content.

    ``calls``: of a turn. ``answers``: of a result, the place of its call among
    them; -1: it answers none.
    """

    role: str
    content: str
    same: str = ""
    calls: tuple[AnyCall, ...] = ()
    answers: int = -1


class Speech(Protocol):
    """How messages become tokens. Raises PromptError for those that the chat template does not take."""

    def opening(self, messages: Sequence[Message]) -> list[int]:
        """A conversation's tokens up to the model's first one."""

    def later(self, messages: Sequence[Message], turn: Message) -> list[int]:
        """The tokens from the end of the model's turn to its next one."""


class LoopSpeech:
    """As the loop of a problem's environment speaks."""

    def __init__(self, chat: ChatFormat, problem: Problem) -> None:
        self._chat = chat
        self._problem = problem

    def opening(self, messages: Sequence[Message]) -> list[int]:
        """With the environment's tools."""
        return self._chat.opening_tokens([(each.role, each.content) for each in messages], self._problem)

    def later(self, messages: Sequence[Message], turn: Message) -> list[int]:
        """As the chat template continues."""
        del turn
        return self._chat.message_tokens([(each.role, each.content) for each in messages])


class Mark(NamedTuple):
    """A place of a strand: after its first ``length`` tokens ``said`` messages are said.

    ``asks``: the model writes here. Otherwise its turn has just ended with ``turn``, and further messages may follow.
    """

    strand: Strand
    said: int
    length: int
    asks: bool
    turn: Message


@dataclass(frozen=True, slots=True)
class Plan:
    """What messages would do: begin the rollout, continue ``strand``, or branch from it after ``shared`` tokens.

    ``tokens``: what is given then. ``said``: the messages that are new. ``digests``: of all, cumulative.
    """

    digests: tuple[bytes, ...]
    tokens: Sequence[int]
    said: Sequence[Message]
    strand: Strand | None = None
    shared: int = 0
    cause: BranchCause | None = None
    """Why it is a branch; None: it is none."""


class Conversation:
    """What was said to the model and by it. The episode holds the tokens."""

    def __init__(self, episode: Episode, speech: Speech, cause: BranchCause | None = None) -> None:
        """``cause``: why this conversation begins a branch; None: it is the first."""
        self._episode = episode
        self._speech = speech
        self._cause = cause
        self.changes = 0
        """Of what plans depend on, so far."""
        self._marks: dict[bytes, list[Mark]] = {}
        """By the digest of the messages that are said there."""
        self._open: dict[int, tuple[bytes, Mark]] = {}
        """By strand: where its last turn ended, or is being written."""

    def plan(self, given: Sequence[Message], cause: BranchCause = "rewrite") -> Plan:
        """What these messages continue or begin; nothing is changed. ``cause``: of a branch that nothing leads to."""
        digests = _digests(given)
        mark = self._continued(digests)
        if mark is not None and not mark.asks and mark is self._open[mark.strand.number][1]:
            rest = given[mark.said :]
            return Plan(digests, self._speech.later(rest, mark.turn), rest, mark.strand, mark.length)
        episode = self._episode
        if mark is None:
            prompt, said = self._speech.opening(given), given
            if not self._marks and self._cause is None:
                return Plan(digests, prompt, ())
        else:
            said = given[mark.said :]
            prompt = mark.strand.whole[: mark.length] + (self._speech.later(said, mark.turn) if said else [])
        parent, shared = longest_common(episode.strands, prompt)
        why = cause
        if cause == "side_call":
            pass  # whatever it begins with
        elif mark is not None and mark.asks:
            why = "again"
        elif any(digest in self._marks for digest in digests):
            why = "rewrite"
        if not self._marks and self._cause is not None:
            why = self._cause
        return Plan(digests, prompt[shared:], said, parent, shared, why)

    def plan_tokens(self, tokens: Sequence[int]) -> Plan:
        """As `plan`, of an agent that speaks in tokens."""
        digests = (blake2b(np.array(tokens, dtype=np.int32).tobytes(), digest_size=16).digest(),)
        if not self._marks and self._cause is None:
            return Plan(digests, tokens, ())
        parent, shared = longest_common(self._episode.strands, tokens)
        mark = self._open.get(parent.number)
        if mark is not None and not mark[1].asks and shared == mark[1].length < len(tokens):
            return Plan(digests, tokens[shared:], (), parent, shared)
        return Plan(digests, tokens[shared:], (), parent, shared, "again" if shared == len(tokens) else "rewrite")

    def open(self, plan: Plan, policy: PolicyVersion) -> Strand:
        """Do as planned; ``policy`` is served now. Then the model may write there, or the rollout has ended."""
        self.changes += 1
        episode, turn = self._episode, self._episode.turns
        said = [EnvironmentMessage(turn, each.role, each.content) for each in plan.said]
        if plan.strand is None:
            episode.begin(plan.tokens)
            strand = episode.strands[0]
        elif plan.cause is None:
            strand = plan.strand
            episode.give(said, plan.tokens, policy, strand)
        else:
            episode.record_messages(said)
            strand = episode.branch(plan.strand, plan.shared, plan.tokens, policy, plan.cause)
        count = len(plan.digests)
        self._marked(plan.digests[-1], Mark(strand, count, len(strand.whole), asks=True, turn=Message("", "")))
        return strand

    def wrote(self, strand: Strand, turn: Message, *, stopped: bool) -> None:
        """The model wrote a turn. One that did not stop cannot be continued."""
        self.changes += 1
        if stopped:
            before, mark = self._open[strand.number]
            digest = _digest(before, turn)
            self._marked(digest, Mark(strand, mark.said + 1, len(strand.whole), asks=False, turn=turn))

    def resume(self, turn: CompletedTurn, strand: Strand, length: int, said: Message) -> None:
        """A turn of an earlier process stands in the strand, after its first ``length`` tokens with the answer."""
        assert turn.place is not None
        start = length - len(turn.written)
        self._marked(turn.place.digest, Mark(strand, turn.place.said, start, asks=True, turn=Message("", "")))
        if turn.place.stopped:
            digest = _digest(turn.place.digest, said)
            self._marked(digest, Mark(strand, turn.place.said + 1, length, asks=False, turn=said))

    def _marked(self, digest: bytes, mark: Mark) -> None:
        self._marks.setdefault(digest, []).append(mark)
        self._open[mark.strand.number] = (digest, mark)

    def _continued(self, digests: Sequence[bytes]) -> Mark | None:
        """The longest part of what was said that the messages begin with and can be continued."""
        for count in range(len(digests), 0, -1):
            marks = self._marks.get(digests[count - 1], ())
            if marks := [mark for mark in marks if not mark.asks or count == len(digests)]:
                return max(marks, key=lambda mark: (mark is self._open[mark.strand.number][1], mark.length))
        return None


def _digest(before: bytes, message: Message) -> bytes:
    parts = (message.role, message.same or message.content)
    return blake2b(before + b"".join(blake2b(part.encode()).digest() for part in parts), digest_size=16).digest()


def _digests(messages: Sequence[Message]) -> tuple[bytes, ...]:
    """The digest of the first message, of the first two, ..."""
    found = [b""]
    for message in messages:
        found.append(_digest(found[-1], message))
    return tuple(found[1:])


def sound_messages(messages: object) -> tuple[Message, ...]:
    """The messages of a user's loop. Raises ContractError when there are none, or when one is not a message."""
    if not isinstance(messages, Iterable) or isinstance(messages, str | bytes | Mapping):
        raise ContractError(
            f"the messages are {messages!r:.{SHOWN}}; give a list of dictionaries with role and content"
        )
    found = [sound_message(message, number) for number, message in enumerate(messages, 1)]
    if not found:
        raise ContractError("there are no messages; give at least one of the user")
    return tuple(Message(*each) for each in found)
