"""Keys of rollouts at the gateway: what an agent sends as its API key, and where it sends it."""

from __future__ import annotations

import secrets

MODEL = "agent-rl"
"""The name of the model that is trained. What is asked of other names is a side call."""
START = "sk-rollout-"


def key_for(generator: int) -> str:
    """A key that no one can guess, and that says which replica of the generators made it."""
    return f"{START}{generator}-{secrets.token_urlsafe(24)}"


def generator_of(key: str) -> int | None:
    """The number of the replica that made a key; None: it is no such key."""
    number = key.removeprefix(START).partition("-")[0]
    return int(number) if key.startswith(START) and number.isascii() and number.isdigit() and len(number) < 9 else None
