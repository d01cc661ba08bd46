"""The conversations of a user's own loop as a tree of tokens.

::

    loop --messages--> Conversation.open --> Episode.begin, .add_messages or .branch --> engine --> Conversation.wrote

Each token was sampled after exactly the tokens before it, and is trained in this place. Messages that extend what was
said continue the very tokens: those of turns are kept and never encoded again. Messages that change what was said begin
a branch at the last place that both have in common. Turns before that place are shared, and all others of the branch
are context there, whoever wrote them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from agent_rl.config.plugins import ContractError
from agent_rl.environments.judging import sound_message
from agent_rl.messages import EnvironmentMessage

if TYPE_CHECKING:
    from agent_rl.messages import PolicyVersion
    from agent_rl.rollout.episode import Episode, Strand
    from agent_rl.rollout.prompts import ChatFormat
from typing import Any
from zlib import crc32

import numpy as np

from agent_rl.messages import CompletedTurn, Int32Matrix, Int32Vector

Message: TypeAlias = tuple[str, str]
"""Role and content."""
SHOWN = 60
"""Characters of a text in an error message."""


class Mark(NamedTuple):
    """A place of a strand: after its first ``length`` tokens, so many of its messages are said.

    ``asks``: the model writes here. Otherwise its turn has just ended, and further messages may follow.
    """

    strand: Strand
    messages: tuple[Message, ...]
    length: int
    asks: bool


class Conversation:
    """What a loop's calls of ``model`` have said. The episode holds the tokens."""

    def __init__(self, episode: Episode, chat: ChatFormat, cause: str = "") -> None:
        """``cause``: why this conversation begins a branch; empty: it is the first."""
        self._episode = episode
        self._chat = chat
        self._cause = cause
        self._marks: list[Mark] = []
        self._open: dict[int, Mark] = {}
        """By strand: where its last turn ended, or is being written."""

    def open(self, messages: object, policy: PolicyVersion) -> Strand:
        """The strand that these messages continue or begin. Then the model may write there, or the episode has ended.

        ``policy`` is served now. Raises ContractError for what is no list of messages.
        """
        given = tuple(sound_messages(messages))
        mark = self._continued(given)
        if mark is None and not self._marks and not self._cause:
            self._episode.begin(self._prompt(given))
            strand = self._episode.strands[0]
        elif mark is not None and not mark.asks and mark is self._open[mark.strand.number]:
            strand = mark.strand
            self._episode.add_messages(self._added(given[len(mark.messages) :]), policy, strand)
        else:
            strand = self._branch(given, mark, policy)
        self._marked(Mark(strand, given, len(strand.whole), asks=True))
        return strand

    def wrote(self, strand: Strand, text: str, *, stopped: bool) -> None:
        """The model wrote a turn. One that did not stop cannot be continued."""
        messages = (*self._open[strand.number].messages, ("assistant", text))
        if stopped:
            self._marked(Mark(strand, messages, len(strand.whole), asks=False))

    def _marked(self, mark: Mark) -> None:
        self._marks.append(mark)
        self._open[mark.strand.number] = mark

    def _continued(self, given: tuple[Message, ...]) -> Mark | None:
        """The longest part of what was said that the messages begin with and can be continued."""
        fitting = [
            mark
            for mark in self._marks
            if given[: len(mark.messages)] == mark.messages and (not mark.asks or len(given) == len(mark.messages))
        ]
        return max(fitting, key=lambda mark: (len(mark.messages), mark.length), default=None)

    def _branch(self, given: tuple[Message, ...], mark: Mark | None, policy: PolicyVersion) -> Strand:
        episode = self._episode
        if mark is not None:
            rest = given[len(mark.messages) :]
            tokens = self._chat.message_tokens(rest) if rest else []
            cause = "again" if mark.asks else "rewrite"
            episode.said(self._added(rest))
            return episode.branch(mark.strand, mark.length, tokens, policy, cause)
        prompt = self._prompt(given)
        parent, shared = max(
            ((each, common_length(each.whole, prompt)) for each in episode.strands), key=lambda found: found[1]
        )
        cause = "rewrite" if self._marks else self._cause
        episode.said(self._added(given))
        return episode.branch(parent, shared, prompt[shared:], policy, cause)

    def _prompt(self, given: Sequence[Message]) -> list[int]:
        return self._chat.opening_tokens(given, self._episode.request.problem)

    def _added(self, messages: Sequence[Message]) -> list[EnvironmentMessage]:
        turn = self._episode.turns
        return [EnvironmentMessage(turn, role, content) for role, content in messages]


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences begin with in common."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def sound_messages(messages: object) -> list[Message]:
    """Role and content of each message. Raises ContractError when there are none, or when one is not a message."""
    if not isinstance(messages, Iterable) or isinstance(messages, str | bytes | Mapping):
        raise ContractError(
            f"the messages are {messages!r:.{SHOWN}}; give a list of dictionaries with role and content"
        )
    found = [sound_message(message, number) for number, message in enumerate(messages, 1)]
    if not found:
        raise ContractError("there are no messages; give at least one of the user")
    return found


def prompt_check(prompt: Sequence[int]) -> int:
    """The checksum that the first turn continues."""
    return crc32(np.array(prompt, dtype=np.int32).data)


def checksum(
    before: int, arrays: Sequence[np.ndarray[Any, Any]], state: bytes, tool_states: Mapping[str, bytes]
) -> int:
    """The checksum of a rollout after a turn, from that before it."""
    check = before
    for array in arrays:
        check = crc32(np.ascontiguousarray(array).data, check)
    check = crc32(state, check)
    for name in sorted(tool_states):
        check = crc32(tool_states[name], crc32(name.encode(), check))
    return check


def turn_check(turn: CompletedTurn) -> int:
    """The checksum that the turn ought to have."""
    arrays = (turn.written, turn.logprobs, turn.policies, turn.answer)
    return checksum(turn.before, arrays, turn.state, turn.tool_states)


def runs_of(policies: Int32Matrix) -> Int32Matrix:
    """Policies token by token [n, 2] as runs of equal ones [r, 3]: epoch, version, length."""
    count = len(policies)
    if policies.tobytes() == policies[:1].tobytes() * count:  # most turns: one policy
        return np.array([[*policies[0].tolist(), count]], dtype=np.int32)
    changes = np.flatnonzero((policies[1:] != policies[:-1]).any(axis=1)) + 1
    starts = np.concatenate([[0], changes])
    lengths = np.diff(np.append(starts, count))
    return np.column_stack([policies[starts], lengths]).astype(np.int32)


def token_by_token(runs: Int32Matrix) -> Int32Matrix:
    """The inverse of `runs_of`: [r, 3] -> [n, 2]."""
    policies: Int32Matrix = np.repeat(runs[:, :2], runs[:, 2], axis=0)
    return policies


def chain_fault(before: int, turns: Sequence[CompletedTurn]) -> str:
    """Why the turns do not continue each other from the checksum ``before``; empty if they do."""
    for number, turn in enumerate(turns, 1):
        if turn.number != number:
            return f"turn {number} is missing"
        if turn.before != before:
            return "they continue another prompt" if number == 1 else f"turn {number} continues another turn"
        if turn_check(turn) != turn.after or not _sound(turn):
            return f"turn {number} is damaged"
        before = turn.after
    return ""


def _sound(turn: CompletedTurn) -> bool:
    runs, count = turn.policies, len(turn.written)
    fits = len(turn.logprobs) == count > 0 and runs.shape[1:] == (3,)
    return fits and bool((runs[:, 2] > 0).all()) and int(runs[:, 2].sum()) == count


def answered(turn: CompletedTurn) -> tuple[Int32Vector, Int32Matrix]:
    """The tokens of a turn's answer [g], and their policies [g, 2]."""
    policy = np.array([[turn.policy.epoch, turn.policy.version]], dtype=np.int32)
    return turn.answer, np.tile(policy, (len(turn.answer), 1))
