from __future__ import annotations

import pytest

from agent_rl.gateway.generate import Generate
from tests.agent_rl.gateway.turns import GENERATE, PARTS, choice, events, given, replied, streamed, tokens


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


@pytest.mark.parametrize("known", [(1, 2, 3), ()])
def test_a_stream_adds_up_to_the_reply(known) -> None:
    asked = {
        "token_ids": [1, 2, 3],
        "sampling_params": {"logprobs": 0},
        "return_token_ids": True,
        "stream_options": {"include_usage": True},
    }
    *chunks, usage, done = events(streamed(GENERATE, asked, prompt=tokens(*known)))
    whole = replied(GENERATE, asked)
    assert (done, usage["usage"]) == ("[DONE]", whole["usage"])
    choices = [each for chunk in chunks for each in chunk["choices"]]
    assert [token for each in choices for token in each["token_ids"]] == whole["choices"][0]["token_ids"]
    content = [entry for each in choices for entry in each["logprobs"]["content"]]
    assert content == whole["choices"][0]["logprobs"]["content"]
    assert [each["finish_reason"] for each in choices] == [None] * len(PARTS) + ["stop"]
    assert [chunk["prompt_token_ids"] for chunk in chunks if "prompt_token_ids" in chunk] == [[1, 2, 3]]
