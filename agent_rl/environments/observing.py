"""Checks an environment's answer to a turn before a model reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_rl.config.plugins import ContractError
from agent_rl.environments.base import SNAPSHOT_BYTES, Observation
from agent_rl.messages import EnvironmentMessage, TurnObserved

ROLES = ("system", "user", "assistant")
SHOWN = 60
"""Characters of a value in an error message."""


def observation(answer: object, turn: int, state: bytes) -> TurnObserved:
    """The answer to turn ``turn`` after the snapshot ``state``. Raises ContractError for an unusable answer."""
    if answer is None:
        return TurnObserved(state=state, done=True)
    if not isinstance(answer, Observation):
        raise ContractError(f"observe returned {answer!r:.{SHOWN}}; return an Observation, or None to end the rollout")
    kept = state if answer.state is None else answer.state
    if not isinstance(kept, bytes) or len(kept) > SNAPSHOT_BYTES:
        what = f"{len(kept)} bytes" if isinstance(kept, bytes) else f"{kept!r:.{SHOWN}}"
        raise ContractError(f"the state of an Observation is {what}; it must be bytes, at most {SNAPSHOT_BYTES}")
    try:
        given = [sound_message(message, number) for number, message in enumerate(answer.messages, 1)]
    except TypeError:
        given = []
    if not given and not answer.done:
        raise ContractError(
            f"the messages of an Observation are {answer.messages!r:.{SHOWN}}; "
            "give at least one, or done=True, or return None"
        )
    messages = tuple(EnvironmentMessage(turn, role, content) for role, content in given)
    return TurnObserved(messages, kept, bool(answer.done))


def sound_message(message: Any, number: int) -> tuple[str, str]:
    """Role and content of a message, number ``number``. Raises ContractError when it is none."""
    role, content = (message.get("role"), message.get("content")) if isinstance(message, Mapping) else (None, None)
    if role not in ROLES or not isinstance(content, str):
        wanted = f'{{"role": one of {", ".join(ROLES)}, "content": text}}'
        raise ContractError(f"message {number} is {message!r:.{SHOWN}}; it must be {wanted}")
    try:
        content.encode()
    except UnicodeEncodeError:
        raise ContractError(
            f"message {number} holds an unpaired surrogate, which no tokenizer takes; leave it out"
        ) from None
    return role, content
