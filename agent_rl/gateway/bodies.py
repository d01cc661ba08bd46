"""What the dialects share: bodies read key by key, tools, token ids, server-sent events, and errors."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from agent_rl.config.suggestions import suggest
from agent_rl.files.reading_json import JsonError, parse_json
from agent_rl.gateway.base import RequestError
from agent_rl.messages import Choice, Float32Vector, Int32Vector, Refusal, Said, SaidCall, TurnGiven, TurnPart

MAX_DEPTH = 64
"""How deep lists and objects of a body may be nested."""
LARGEST = 2**31 - 1
STOPS, STOP_CHARS = 16, 1000
KEEPALIVE = b": keepalive\n\n"
"""A comment. Clients of server-sent events skip it."""
DONE = b"data: [DONE]\n\n"
UNCONSTRAINED = "the model writes freely; leave it out, and describe the form in a message"
_MEDIA = {"image": "images", "audio": "sounds", "video": "videos", "file": "files", "document": "documents"}
"""Types of parts, without the ``input_`` and ``_url`` that some have."""


def read_body(content: bytes) -> dict[str, Any]:
    """The object in the bytes of a request. Raises RequestError."""
    try:
        body = parse_json(content)
    except JsonError as error:
        raise RequestError(f"the body is {error}") from None
    if not isinstance(body, dict):
        raise RequestError(f"the body must be a JSON object; it is {_kind(body)}")
    return body


class Fields:
    """An object of a body. A key with ``null`` counts as absent. Every method raises RequestError."""

    def __init__(self, content: object, path: str = "") -> None:
        if not isinstance(content, Mapping):
            raise RequestError(f"{path} must be an object; it is {_kind(content)}", path)
        self.content = content
        self.path = path

    def given(self, key: str) -> Any:
        """Any value, or None."""
        return self.content.get(key)

    def text(self, key: str, default: str | None = None) -> str:
        """A text. It must be there if there is no ``default``."""
        value = self.given(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self.fault(key, f"must be text; it is {_kind(value)}")
        return value

    def one_of(self, key: str, *allowed: str) -> str:
        """One of some texts."""
        value = self.text(key)
        if value not in allowed:
            raise self.fault(key, f"is {shown(value)}; it must be one of {', '.join(allowed)}")
        return value

    def flag(self, key: str, *, default: bool = False) -> bool:
        """True or false."""
        value = self.given(key)
        if value is not None and not isinstance(value, bool):
            raise self.fault(key, f"must be true or false; it is {_kind(value)}")
        return default if value is None else value

    def whole(self, key: str, least: int, most: int = LARGEST) -> int | None:
        """A whole number, or None without the key."""
        value = self.given(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.fault(key, f"must be a whole number from {least} to {most}")
        return value

    def child(self, key: str) -> Fields | None:
        """An object, or None without the key."""
        value = self.given(key)
        return None if value is None else Fields(value, self._at(key))

    def items(self, key: str) -> list[Any]:
        """A list; an empty one without the key."""
        value = self.given(key)
        if value is not None and not isinstance(value, list):
            raise self.fault(key, f"must be a list; it is {_kind(value)}")
        return value or []

    def objects(self, key: str) -> list[Fields]:
        """A list of objects; an empty one without the key."""
        return [Fields(each, f"{self._at(key)}[{number}]") for number, each in enumerate(self.items(key))]

    def stops(self, key: str) -> tuple[str, ...]:
        """Texts at which the model stops: a list of texts, or one text."""
        value = self.given(key)
        stops = [value] if isinstance(value, str) else self.items(key)
        if not all(isinstance(each, str) and each and len(each) <= STOP_CHARS for each in stops) or len(stops) > STOPS:
            raise self.fault(key, f"must hold texts that are not empty, {STOPS} of {STOP_CHARS} characters at most")
        return tuple(stops)

    def tokens(self, key: str) -> Int32Vector:
        """Token ids [n], at least one."""
        value = self.items(key)
        if not value or any(type(each) is not int for each in value) or min(value) < 0 or max(value) > LARGEST:
            raise self.fault(key, f"must be a list of token ids from 0 to {LARGEST}")
        return np.array(value, dtype=np.int32)

    def parts(self, key: str, kind: str = "text", *, needed: bool = True) -> list[Fields]:
        """The parts of a content; a plain text is one part, of the type ``kind``."""
        value = self.given(key)
        if isinstance(value, str):
            return [Fields({"type": kind, "text": value}, self._at(key))]
        if not isinstance(value, list) and (value is not None or needed):
            raise self.fault(key, f"must be text or a list of parts; it is {_kind(value)}")
        return self.objects(key)

    def joined(self, key: str, *kinds: str, needed: bool = True, between: str = "") -> str:
        """The joined texts of a content, whose parts are all of the types ``kinds``. Parts of a tool's result are texts
        of their own, with a line break ``between`` them.
        """
        return between.join(part.part_text(*kinds) for part in self.parts(key, kinds[0], needed=needed))

    def part_text(self, *kinds: str) -> str:
        """The text of a part."""
        kind = self.text("type")
        if kind not in kinds:
            raise self.unsupported(kind)
        return self.text("text")

    def unsupported(self, kind: str) -> RequestError:
        """An object of a type that the gateway has no use for."""
        medium = _MEDIA.get(kind.removeprefix("input_").removesuffix("_url"))
        named = f"{medium} are" if medium else f"the type {shown(kind)} is"
        why = f"leave {self.path} out; the model reads text and calls functions of the client"
        return RequestError(f"{named} not supported: {why}", self.path)

    def fault(self, key: str, why: str) -> RequestError:
        """A value that cannot be read."""
        return RequestError(f"{self._at(key)} {why}", self._at(key))

    def _at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key


def _kind(value: object) -> str:
    names = {type(None): "missing", bool: "a boolean", str: "text", list: "a list", dict: "an object"}
    return names.get(type(value), "a number")


def shown(text: str) -> str:
    """A text of the client in quotes, cut at 80 characters."""
    return f"{text!r:.80}"


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of an object: names with spaces between.

    ``read``: by the dialect. ``decided``: by the run. ``unused``: they mean nothing to a model under training.
    ``refused``: with the reason.
    """

    read: str
    decided: str = ""
    unused: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)

    def ignored(self, given: Fields) -> tuple[str, ...]:
        """The keys that the run decides. Raises RequestError for a key that is refused or unknown.

        A refused key may be there if it asks for nothing: null, false, or empty.
        """
        known = {*self.read.split(), *self.decided.split(), *self.unused.split()}
        for key, value in given.content.items():
            if key in self.refused and value:
                raise given.fault(key, f"is not supported: {self.refused[key]}")
            if key not in known and key not in self.refused:
                hint = suggest(key[:80], sorted(known))
                remedy = hint if hint.startswith("did") else "leave it out"
                raise RequestError(f"{given.path or 'the body'} has the unknown key {shown(key)}; {remedy}", key[:80])
        return tuple(key for key in self.decided.split() if given.given(key) is not None)


def checked(body: Mapping[str, Any]) -> Fields:
    """A body whose values can be sent on. Raises RequestError."""
    _check(body, "", 0)
    return Fields(body)


def _check(value: object, path: str, depth: int) -> None:
    """Refuse what cannot be sent on: deep nesting, numbers that are not finite, halves of surrogate pairs."""
    where = path[:200] or "the body"
    if depth > MAX_DEPTH:
        raise RequestError(f"{where} is nested deeper than {MAX_DEPTH} levels", path[:200])
    if isinstance(value, float) and not math.isfinite(value):
        raise RequestError(f"{where} is a number that is too large", path[:200])
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise RequestError(f"{where} holds half of a surrogate pair, which is no character", path[:200]) from None
    elif isinstance(value, Mapping):
        for key, each in value.items():
            _check(key, path, depth)
            _check(each, f"{path}.{key[:80]}" if path else key[:80], depth + 1)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            if type(each) is not int:  # a list may hold a hundred thousand token ids
                _check(each, f"{path}[{number}]", depth + 1)


def require_text(form: Fields | None) -> None:
    """Raises RequestError when the output is to have another form."""
    if form and form.text("type") != "text":
        raise RequestError(f"{form.path} {shown(form.text('type'))} is not supported: {UNCONSTRAINED}", form.path)


def call_of(function: Fields, call_id: str = "") -> SaidCall:
    """A call of an earlier turn."""
    return SaidCall(function.text("name"), function.text("arguments", "{}"), call_id)


def some(messages: Sequence[Said], key: str) -> tuple[Said, ...]:
    """The messages that were read from ``key``. Raises RequestError when there are none."""
    if not messages:
        raise RequestError(f"{key} must have at least one message", key)
    return tuple(messages)


def tools_of(
    body: Fields, kind: str = "function", parameters: str = "parameters", inside: str = ""
) -> tuple[str, tuple[str, ...]]:
    """The tools as a JSON list for chat templates, and ``tool_choice`` if it asks for what the gateway ignores.

    ``kind``: the type of a client's function. ``parameters``: the key of its schema. ``inside``: the key of the object
    that has name, description and schema. Other keys of a tool would only change the prompt. The model is never made to
    call a tool; with the choice "none" it is shown none.
    """
    schemas = []
    for tool in body.objects("tools"):
        if tool.text("type", kind) != kind:
            raise tool.unsupported(tool.text("type"))
        function = tool.child(inside) if inside else tool
        if function is None:
            raise tool.fault(inside, "must be an object; it is missing")
        description, given = function.text("description", ""), function.child(parameters)
        schema: dict[str, Any] = {"name": function.text("name")}
        schema |= {"description": description} if description else {}
        schema["parameters"] = given.content if given else {"type": "object", "properties": {}}
        schemas.append({"type": "function", "function": schema})
    named = isinstance(body.given("tool_choice"), str)
    choice = None if named else body.child("tool_choice")
    chosen = body.one_of("tool_choice", "auto", "none", "required") if named else choice and choice.text("type")
    listed = json.dumps([] if chosen == "none" else schemas, ensure_ascii=False)
    return listed, () if chosen in (None, "auto", "none") else ("tool_choice",)


@dataclass(frozen=True, slots=True)
class Extras:
    """What a reply has beside the text. ``top``: the one log-probability is listed as the likeliest, too."""

    token_ids: bool = False
    logprobs: bool = False
    top: bool = False
    usage: bool = False
    messages: bool = False
    """Of a stream: calls that are run here come as messages, and not as reasoning."""

    def of(self, written: TurnPart | Choice) -> dict[str, Any]:
        """The keys of a choice or a chunk."""
        tokens = {"token_ids": written.tokens.tolist()} if self.token_ids else {}
        logprobs = token_logprobs(written.tokens, written.logprobs, top=self.top) if self.logprobs else None
        return {"logprobs": logprobs, **tokens}


def token_logprobs(tokens: Int32Vector, logprobs: Float32Vector, *, top: bool = False) -> dict[str, Any] | None:
    """Log-probabilities in the shape of Chat Completions, or None when not every token has one.

    The texts of tokens are not known here: ``token`` is ``token_id:<id>``, as vLLM's return_tokens_as_token_ids has it.
    """
    if len(tokens) != len(logprobs) or not np.isfinite(logprobs).all():
        return None
    content = []
    for token, logprob in zip(tokens.tolist(), logprobs.tolist(), strict=True):
        entry = {"token": f"token_id:{token}", "logprob": logprob, "bytes": None}
        content.append(entry | {"top_logprobs": [entry] if top else []})
    return {"content": content}


def all_token_ids(given: TurnGiven) -> dict[str, Any]:
    """The tokens of a reply with one choice, under the names that vLLM gives them."""
    (choice,) = given.choices
    keys = {"prompt_token_ids": given.prompt.tolist(), "token_ids": choice.tokens.tolist()}
    logprobs = token_logprobs(choice.tokens, choice.logprobs)
    return keys if logprobs is None else keys | {"logprobs": logprobs}


def counts(given: TurnGiven, prompt: str = "input_tokens", written: str = "output_tokens") -> dict[str, int]:
    """Tokens of the prompt, and of all choices."""
    return {prompt: len(given.prompt), written: sum(len(choice.tokens) for choice in given.choices)}


def usage_of(given: TurnGiven) -> dict[str, int]:
    """The counts of tokens in Chat Completions."""
    usage = counts(given, "prompt_tokens", "completion_tokens")
    return usage | {"total_tokens": sum(usage.values())}


class Progress:
    """How much of a reply a stream has written. ``prompt_ids``: the tokens of the prompt are wanted in one chunk."""

    def __init__(self, count: int = 1, *, prompt_ids: bool = False) -> None:
        self._content: list[list[str]] = [[] for _ in range(count)]
        self._reasoning: list[list[str]] = [[] for _ in range(count)]
        self._tokens = [0] * count
        self._prompt_ids = prompt_ids

    def take(self, part: TurnPart) -> None:
        """Note a part that is written."""
        self._content[part.choice].append(part.content)
        self._reasoning[part.choice].append(part.reasoning)
        self._tokens[part.choice] += len(part.tokens)

    def rest(self, number: int, choice: Choice) -> TurnPart:
        """What no part had. A text that does not continue its parts is not written again."""
        texts = (("".join(self._content[number]), choice.content), ("".join(self._reasoning[number]), choice.reasoning))
        content, reasoning = (whole.removeprefix(begun) if whole.startswith(begun) else "" for begun, whole in texts)
        count = self._tokens[number]
        return TurnPart(number, content, reasoning, choice.tokens[count:], choice.logprobs[count:])

    def prompt(self, prompt: Int32Vector) -> dict[str, Any]:
        """The keys of the one chunk: the first for which the prompt is known."""
        if not self._prompt_ids or not len(prompt):
            return {}
        self._prompt_ids = False
        return {"prompt_token_ids": prompt.tolist()}


def event(data: Mapping[str, Any], name: str = "") -> bytes:
    """A server-sent event. It is plain ASCII, since some clients break lines at U+2028."""
    text = f"data: {json.dumps(data)}\n\n"
    return (f"event: {name}\n{text}" if name else text).encode()


STATUSES: Mapping[Refusal, int] = {"key": 401, "ended": 409, "overflow": 400, "request": 400, "busy": 429}
"""Of errors; 503 for the others. SDKs repeat a request after 409, 429 and 503, unless ``x-should-retry: false``."""
_OPENAI_ERRORS: Mapping[Refusal, tuple[str, str | None]] = {
    "key": ("invalid_request_error", "invalid_api_key"),
    "ended": ("invalid_request_error", "rollout_concluded"),
    "overflow": ("invalid_request_error", "context_length_exceeded"),
    "request": ("invalid_request_error", None),
    "busy": ("rate_limit_error", "rate_limit_exceeded"),
}


def message_of(refusal: Refusal, why: str, overflow: str) -> str:
    """The message of an error. ``overflow``: the words by which agents recognise that a prompt is too long."""
    said = {"ended": "rollout concluded", "overflow": overflow}.get(refusal, "")
    return ": ".join(filter(None, (said, why))) or "there is no turn; try again"


class OpenAIErrors:
    """The errors of OpenAI and vLLM."""

    def error(self, refusal: Refusal, why: str, field: str = "") -> tuple[int, dict[str, Any]]:
        """Status and body of an error."""
        return STATUSES.get(refusal, 503), {"error": openai_error(refusal, why, field)}


def openai_error(refusal: Refusal, why: str, field: str = "") -> dict[str, Any]:
    """The object that describes an error."""
    kind, code = _OPENAI_ERRORS.get(refusal, ("server_error", "server_error"))
    message = message_of(refusal, why, "This model's maximum context length is exceeded")
    return {"message": message, "type": kind, "param": field or None, "code": code}
