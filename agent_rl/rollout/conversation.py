"""The conversation of a user's own loop as one sequence of tokens: what it may be continued with, and what is refused.

::

    loop --messages--> Conversation.continued --> Episode.begin, Episode.told --> the engine writes --> Conversation.wrote --> loop

A rollout is one sequence: each of its tokens was sampled after exactly the tokens before it, and is trained on in that place. So
a loop continues its conversation: the messages of a call to ``model`` are those of the call before, the turn that this
returned, and what follows it. The turn's tokens are kept and never encoded again. A loop that changes what was said would have the
later turns sampled after another text than they are trained after; it is refused, with the place of the change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from agent_rl.config.plugins import ContractError
from agent_rl.environments.observing import sound_message
from agent_rl.messages import EnvironmentMessage

if TYPE_CHECKING:
    from agent_rl.messages import Policy
    from agent_rl.rollout.episode import Episode
    from agent_rl.rollout.prompts import ChatFormat

SHOWN = 60
"""Characters of a text in an error message."""


class Conversation:
    """What a loop has said and the model has answered, beside the episode that holds its tokens."""

    def __init__(self, episode: Episode, chat: ChatFormat) -> None:
        self._episode = episode
        self._chat = chat
        self._said: list[tuple[str, str]] = []

    def continued(self, messages: object, policy: Policy) -> None:
        """Take the messages of a call to ``model``; the episode may then write its next turn, or has ended.

        ``policy`` is what is served now. Raises ContractError.
        """
        given = sound_messages(messages)
        if not self._said:
            self._episode.begin(self._chat.opening_tokens(given, self._episode.request.problem))
        else:
            self._unchanged(given)
            turn = self._episode.turns
            added = [EnvironmentMessage(turn, role, content) for role, content in given[len(self._said) :]]
            self._episode.told(added, policy)
        self._said = given

    def wrote(self, text: str) -> None:
        """The model wrote a turn."""
        self._said.append(("assistant", text))

    def _unchanged(self, given: Sequence[tuple[str, str]]) -> None:
        for number, (before, now) in enumerate(zip(self._said, given, strict=False), 1):
            if before != now:
                raise ContractError(
                    f"message {number} of the conversation was {_shown(before)} and is now {_shown(now)}; a rollout is one sequence "
                    "of tokens: give model() its earlier messages and turns as they were, then what follows"
                )
        if len(given) < len(self._said):
            raise ContractError(
                f"the conversation has {len(given)} messages, where {len(self._said)} were said, the model's last turn included; give "
                "model() all of them, then what follows"
            )


def sound_messages(messages: object) -> list[tuple[str, str]]:
    """Role and content of each message of a conversation. Raises ContractError when they are no messages, or none."""
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
