"""What holds of every dialect: replies and streams say the same, errors are the provider's, refusals name their key."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from agent_rl.gateway.base import RequestError
from agent_rl.gateway.dialects import DIALECTS
from agent_rl.gateway.evidence import evidence_of
from agent_rl.gateway.generate import Generate
from benchmarks.gateway_traps import client
from tests.agent_rl.gateway.turns import PARTS, PROMPT, choice, events, given, refused, replied
from tests.agent_rl.gateway.turns import streamed as written

CHAT, RESPONSES, MESSAGES, COUNT, GENERATE = DIALECTS
HELLO = {"messages": [{"role": "user", "content": "hello"}]}
ASKED: dict[str, dict[str, Any]] = {
    CHAT: HELLO,
    RESPONSES: {"input": "a"},
    MESSAGES: HELLO,
    GENERATE: {"token_ids": [1]},
}
DEEP: dict[str, Any] = {}
for _ in range(100):
    DEEP = {"a": DEEP}


@pytest.mark.parametrize("known", [PROMPT, ()], ids=["prompt", "no prompt"])
@pytest.mark.parametrize("dialect", client.DIALECTS, ids=lambda dialect: dialect.name)
def test_a_reply_has_what_was_written_and_real_counts_and_a_stream_adds_up_to_it(dialect, known) -> None:
    plain = ASKED[dialect.path]
    (reply,) = dialect.read(replied(dialect.path, plain))
    assert (reply.prompt, reply.tokens, reply.logprobs) == (None, None, None)
    assert (reply.text, reply.reasoning, reply.finish) == ("Hello world", "let me see", "tool_calls")
    arguments = {"at": "é", "deep": True}
    assert [(name, json.loads(text)) for _, name, text in reply.calls] == [("look", arguments)] * 2
    more = {"logprobs": True, "stream_options": {"include_usage": True}} if dialect.path == CHAT else {}
    asked = {**plain, **more, "return_token_ids": True}
    (reply,) = dialect.read(replied(dialect.path, asked))
    assert (reply.prompt, reply.tokens, reply.usage) == ([1, 2, 3], [10, 11, 12, 13, 14], (3, 5))
    assert reply.logprobs == [-token / 8 for token in reply.tokens]
    found = [each for each in events(written(dialect.path, asked, prompt=known)) if each != "[DONE]"]
    (streamed,) = dialect.read(dialect.gathered(found))
    assert replace(streamed, turn=[]) == replace(reply, turn=[])


@pytest.mark.parametrize(
    ("refusal", "status", "code", "kind"),
    [
        ("key", 401, "invalid_api_key", "authentication_error"),
        ("ended", 409, "rollout_concluded", "invalid_request_error"),
        ("overflow", 400, "context_length_exceeded", "invalid_request_error"),
        ("request", 400, None, "invalid_request_error"),
        ("busy", 429, "rate_limit_exceeded", "rate_limit_error"),
        ("failed", 503, "server_error", "api_error"),
        ("", 503, "server_error", "api_error"),
    ],
)
def test_errors_have_the_shape_of_the_provider(refusal, status, code, kind) -> None:
    begins = {"ended": "rollout concluded: ", "overflow": "prompt is too long: "}.get(refusal, "")
    wanted = {"type": "error", "error": {"type": kind, "message": f"{begins}so"}}
    broken = {
        path: events(dialect.stream(dialect.read(ASKED[path]), "x", 7).failed(refusal, "so"))
        for path, dialect in DIALECTS.items()
        if path in ASKED
    }
    for path in (MESSAGES, COUNT):
        assert DIALECTS[path].error(refusal, "so", "messages") == (status, wanted)
    assert broken[MESSAGES] == [wanted]
    for path in (CHAT, RESPONSES, GENERATE):
        got, body = DIALECTS[path].error(refusal, "so", "messages")
        assert (got, body["error"]["code"], body["error"]["param"]) == (status, code, "messages")
        assert body["error"]["message"].endswith("so")
        assert ("maximum context length" in body["error"]["message"]) == (refusal == "overflow")
        assert DIALECTS[path].error(refusal, "")[1]["error"]["message"]
        if path != RESPONSES:
            assert broken[path] == [{"error": body["error"] | {"param": None}}]
    last = broken[RESPONSES][-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    codes = {"overflow": code, "request": "invalid_prompt", "failed": code}
    assert last["response"]["error"]["code"] == codes.get(refusal, last["response"]["error"]["code"])
    assert last["response"]["error"]["message"].endswith("so")
    assert DIALECTS[CHAT].error("ended", "")[1]["error"]["message"] == "rollout concluded"


def of(role: str, *parts: Any, **more: Any) -> dict[str, Any]:
    """A body with one message."""
    return {"messages": [{"role": role, "content": list(parts), **more}]}


def items(*items: dict[str, Any]) -> dict[str, Any]:
    return {"input": list(items)}


def sampled(**parameters: Any) -> dict[str, Any]:
    return {"sampling_params": parameters}


FIRST, PART = "messages[0]", "messages[0].content[0]"
IDS = "must be a list of token ids from 0 to 2147483647"

# What is changed in a sound request, the key that the refusal names, and what it says.
REFUSED: dict[str, list[Any]] = {
    CHAT: [
        ({"temprature": 1}, "temprature", "the body has the unknown key 'temprature'; did you mean 'temperature'?"),
        ({"zzzz": 1}, "zzzz", "unknown key 'zzzz'; leave it out"),
        ({"messages": []}, "messages", "messages must have at least one message"),
        ({"messages": None}, "messages", "messages must have at least one"),
        ({"messages": {}}, "messages", "messages must be a list; it is an object"),
        ({"messages": ["hi"]}, FIRST, "messages[0] must be an object; it is text"),
        ({"messages": [{"content": "hi"}]}, f"{FIRST}.role", "messages[0].role must be text; it is missing"),
        (of("boss"), f"{FIRST}.role", "messages[0].role is 'boss'; it must be one of system"),
        ({"messages": [{"role": "user"}]}, f"{FIRST}.content", "must be text or a list of parts; it is missing"),
        ({"messages": [{"role": "user", "content": 3}]}, f"{FIRST}.content", "it is a number"),
        (of("user", {"type": "image_url"}), PART, f"images are not supported: leave {PART} out"),
        (of("user", {"type": "input_audio"}), PART, "sounds are not"),
        (of("user", {"type": "file"}), PART, "files are not"),
        (
            of("user", {"type": "text", "text": "see"}, {"type": "thing"}),
            f"{FIRST}.content[1]",
            "the type 'thing' is not",
        ),
        (of("assistant", audio={"id": "a"}), f"{FIRST}.audio", "is not supported"),
        (of("assistant", tool_calls=[{"type": "custom"}]), f"{FIRST}.tool_calls[0]", "'custom'"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]", "the type 'web_search' is not supported: leave tools[0] out"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "must be an object; it is missing"),
        ({"tools": [{"function": {"name": 1}}]}, "tools[0].function.name", "must be text; it is a number"),
        ({"tool_choice": "maybe"}, "tool_choice", "must be one of auto, none, required"),
        ({"tool_choice": 3}, "tool_choice", "must be an object; it is a number"),
        ({"max_tokens": 0}, "max_tokens", "must be a whole number from 1 to 2147483647"),
        ({"max_tokens": True}, "max_tokens", ""),
        ({"max_tokens": 1.5}, "max_tokens", ""),
        ({"n": 129}, "n", "from 1 to 128"),
        ({"stop": [""]}, "stop", "must hold texts that are not empty"),
        ({"stream": "yes"}, "stream", "must be true or false; it is text"),
        ({"stream_options": []}, "stream_options", "must be an object; it is a list"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "'json_schema' is not supported"),
        ({"functions": [{}]}, "functions", "functions is not supported: give them as tools"),
        ({"continue_final_message": True}, "continue_final_message", "the model writes whole turns"),
        ({"temperature": float("inf")}, "temperature", "temperature is a number that is too large"),
        ({"model": "\ud800"}, "model", "model holds half of a surrogate pair"),
        ({"metadata": {"a\udfff": 1}}, "metadata", "metadata holds half of a surrogate pair"),
        ({"metadata": DEEP}, "metadata" + 64 * ".a", "nested deeper than 64 levels"),
        ({"model": 3}, "model", "model must be text"),
    ],
    RESPONSES: [
        (items(), "input", "input must have at least one message"),
        ({"input": None}, "input", "input must have at least one message"),
        ({"input": 3}, "input", "input must be a list; it is a number"),
        ({"previous_response_id": "r"}, "previous_response_id", "send the whole conversation as input"),
        ({"conversation": {"id": "c"}}, "conversation", "keeps no responses"),
        ({"background": True}, "background", "leave it out"),
        ({"prompt": {"id": "p"}}, "prompt", "no stored prompts"),
        ({"stop": ["x"]}, "stop", "unknown key 'stop'"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format", "text.format 'json_schema' is not supported"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]", "'web_search' is not supported"),
        ({"tools": [{"type": "custom", "name": "p"}]}, "tools[0]", "'custom' is not supported"),
        (items({"type": "item_reference", "id": "i"}), "input[0]", "refers to a stored item"),
        (items({"type": "computer_call"}), "input[0]", "the type 'computer_call' is not supported"),
        (items({"role": "user", "content": [{"type": "input_image"}]}), "input[0].content[0]", "images are not"),
        (items({"role": "tool", "content": "a"}), "input[0].role", "must be one of user, assistant"),
        (items({"type": "function_call", "call_id": "c"}), "input[0].name", "must be text; it is missing"),
        ({"metadata": []}, "metadata", "metadata must be an object"),
    ],
    MESSAGES: [
        ({"messages": []}, "messages", "messages must have at least one message"),
        ({"messages": [{"role": "user"}]}, f"{FIRST}.content", "must be text or a list of parts"),
        (of("tool"), f"{FIRST}.role", "must be one of user, assistant, system"),
        (of("user", {"type": "image"}), PART, "images are not supported"),
        (of("user", {"type": "document"}), PART, "documents are"),
        (of("user", {"type": "tool_result", "content": [{"type": "image"}]}), f"{PART}.content[0]", "images are not"),
        (of("assistant", {"type": "server_tool_use"}), PART, "'server_tool_use'"),
        (of("assistant", {"type": "tool_use", "name": "f", "input": "{}"}), f"{PART}.input", "object; it is text"),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools[0]", "'web_search_20250305' is not"),
        ({"tool_choice": "auto "}, "tool_choice", "must be one of auto, none, required"),
        ({"tool_choice": {}}, "tool_choice.type", "must be text; it is missing"),
        ({"output_config": {"format": {}}}, "output_config.format", "output_config.format is not supported"),
        ({"mcp_servers": [{}]}, "mcp_servers", "give their tools as functions"),
        ({"system": 3}, "system", "system must be text or a list of parts"),
        ({"n": 2}, "n", "unknown key 'n'"),
        ({"max_tokens": "9"}, "max_tokens", "must be a whole number"),
    ],
    GENERATE: [
        *(({"token_ids": ids}, "token_ids", IDS) for ids in (None, [], [True], [-1], [2**31], [2**80])),
        ({"features": {"mm_hashes": {}}}, "features", "reads tokens of text"),
        (sampled(n=2), "sampling_params.n", "from 1 to 1"),
        (sampled(prompt_logprobs=1), "sampling_params.prompt_logprobs", "leave it out"),
        (sampled(max_token=1), "max_token", "did you mean 'max_tokens'?"),
        ({"sampling_params": []}, "sampling_params", "must be an object"),
        ({"messages": []}, "messages", "unknown key 'messages'"),
    ],
}


@pytest.mark.parametrize(("path", "row"), [(path, row) for path, rows in REFUSED.items() for row in rows])
def test_what_cannot_be_served_is_refused_by_name(path: str, row: Any) -> None:
    changes, field, says = row
    message, at = refused(path, {**ASKED[path], **changes})
    assert says in message
    assert at == field


# Tokens in, tokens out ------------------------------------------------------------------------------------------------


def test_what_the_training_client_of_verifiers_sends_is_read() -> None:
    sampling = {"max_tokens": 8, "temperature": 1.0, "stop_token_ids": [5], "logprobs": 1, "skip_special_tokens": False}
    sampling |= {"flat_logprobs": True, "extra_args": {"prl_compact_logprobs": True}, "detokenize": False}
    body = {"model": "m", "token_ids": [1, 2, 3], "sampling_params": sampling, "cache_salt": "1", "priority": 0}
    wanted = Generate().read(body)
    assert wanted.asked.tokens.tolist() == [1, 2, 3]
    assert (wanted.asked.messages, wanted.asked.max_tokens, wanted.asked.model) == ((), 8, "m")
    assert wanted.ignored == ("temperature", "stop_token_ids")
    assert Generate().read({"prompt_token_ids": [4]}).asked.tokens.tolist() == [4]


def test_a_reply_is_what_that_client_checks() -> None:
    body = replied(GENERATE, {"token_ids": [1, 2, 3], "sampling_params": {"logprobs": 1}})
    (only,) = body["choices"]
    assert (only["index"], only["token_ids"], only["finish_reason"]) == (0, [10, 11, 12, 13, 14], "stop")
    entries = only["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == [f"token_id:{token}" for token in only["token_ids"]]
    assert entries[0]["logprob"] == -1.25
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
    assert body["request_id"] == "x"
    assert "prompt_token_ids" not in body


def test_what_was_not_asked_for_is_not_there() -> None:
    body = replied(
        GENERATE, {"token_ids": [1], "request_id": "own", "return_token_ids": True}, given(choice(finish="length"))
    )
    assert body["choices"][0]["logprobs"] is None
    assert (body["request_id"], body["prompt_token_ids"]) == ("own", [1, 2, 3])
    assert body["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("known", [PROMPT, ()], ids=["prompt", "no prompt"])
def test_a_stream_of_tokens_adds_up_to_the_reply(known) -> None:
    asked = {
        "token_ids": [1, 2, 3],
        "sampling_params": {"logprobs": 0},
        "return_token_ids": True,
        "stream_options": {"include_usage": True},
    }
    *chunks, usage, done = events(written(GENERATE, asked, prompt=known))
    whole = replied(GENERATE, asked)
    assert (done, usage["usage"]) == ("[DONE]", whole["usage"])
    choices = [each for chunk in chunks for each in chunk["choices"]]
    assert [token for each in choices for token in each["token_ids"]] == whole["choices"][0]["token_ids"]
    content = [entry for each in choices for entry in each["logprobs"]["content"]]
    assert content == whole["choices"][0]["logprobs"]["content"]
    assert [each["finish_reason"] for each in choices] == [None] * len(PARTS) + ["stop"]
    assert [chunk["prompt_token_ids"] for chunk in chunks if "prompt_token_ids" in chunk] == [[1, 2, 3]]


# What a harness says itself about a request ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "meta", "cause"),
    [
        ({"x-openai-subagent": "collab_spawn"}, None, "sub_agent"),
        ({"x-openai-subagent": "compact"}, None, "compaction"),
        ({"x-openai-subagent": "memory_consolidation"}, None, "side_call"),
        ({"x-codex-turn-metadata": '{"turn_id": "7", "request_kind": "compaction"}'}, None, "compaction"),
        ({"x-codex-turn-metadata": "no object"}, None, None),
        ({"x-codex-turn-metadata": "[" * 5000}, None, None),
        ({}, {"agent_rl": {"branch": "sub-agent"}}, "sub_agent"),
        ({}, {"hermes": {"sessionProvenance": {"reason": "compression"}}}, "compaction"),
        ({}, {"other": {"reason": "the user asked", "n": 1}}, None),
        ({}, {}, None),
    ],
)
def test_evidence_of_a_branch(headers: dict[str, str], meta: Any, cause: str | None) -> None:
    body = {"model": "m", "_meta": meta}
    assert evidence_of(headers, body) == cause
    assert body == {"model": "m"}


def test_meta_that_is_no_object_is_refused() -> None:
    with pytest.raises(RequestError, match="_meta must be an object"):
        evidence_of({}, {"_meta": ["sub_agent"]})
