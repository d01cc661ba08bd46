"""Tokens in, tokens out, as vLLM serves them and the training client of verifiers calls them.

``POST /inference/v1/generate``. With ``return_token_ids`` a reply has ``prompt_token_ids``, too; in a stream one chunk
has them: the first if the prompt is known then, else the last one with tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent_rl.gateway.base import NO_TOKENS, Stream, Wanted
from agent_rl.gateway.bodies import (
    DONE,
    KEEPALIVE,
    UNCONSTRAINED,
    Extras,
    Fields,
    Keys,
    OpenAIErrors,
    Progress,
    checked,
    event,
    openai_error,
    usage_of,
)
from agent_rl.messages import Choice, Int32Vector, Refusal, TurnAsked, TurnGiven, TurnPart

_TEXT_ONLY = "the model reads tokens of text; leave it out"
_KEYS = Keys(
    read="model token_ids prompt_token_ids sampling_params stream stream_options request_id return_token_ids",
    unused="cache_salt priority assistant_tokens_mask token_offsets",
    refused={
        "features": _TEXT_ONLY,
        "content_parts": _TEXT_ONLY,
        "kv_transfer_params": "the engines of the run move KV caches themselves; leave it out",
        "ec_transfer_params": _TEXT_ONLY,
    },
)
_SAMPLING = Keys(
    read="max_tokens stop n logprobs",
    decided="temperature top_p top_k min_p seed frequency_penalty presence_penalty repetition_penalty logit_bias "
    "stop_token_ids min_tokens ignore_eos bad_words allowed_token_ids include_stop_str_in_output repetition_detection "
    "thinking_token_budget",
    unused="detokenize skip_special_tokens spaces_between_special_tokens flat_logprobs output_kind extra_args "
    "skip_clone skip_reading_prefix_cache routed_experts_prompt_start",
    refused={
        "prompt_logprobs": "only tokens that the model writes have log-probabilities; leave it out",
        "truncate_prompt_tokens": "prompts are not cut; leave it out",
        "structured_outputs": UNCONSTRAINED,
        "guided_decoding": UNCONSTRAINED,
    },
)


@dataclass(frozen=True, slots=True)
class _Options:
    extras: Extras
    prompt_ids: bool
    request_id: str


class Generate(OpenAIErrors):
    """Tokens in, tokens out."""

    def read(self, body: Mapping[str, Any]) -> Wanted:
        """Raises RequestError."""
        fields = checked(body)
        _KEYS.ignored(fields)
        sampling = fields.child("sampling_params") or Fields({}, "sampling_params")
        ignored = _SAMPLING.ignored(sampling)
        sampling.whole("n", 1, 1)
        logprobs, stream_options = sampling.whole("logprobs", -1) is not None, fields.child("stream_options")
        usage = stream_options is not None and stream_options.flag("include_usage")
        asked = TurnAsked(
            "",
            "",
            fields.text("model", ""),
            tokens=fields.tokens("token_ids" if fields.given("prompt_token_ids") is None else "prompt_token_ids"),
            max_tokens=sampling.whole("max_tokens", 1) or 0,
            stop=sampling.stops("stop"),
            streams=fields.flag("stream"),
        )
        extras = Extras(token_ids=True, logprobs=logprobs, top=True, usage=usage)
        return Wanted(asked, _Options(extras, fields.flag("return_token_ids"), fields.text("request_id", "")), ignored)

    def reply(self, wanted: Wanted, given: TurnGiven, name: str, created: int) -> dict[str, Any]:
        """The body of a whole reply."""
        options: _Options = wanted.options
        (choice,) = given.choices
        return {
            "request_id": options.request_id or name,
            "created": created,
            "model": wanted.asked.model,
            "choices": [{"index": 0, **options.extras.of(choice), "finish_reason": _finish(choice)}],
            "usage": usage_of(given),
            **Progress(prompt_ids=options.prompt_ids).prompt(given.prompt),
        }

    def stream(self, wanted: Wanted, name: str, created: int) -> Stream:  # noqa: ARG002 - chunks have no time
        """A streamed reply."""
        return _Stream(wanted.options, name)


def _finish(choice: Choice) -> str:
    """A client that reads tokens finds the calls itself."""
    return "length" if choice.finish == "length" else "stop"


class _Stream:
    keepalive = KEEPALIVE

    def __init__(self, options: _Options, name: str) -> None:
        self._extras = options.extras
        self._head = {"request_id": options.request_id or name}
        self._progress = Progress(prompt_ids=options.prompt_ids)

    def opened(self, prompt: Int32Vector = NO_TOKENS) -> bytes:
        keys = self._progress.prompt(prompt)
        return event({**self._head, "choices": [], **keys}) if keys else b""

    def part(self, part: TurnPart) -> bytes:
        self._progress.take(part)
        return self._chunk(part) if len(part.tokens) else b""

    def ended(self, given: TurnGiven) -> bytes:
        (choice,) = given.choices
        prompt = self._progress.prompt(given.prompt)
        written = self._chunk(self._progress.rest(0, choice), _finish(choice), **prompt)
        usage = event({**self._head, "choices": [], "usage": usage_of(given)}) if self._extras.usage else b""
        return written + usage + DONE

    def failed(self, refusal: Refusal, why: str) -> bytes:
        return event({"error": openai_error(refusal, why)})

    def _chunk(self, part: TurnPart, finish: str | None = None, **top: Any) -> bytes:
        choice = {"index": 0, **self._extras.of(part), "finish_reason": finish}
        return event({**self._head, "choices": [choice], **top})
