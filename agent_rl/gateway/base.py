"""What a dialect is: it reads a request's body, and writes replies, streams and errors as its provider does.

::

    body --Dialect.read--> Wanted --gateway, generator--> TurnGiven --Dialect.reply--> body
                                                     `--> TurnPart --Stream.part-----> server-sent events
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from agent_rl.messages import Int32Vector, Refusal, TurnAsked, TurnGiven, TurnPart

NO_TOKENS: Int32Vector = np.zeros(0, dtype=np.int32)


class RequestError(Exception):
    """A body that cannot be served; the message says what to change. ``field``: the key at fault."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request that was read. ``asked`` has neither key nor ask yet.

    ``options`` are the dialect's own. ``ignored``: parameters that the run decides, as the temperature.
    """

    asked: TurnAsked
    options: Any = None
    ignored: tuple[str, ...] = ()


class Stream(Protocol):
    """One streamed reply. Every method returns bytes of the body, whole server-sent events."""

    keepalive: bytes
    """An event or a comment that clients skip."""

    def opened(self, prompt: Int32Vector = NO_TOKENS) -> bytes:
        """Before the first part. ``prompt`` [n]: its tokens, if they are known already; `ended` has them too."""

    def part(self, part: TurnPart) -> bytes:
        """Of a part."""

    def ended(self, given: TurnGiven) -> bytes:
        """After the last part: calls, finish, usage, and the end."""

    def failed(self, refusal: Refusal, why: str) -> bytes:
        """Instead of `ended`, when the turn breaks off."""


class Dialect(Protocol):
    """A dialect of HTTP."""

    def read(self, body: Mapping[str, Any]) -> Wanted:
        """Raises RequestError."""

    def reply(self, wanted: Wanted, given: TurnGiven, name: str, created: int) -> dict[str, Any]:
        """The body of a whole reply. ``name``: unique; ``created``: seconds since 1970."""

    def stream(self, wanted: Wanted, name: str, created: int) -> Stream:
        """A streamed reply."""

    def error(self, refusal: Refusal, why: str, field: str = "") -> tuple[int, dict[str, Any]]:
        """Status and body of an error."""
