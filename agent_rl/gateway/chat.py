"""OpenAI's Chat Completions, with the token ids that vLLM adds: ``POST /v1/chat/completions``.

With ``return_token_ids`` a reply has ``prompt_token_ids``, and each choice ``token_ids``. In a stream each chunk has
``token_ids``, and one has ``prompt_token_ids``: the first if the prompt is known then, else one with a finish reason.

With ``return_messages`` a stream says calls that are run here as messages of the conversation, in ``messages`` of a
delta: the turn that makes them before they run, and then their results. Otherwise they are its ``reasoning_content``.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    call_of,
    checked,
    event,
    openai_error,
    require_text,
    some,
    tools_of,
    usage_of,
)
from agent_rl.messages import Choice, Int32Vector, Refusal, Said, SaidCall, TurnAsked, TurnGiven, TurnPart

_KEYS = Keys(
    read="model messages tools tool_choice max_tokens max_completion_tokens stop n stream stream_options logprobs "
    "top_logprobs return_token_ids return_messages response_format",
    decided="temperature top_p top_k min_p frequency_penalty presence_penalty repetition_penalty length_penalty "
    "logit_bias seed min_tokens ignore_eos stop_token_ids bad_words allowed_token_ids include_stop_str_in_output "
    "skip_special_tokens spaces_between_special_tokens reasoning_effort reasoning include_reasoning thinking "
    "enable_thinking thinking_token_budget verbosity chat_template_kwargs add_generation_prompt parallel_tool_calls "
    "prediction repetition_detection",
    unused="user metadata store service_tier safety_identifier prompt_cache_key prompt_cache_options usage priority "
    "prompt_cache_retention moderation modalities request_id cache_salt return_tokens_as_token_ids",
    refused={
        "functions": "give them as tools",
        "function_call": "give tool_choice",
        "audio": "the model writes text; leave it out",
        "web_search_options": "nothing here searches the web; leave it out",
        "prompt_logprobs": "only tokens that the model writes have log-probabilities; leave it out",
        "echo": "a reply has what the model wrote; leave it out",
        "continue_final_message": "the model writes whole turns; leave it out",
        "use_beam_search": "turns are sampled; leave it out",
        "documents": "put them into a message",
        "chat_template": "the run has one chat template; leave it out",
        "truncate_prompt_tokens": "prompts are not cut; leave it out",
        "structured_outputs": UNCONSTRAINED,
        "guided_json": UNCONSTRAINED,
        "guided_regex": UNCONSTRAINED,
        "guided_choice": UNCONSTRAINED,
        "guided_grammar": UNCONSTRAINED,
    },
)


class Chat(OpenAIErrors):
    """Chat Completions."""

    def read(self, body: Mapping[str, Any]) -> Wanted:
        """Raises RequestError."""
        fields = checked(body)
        ignored = _KEYS.ignored(fields)
        require_text(fields.child("response_format"))
        tools, choice_ignored = tools_of(fields, inside="function")
        options = fields.child("stream_options")
        extras = Extras(
            token_ids=fields.flag("return_token_ids"),
            logprobs=fields.flag("logprobs"),
            top=bool(fields.whole("top_logprobs", 0, 20)),
            usage=options is not None and options.flag("include_usage"),
            messages=fields.flag("return_messages"),
        )
        asked = TurnAsked(
            "",
            "",
            fields.text("model", ""),
            some([_said(each) for each in fields.objects("messages")], "messages"),
            tools,
            count=fields.whole("n", 1, 128) or 1,
            max_tokens=fields.whole("max_completion_tokens", 1) or fields.whole("max_tokens", 1) or 0,
            stop=fields.stops("stop"),
            streams=fields.flag("stream"),
        )
        return Wanted(asked, extras, (*ignored, *choice_ignored))

    def reply(self, wanted: Wanted, given: TurnGiven, name: str, created: int) -> dict[str, Any]:
        """The body of a whole reply."""
        extras: Extras = wanted.options
        return {
            "id": f"chatcmpl-{name}",
            "object": "chat.completion",
            "created": created,
            "model": wanted.asked.model,
            "choices": [_choice(extras, name, number, choice) for number, choice in enumerate(given.choices)],
            "usage": usage_of(given),
            **Progress(prompt_ids=extras.token_ids).prompt(given.prompt),
        }

    def stream(self, wanted: Wanted, name: str, created: int) -> Stream:
        """A streamed reply."""
        return _Stream(wanted, name, created)


def _said(message: Fields) -> Said:
    role = message.one_of("role", "system", "developer", "user", "assistant", "tool", "function")
    result = role in ("tool", "function")
    needed = role in ("system", "developer", "user")
    content = message.joined("content", "text", needed=needed, between="\n" if result else "")
    if result:
        return Said("tool", content, call_id=message.text("tool_call_id", ""))
    if role != "assistant":
        return Said("user" if role == "user" else "system", content)
    if message.given("audio") is not None:
        raise message.fault("audio", "is not supported: leave it out")
    legacy = message.child("function_call")
    calls = [*map(_said_call, message.objects("tool_calls")), *([call_of(legacy)] if legacy else [])]
    reasoning = message.text("reasoning_content", "") or message.text("reasoning", "")
    return Said("assistant", content, reasoning, tuple(calls))


def _said_call(call: Fields) -> SaidCall:
    if call.text("type", "function") != "function":
        raise call.unsupported(call.text("type"))
    return call_of(Fields(call.given("function"), f"{call.path}.function"), call.text("id", ""))


def _call(call: SaidCall, name: str, choice: int, number: int) -> dict[str, Any]:
    own = call.id or f"call_{name}_{f'{choice}_' if choice else ''}{number}"
    return {"id": own, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _message(said: Said) -> dict[str, Any]:
    if said.role == "tool":
        return {"role": "tool", "tool_call_id": said.call_id, "content": said.content}
    calls = {"tool_calls": [_call(each, "", 0, 0) for each in said.calls]} if said.calls else {}
    reasoning = {"reasoning_content": said.reasoning} if said.reasoning else {}
    return {"role": said.role, "content": said.content, **reasoning, **calls}


def _choice(extras: Extras, name: str, number: int, choice: Choice) -> dict[str, Any]:
    content = None if choice.calls and not choice.content else choice.content
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    if choice.calls:
        message["tool_calls"] = [_call(each, name, number, index) for index, each in enumerate(choice.calls)]
    return {"index": number, "message": message, "finish_reason": choice.finish, **extras.of(choice)}


class _Stream:
    keepalive = KEEPALIVE

    def __init__(self, wanted: Wanted, name: str, created: int) -> None:
        self._extras: Extras = wanted.options
        self._name = name
        self._head = {"id": f"chatcmpl-{name}", "object": "chat.completion.chunk", "created": created}
        self._head["model"] = wanted.asked.model
        self._count = wanted.asked.count
        self._progress = Progress(self._count, prompt_ids=self._extras.token_ids)

    def opened(self, prompt: Int32Vector = NO_TOKENS) -> bytes:
        delta = {"role": "assistant", "content": ""}
        return b"".join(self._chunk(each, delta, **self._progress.prompt(prompt)) for each in range(self._count))

    def part(self, part: TurnPart) -> bytes:
        self._progress.take(part)
        if part.said and self._extras.messages:
            return self._chunk(part.choice, {"messages": [_message(each) for each in part.said]})
        texts = {"reasoning_content": part.reasoning, "content": part.content}
        delta = {key: text for key, text in texts.items() if text}
        tokens = len(part.tokens) and (self._extras.token_ids or self._extras.logprobs)
        return self._chunk(part.choice, delta, self._extras.of(part)) if delta or tokens else b""

    def ended(self, given: TurnGiven) -> bytes:
        written = []
        for number, choice in enumerate(given.choices):
            written.append(self.part(self._progress.rest(number, choice)))
            for index, each in enumerate(choice.calls):
                call = {"index": index, **_call(each, self._name, number, index)}
                written.append(self._chunk(number, {"tool_calls": [call]}))
            finish, prompt = {"finish_reason": choice.finish}, self._progress.prompt(given.prompt)
            written.append(self._chunk(number, {}, finish, **prompt))
        if self._extras.usage:
            written.append(event({**self._head, "choices": [], "usage": usage_of(given)}))
        return b"".join(written) + DONE

    def failed(self, refusal: Refusal, why: str) -> bytes:
        return event({"error": openai_error(refusal, why)})

    def _chunk(self, number: int, delta: Mapping[str, Any], more: Mapping[str, Any] | None = None, **top: Any) -> bytes:
        choice = {"index": number, "delta": delta, "logprobs": None, "finish_reason": None, **(more or {})}
        return event({**self._head, "choices": [choice], **top})
