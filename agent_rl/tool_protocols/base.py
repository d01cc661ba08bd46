"""What the protocols of tool services share: the program to run, how it ended, and errors of bodies.

::

    body --Endpoint.read--> Asked --programs--> ProgramEnd each --Asked.reply--> body
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError

Model = TypeVar("Model", bound=BaseModel)
Language: TypeAlias = Literal["python", "cpp"]
QUEUE_FOR_LONG = 3600.0
"""Seconds that a program waits for a place where the client is patient."""
ENCODED = re.compile(r"b64decode\(\s*b?[\"']([A-Za-z0-9+/=]+)[\"']")


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of the service. ``seconds``: of a program whose protocol has no limit of its own; ``most_seconds``: of
    any; ``memory_bytes``: address space of each process; ``shown``: characters of an output in replies of code-judge;
    ``queue_seconds``: how long a program waits for a place before code-judge answers ``queue_timeout``.
    """

    seconds: float = 10.0
    most_seconds: float = 300.0
    memory_bytes: int = 1 << 30
    shown: int = 1000
    queue_seconds: float = 4.0


@dataclass(frozen=True, slots=True)
class Program:
    """A program to run. ``files`` and fetched files are in base64, by paths that begin at its working directory.

    ``memory_bytes`` is address space of each process, beyond that of the interpreter. ``output_bytes`` of output are
    wanted, where the service would cut it earlier.
    """

    language: Language
    code: str
    stdin: str
    seconds: float
    memory_bytes: int
    compile_seconds: float = 10.0
    files: Mapping[str, str] = field(default_factory=dict)
    fetch: Sequence[str] = ()
    output_bytes: int = 0

    @property
    def names(self) -> str:
        """The code, with what it holds in base64 literals: text in which to look for names of modules."""
        return "\n".join([self.code, *map(_decoded, ENCODED.findall(self.code))])


@dataclass(frozen=True, slots=True)
class Run:
    """How a process ended. ``status``: its exit status, or minus the signal that ended it; None: at its time limit.

    ``fault`` says why the sandbox could not run it, or not as asked; empty when it did. ``cut``: its output was longer
    than ``stdout``.
    """

    status: int | None
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0
    files: Mapping[str, str] = field(default_factory=dict)
    fault: str = ""
    cut: bool = False


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """How a program ended. ``run`` is None when it was not compiled; all are None when it found no place.

    ``compiled`` is None for languages without a compiler.
    """

    run: Run | None
    compiled: Run | None = None
    waited: float = 0.0
    """Seconds in which it found no place."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was read: its programs, and the function that makes the body of the reply of their ends."""

    programs: Sequence[Program]
    reply: Callable[[Sequence[ProgramEnd]], bytes]
    queue_seconds: float = QUEUE_FOR_LONG


Read: TypeAlias = Callable[[bytes, Bounds], Asked]
"""Reads the body of a request. Raises BodyError."""


class BodyError(Exception):
    """A body that is not what the protocol wants; ``body`` is that of the reply, with status 422."""

    def __init__(self, body: bytes) -> None:
        super().__init__(body.decode())
        self.body = body


SHOWN_FAULTS = 20
"""Of a body, in its error."""


def read_as(model: type[Model], content: bytes) -> Model:
    """The body as an object of ``model``. Raises BodyError, whose body names each field at fault."""
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise BodyError(detail([{**fault, "loc": ["body", *fault["loc"]]} for fault in found[:SHOWN_FAULTS]])) from None


def detail(what: Any) -> bytes:
    """The body of an error, as both services write it."""
    return json.dumps({"detail": what}).encode()


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text).decode("utf-8", "replace")
    except binascii.Error:
        return ""
