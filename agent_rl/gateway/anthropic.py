"""Anthropic's Messages: ``POST /v1/messages``, and ``/v1/messages/count_tokens``, which counts a prompt only.

With the extra key ``return_token_ids`` a message has ``prompt_token_ids``, ``token_ids`` and ``logprobs`` beside
``content``, in the shapes of Chat Completions. In a stream the event ``message_delta`` has them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from agent_rl.gateway.base import NO_TOKENS, Stream, Wanted
from agent_rl.gateway.bodies import (
    STATUSES,
    UNCONSTRAINED,
    Fields,
    Keys,
    Progress,
    all_token_ids,
    checked,
    counts,
    event,
    message_of,
    some,
    tools_of,
)
from agent_rl.messages import Finish, Int32Vector, Refusal, Said, SaidCall, TurnAsked, TurnGiven, TurnPart

_KEYS = Keys(
    read="model messages system max_tokens stop_sequences stream tools tool_choice return_token_ids",
    decided="temperature top_p top_k thinking output_config speed context_management compaction",
    unused="metadata service_tier cache_control diagnostics inference_geo user_profile_id workspace_id betas "
    "billing_policy fallbacks fallback_credit_token",
    refused={
        "container": "nothing here runs containers; leave it out",
        "mcp_servers": "nothing here calls MCP servers; give their tools as functions",
        "thread": "the gateway keeps no messages; send the whole conversation",
        "output_format": UNCONSTRAINED,
    },
)
_BILLING = re.compile(r"^x-anthropic-billing-header:.*\n?", re.MULTILINE)
"""A line that Claude Code writes anew into each request. With it no request would continue another."""
_STOP_REASONS: Mapping[Finish, str] = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_ERRORS: Mapping[Refusal, str] = {
    "key": "authentication_error",
    "ended": "invalid_request_error",
    "overflow": "invalid_request_error",
    "request": "invalid_request_error",
    "busy": "rate_limit_error",
}
SIGNATURE = "unsigned"
"""Clients drop thinking whose signature is empty. Nobody checks it here."""


class Anthropic:
    """Messages. ``counts_only``: the path that counts tokens."""

    def __init__(self, *, counts_only: bool = False) -> None:
        self._counts_only = counts_only

    def read(self, body: Mapping[str, Any]) -> Wanted:
        """Raises RequestError."""
        fields = checked(body)
        ignored = _KEYS.ignored(fields)
        config = fields.child("output_config")
        if config and config.given("format") is not None:
            raise config.fault("format", f"is not supported: {UNCONSTRAINED}")
        tools, choice_ignored = tools_of(fields, "custom", "input_schema")
        asked = TurnAsked(
            "",
            "",
            fields.text("model", ""),
            (*_system(fields, "system"), *some(_said(fields), "messages")),
            tools,
            max_tokens=fields.whole("max_tokens", 1) or 0,
            stop=fields.stops("stop_sequences"),
            streams=fields.flag("stream") and not self._counts_only,
            counts=self._counts_only,
        )
        return Wanted(asked, fields.flag("return_token_ids"), (*ignored, *choice_ignored))

    def reply(self, wanted: Wanted, given: TurnGiven, name: str, created: int) -> dict[str, Any]:  # noqa: ARG002
        """The body of a whole reply: what a stream adds up to."""
        if wanted.asked.counts:
            return {"input_tokens": len(given.prompt)}
        stream = _Stream(wanted, name)
        stream.ended(given)
        return stream.message

    def stream(self, wanted: Wanted, name: str, created: int) -> Stream:  # noqa: ARG002 - messages have no time
        """A streamed reply."""
        return _Stream(wanted, name)

    def error(self, refusal: Refusal, why: str, field: str = "") -> tuple[int, dict[str, Any]]:
        """Status and body of an error. ``why`` names the key at fault."""
        body = _error(refusal, why)
        if field == "thread":  # by this the client's tool runner learns that it must send the whole history
            body["error"]["details"] = {"error_code": "thread_unsupported_request", "unsupported": []}
        return STATUSES.get(refusal, 503), body


def _error(refusal: Refusal, why: str) -> dict[str, Any]:
    error = {"type": _ERRORS.get(refusal, "api_error"), "message": message_of(refusal, why, "prompt is too long")}
    return {"type": "error", "error": error}


def _system(fields: Fields, key: str) -> list[Said]:
    """A system text as one message, or none if nothing is left of it."""
    texts = [_BILLING.sub("", part.part_text("text")) for part in fields.parts(key, needed=False)]
    return [Said("system", "".join(texts))] if any(texts) else []


def _said(body: Fields) -> list[Said]:
    said: list[Said] = []
    for message in body.objects("messages"):
        role = message.one_of("role", "user", "assistant", "system")
        if role == "system":
            said += _system(message, "content")
        elif role == "user":
            said += _from_user(message)
        else:
            said.append(_turn(message))
    return said


def _from_user(message: Fields) -> list[Said]:
    """The results of tools, one message each, and then the user's own text."""
    results, texts = [], []
    for block in message.parts("content"):
        if block.text("type") == "tool_result":
            content = block.joined("content", "text", needed=False, between="\n")
            if block.flag("is_error") and not content.lower().startswith("error"):
                content = f"Error: {content}"
            results.append(Said("tool", content, call_id=block.text("tool_use_id", "")))
        else:
            texts.append(block.part_text("text"))
    return results if results and not texts else [*results, Said("user", "".join(texts))]


def _turn(message: Fields) -> Said:
    """A turn of the model. Redacted thinking cannot be read, and is left out."""
    texts, thoughts, calls = [], [], []
    for block in message.parts("content"):
        kind = block.text("type")
        if kind == "thinking":
            thoughts.append(block.text("thinking"))
        elif kind == "tool_use":
            given = block.child("input")
            arguments = json.dumps(given.content if given else {}, ensure_ascii=False)
            calls.append(SaidCall(block.text("name"), arguments, block.text("id", "")))
        elif kind != "redacted_thinking":
            texts.append(block.part_text("text"))
    return Said("assistant", "".join(texts), "".join(thoughts), tuple(calls))


class _Stream:
    """Events of a message. ``message`` is what they add up to."""

    keepalive = event({"type": "ping"}, "ping")

    def __init__(self, wanted: Wanted, name: str) -> None:
        self._token_ids: bool = wanted.options
        self._name = name
        self._progress = Progress()
        self._content: list[dict[str, Any]] = []
        self._texts: list[str] = []
        """Of the last block, while it is being written."""
        self.message: dict[str, Any] = {
            "id": f"msg_{name}",
            "type": "message",
            "role": "assistant",
            "model": wanted.asked.model,
            "content": self._content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},
        }

    def opened(self, prompt: Int32Vector = NO_TOKENS) -> bytes:
        self.message["usage"]["input_tokens"] = len(prompt)
        return _event("message_start", message=self.message)

    def part(self, part: TurnPart) -> bytes:
        self._progress.take(part)
        return self._write("thinking", part.reasoning) + self._write("text", part.content)

    def ended(self, given: TurnGiven) -> bytes:
        (choice,) = given.choices
        written = self.part(self._progress.rest(0, choice)) + self._close()
        written += b"".join(self._call(number, call) for number, call in enumerate(choice.calls))
        at = choice.cut_at if choice.finish == "stop" else ""
        stopped = {"stop_reason": "stop_sequence" if at else _STOP_REASONS[choice.finish], "stop_sequence": at or None}
        more = {"usage": counts(given), **(all_token_ids(given) if self._token_ids else {})}
        self.message |= stopped | more
        return written + _event("message_delta", delta=stopped, **more) + _event("message_stop")

    def failed(self, refusal: Refusal, why: str) -> bytes:
        return event(_error(refusal, why), "error")

    def _write(self, kind: str, text: str) -> bytes:
        """Go on with the block of a kind, or begin one."""
        if not text:
            return b""
        written = b""
        if not self._texts or self._content[-1]["type"] != kind:
            more = {"signature": ""} if kind == "thinking" else {}
            written = self._close() + self._begin({"type": kind, kind: "", **more})
        self._texts.append(text)
        return written + self._block("delta", delta={"type": f"{kind}_delta", kind: text})

    def _close(self) -> bytes:
        """End the block whose text is being written, if there is one."""
        if not self._texts:
            return b""
        block = self._content[-1]
        block[block["type"]] = "".join(self._texts)
        self._texts.clear()
        signed = b""
        if block["type"] == "thinking":
            block["signature"] = SIGNATURE
            signed = self._block("delta", delta={"type": "signature_delta", "signature": SIGNATURE})
        return signed + self._block("stop")

    def _call(self, number: int, call: SaidCall) -> bytes:
        own = call.id or f"toolu_{self._name}_{number}"
        written = self._begin({"type": "tool_use", "id": own, "name": call.name, "input": {}})
        written += self._block("delta", delta={"type": "input_json_delta", "partial_json": call.arguments})
        self._content[-1]["input"] = json.loads(call.arguments)
        return written + self._block("stop")

    def _begin(self, block: dict[str, Any]) -> bytes:
        self._content.append(block)
        return self._block("start", content_block=block)

    def _block(self, kind: str, **content: Any) -> bytes:
        return _event(f"content_block_{kind}", index=len(self._content) - 1, **content)


def _event(kind: str, **content: Any) -> bytes:
    return event({"type": kind, **content}, kind)
