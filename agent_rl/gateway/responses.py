"""OpenAI's Responses: ``POST /v1/responses``. Nothing is kept between requests: each has the whole conversation.

With the extra key ``return_token_ids`` the response has ``prompt_token_ids``, ``token_ids`` and ``logprobs`` beside
``output``, in the shapes of Chat Completions. In a stream only the response of the last event has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from agent_rl.gateway.base import NO_TOKENS, RequestError, Stream, Wanted
from agent_rl.gateway.bodies import (
    KEEPALIVE,
    Fields,
    Keys,
    OpenAIErrors,
    Progress,
    all_token_ids,
    call_of,
    checked,
    counts,
    event,
    openai_error,
    require_text,
    some,
    tools_of,
)
from agent_rl.messages import Int32Vector, Refusal, Said, SaidCall, TurnAsked, TurnGiven, TurnPart

_KEEPS_NOTHING = "the gateway keeps no responses; send the whole conversation as input"
_PARTS = ("input_text", "output_text", "text")
_KEYS = Keys(
    read="model input instructions tools tool_choice parallel_tool_calls max_output_tokens metadata stream text "
    "return_token_ids",
    decided="temperature top_p top_k presence_penalty frequency_penalty seed reasoning truncation max_tool_calls "
    "context_management top_logprobs",
    unused="include store stream_options user service_tier safety_identifier prompt_cache_key prompt_cache_options "
    "prompt_cache_retention moderation image client_metadata access_programs background_options",
    refused={
        "previous_response_id": _KEEPS_NOTHING,
        "conversation": _KEEPS_NOTHING,
        "background": "a reply ends with its request; leave it out",
        "prompt": "there are no stored prompts; send the text",
    },
)


@dataclass(frozen=True, slots=True)
class _Options:
    """``echo``: what a response repeats of its request."""

    token_ids: bool
    echo: Mapping[str, Any]


class Responses(OpenAIErrors):
    """Responses."""

    def read(self, body: Mapping[str, Any]) -> Wanted:
        """Raises RequestError."""
        fields = checked(body)
        ignored = _KEYS.ignored(fields)
        text, metadata = fields.child("text"), fields.child("metadata")
        require_text(text and text.child("format"))
        tools, choice_ignored = tools_of(fields)
        instructions, most = fields.text("instructions", ""), fields.whole("max_output_tokens", 1)
        echo = {
            "instructions": instructions or None,
            "max_output_tokens": most,
            "metadata": metadata.content if metadata else {},
            "parallel_tool_calls": fields.flag("parallel_tool_calls", default=True),
            "tool_choice": fields.given("tool_choice") or "auto",
            "tools": fields.items("tools"),
        }
        first = (Said("system", instructions),) if instructions else ()
        asked = TurnAsked(
            "",
            "",
            fields.text("model", ""),
            (*first, *some(_said(fields), "input")),
            tools,
            max_tokens=most or 0,
            streams=fields.flag("stream"),
        )
        return Wanted(asked, _Options(fields.flag("return_token_ids"), echo), (*ignored, *choice_ignored))

    def reply(self, wanted: Wanted, given: TurnGiven, name: str, created: int) -> dict[str, Any]:
        """The body of a whole reply: what a stream adds up to."""
        stream = _Stream(wanted, name, created)
        stream.ended(given)
        return stream.response

    def stream(self, wanted: Wanted, name: str, created: int) -> Stream:
        """A streamed reply."""
        return _Stream(wanted, name, created)


def _said(body: Fields) -> list[Said]:
    """The messages of an input. What the model wrote without a message between is one turn."""
    if isinstance(body.given("input"), str):
        return [Said("user", body.text("input"))]
    said: list[Said] = []
    for each in map(_item, body.objects("input")):
        turn = said[-1] if said else each
        if each.role == turn.role == "assistant" and said:
            content, reasoning = turn.content + each.content, turn.reasoning + each.reasoning
            said[-1] = replace(turn, content=content, reasoning=reasoning, calls=turn.calls + each.calls)
        else:
            said.append(each)
    return said


def _item(item: Fields) -> Said:
    kind = item.text("type", "message")
    if kind == "reasoning":
        texts = item.objects("content") or item.objects("summary")
        return Said("assistant", reasoning="".join(each.text("text") for each in texts))
    if kind == "function_call":
        return Said("assistant", calls=(call_of(item, item.text("call_id", "")),))
    if kind == "function_call_output":
        return Said("tool", item.joined("output", *_PARTS, between="\n"), call_id=item.text("call_id", ""))
    if kind == "item_reference":
        raise RequestError(f"{item.path} refers to a stored item: {_KEEPS_NOTHING}", item.path)
    if kind != "message":
        raise item.unsupported(kind)
    role = item.one_of("role", "user", "assistant", "system", "developer")
    content = item.joined("content", *_PARTS)
    if role == "assistant":
        return Said("assistant", content)
    return Said("user" if role == "user" else "system", content)


class _Stream:
    """Events of a response. ``response`` is what they add up to."""

    keepalive = KEEPALIVE

    def __init__(self, wanted: Wanted, name: str, created: int) -> None:
        self._options: _Options = wanted.options
        self._name = name
        self._sequence = 0
        self._progress = Progress()
        self._item: dict[str, Any] = {}
        """The item that is being written, or nothing."""
        self._texts: list[str] = []
        self._output: list[dict[str, Any]] = []
        self.response: dict[str, Any] = {
            "id": f"resp_{name}",
            "object": "response",
            "created_at": created,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "model": wanted.asked.model,
            "output": self._output,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": None,
            "text": {"format": {"type": "text"}},
            "top_p": None,
            "truncation": "disabled",
            "usage": None,
            **self._options.echo,
        }

    def opened(self, prompt: Int32Vector = NO_TOKENS) -> bytes:  # noqa: ARG002 - the last event has the tokens
        kinds = ("response.created", "response.in_progress")
        return b"".join(self._event(kind, response=self.response) for kind in kinds)

    def part(self, part: TurnPart) -> bytes:
        self._progress.take(part)
        return self._write("reasoning", part.reasoning) + self._write("message", part.content)

    def ended(self, given: TurnGiven) -> bytes:
        (choice,) = given.choices
        cut = choice.finish == "length"
        status, reason = ("incomplete", {"reason": "max_output_tokens"}) if cut else ("completed", None)
        written = self.part(self._progress.rest(0, choice))
        if not self._item and not self._output and not choice.calls:
            written += self._open("message")  # an empty turn comes back as this item
        written += self._close("completed" if choice.calls else status)
        written += b"".join(self._call(number, call) for number, call in enumerate(choice.calls))
        usage = counts(given)
        details = {
            "total_tokens": sum(usage.values()),
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        }
        self.response |= {"status": status, "incomplete_details": reason, "usage": usage | details}
        self.response |= all_token_ids(given) if self._options.token_ids else {}
        return written + self._event(f"response.{status}", response=self.response)

    def failed(self, refusal: Refusal, why: str) -> bytes:
        error = openai_error(refusal, why)
        told = {"code": error["code"] or "invalid_prompt", "message": error["message"]}
        self.response |= {"status": "failed", "error": told}
        return self._event("response.failed", response=self.response)

    def _write(self, kind: str, text: str) -> bytes:
        """Go on with the item of a kind, or begin one."""
        if not text:
            return b""
        written = b""
        if self._item.get("type") != kind:
            written = self._close("completed") + self._open(kind)
        self._texts.append(text)
        return written + self._text_event(".delta", delta=text)

    def _open(self, kind: str) -> bytes:
        more: dict[str, Any] = {"summary": []} if kind == "reasoning" else {"role": "assistant"}
        written = self._begin("rs" if kind == "reasoning" else "msg", type=kind, content=[], **more)
        return written + self._text_event("response.content_part.added", part=self._part(""))

    def _close(self, status: str) -> bytes:
        """End the item whose text is being written, if there is one.

        A reasoning has its text as summary, too: some agents send only the summary back.
        """
        if not self._item:
            return b""
        text = "".join(self._texts)
        self._texts.clear()
        part = self._part(text)
        done = self._text_event(".done", text=text) + self._text_event("response.content_part.done", part=part)
        if self._item["type"] == "reasoning":
            self._item["summary"] = [{"type": "summary_text", "text": text}]
        return done + self._done(content=[part], status=status)

    def _part(self, text: str) -> dict[str, Any]:
        if self._item["type"] == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _text_event(self, kind: str, **content: Any) -> bytes:
        """An event of the text that is being written."""
        if kind.startswith("."):
            reasoning = self._item["type"] == "reasoning"
            kind = f"response.{'reasoning' if reasoning else 'output'}_text{kind}"
            content |= {} if reasoning else {"logprobs": []}
        return self._item_event(kind, content_index=0, **content)

    def _call(self, number: int, call: SaidCall) -> bytes:
        own = call.id or f"call_{self._name}_{number}"
        written = self._begin("fc", type="function_call", call_id=own, name=call.name, arguments="")
        kind = "response.function_call_arguments"
        written += self._item_event(f"{kind}.delta", delta=call.arguments)
        written += self._item_event(f"{kind}.done", arguments=call.arguments, name=call.name)
        return written + self._done(arguments=call.arguments, status="completed")

    def _begin(self, prefix: str, **content: Any) -> bytes:
        number = len(self._output)
        self._item = {"id": f"{prefix}_{self._name}_{number}", **content, "status": "in_progress"}
        return self._event("response.output_item.added", output_index=number, item=self._item)

    def _done(self, **content: Any) -> bytes:
        item = self._item | content
        self._output.append(item)
        self._item = {}
        return self._event("response.output_item.done", output_index=len(self._output) - 1, item=item)

    def _item_event(self, kind: str, **content: Any) -> bytes:
        return self._event(kind, item_id=self._item["id"], output_index=len(self._output), **content)

    def _event(self, kind: str, **content: Any) -> bytes:
        written = event({"type": kind, "sequence_number": self._sequence, **content}, kind)
        self._sequence += 1
        return written
