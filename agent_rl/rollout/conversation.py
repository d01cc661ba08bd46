"""The conversation of a user's own loop as one sequence of tokens.

::

    loop --messages--> Conversation.continue_with --> Episode.begin or .add_messages --> engine --> Conversation.wrote

A rollout is one sequence: each of its tokens was sampled after exactly the tokens before it, and is trained in this
place. So the messages of a call to ``model`` are the messages of the call before, the turn that the call returned, and
new messages. The tokens of turns are kept and never encoded again. A loop that changes earlier messages is refused: its
later turns would be sampled after another text than they are trained after.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from agent_rl.config.plugins import ContractError
from agent_rl.environments.judging import sound_message
from agent_rl.messages import EnvironmentMessage

if TYPE_CHECKING:
    from agent_rl.messages import PolicyVersion
    from agent_rl.rollout.episode import Episode
    from agent_rl.rollout.prompts import ChatFormat
from typing import Any
from zlib import crc32

import numpy as np

from agent_rl.messages import CompletedTurn, Int32Matrix, Int32Vector

SHOWN = 60
"""Characters of a text in an error message."""


class Conversation:
    """The messages of a loop and the turns of the model. The episode holds their tokens."""

    def __init__(self, episode: Episode, chat: ChatFormat) -> None:
        self._episode = episode
        self._chat = chat
        self._messages: list[tuple[str, str]] = []

    def continue_with(self, messages: object, policy: PolicyVersion) -> None:
        """Append the new messages of a call to ``model``. Then the model may write, or the episode has ended.

        ``policy`` is served now. Raises ContractError when earlier messages have changed.
        """
        given = sound_messages(messages)
        if not self._messages:
            self._episode.begin(self._chat.opening_tokens(given, self._episode.request.problem))
        else:
            self._require_unchanged(given)
            turn = self._episode.turns
            added = [EnvironmentMessage(turn, role, content) for role, content in given[len(self._messages) :]]
            self._episode.add_messages(added, policy)
        self._messages = given

    def wrote(self, text: str) -> None:
        """Add a turn of the model."""
        self._messages.append(("assistant", text))

    def _require_unchanged(self, given: Sequence[tuple[str, str]]) -> None:
        for number, (before, now) in enumerate(zip(self._messages, given, strict=False), 1):
            if before != now:
                raise ContractError(
                    f"message {number} of the conversation was {_shown(before)} and is now {_shown(now)}; a rollout is "
                    "one sequence of tokens: give model() its earlier messages and turns unchanged, then new messages"
                )
        if len(given) < len(self._messages):
            raise ContractError(
                f"the conversation has {len(given)} messages, and had {len(self._messages)} with the model's last "
                "turn; give model() all of them, then new messages"
            )


def sound_messages(messages: object) -> list[tuple[str, str]]:
    """Role and content of each message. Raises ContractError when there are none, or when one is not a message."""
    if not isinstance(messages, Iterable) or isinstance(messages, str | bytes | Mapping):
        raise ContractError(
            f"the messages are {messages!r:.{SHOWN}}; give a list of dictionaries with role and content"
        )
    found = [sound_message(message, number) for number, message in enumerate(messages, 1)]
    if not found:
        raise ContractError("there are no messages; give at least one of the user")
    return found


def _shown(message: tuple[str, str]) -> str:
    role, content = message
    return f"{role}: {content!r:.{SHOWN}}"


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
