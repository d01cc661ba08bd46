"""Whatever a body holds, it is read or refused; and what is read can be answered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.gateway.base import RequestError, Wanted
from agent_rl.gateway.bodies import read_body
from agent_rl.gateway.dialects import DIALECTS, models_body
from tests.agent_rl.gateway.turns import PARTS, WHOLE, choice, events, part, replied, streamed
from tests.agent_rl.gateway.turns import given as turn

CHAT, RESPONSES, MESSAGES, _, GENERATE = DIALECTS
BODIES = json.loads(Path(__file__).with_name("bodies.json").read_text(encoding="utf-8"))
"""A sound body with most keys, for each path."""
WORDS = ["", "user", "assistant", "system", "tool", "text", "image", "function", "type", "none", "content", "\ud800"]
PLAIN = st.sampled_from([None, False, True, 2**70, *WORDS])
SCALARS = PLAIN | st.integers() | st.floats() | st.text(st.characters(), max_size=3)
KEYS = st.sampled_from([*WORDS, "role", "name", "input", "format"])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6
)


def places(value, path=()):
    """The paths of all values within."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield (*path, key)
        yield from places(each, (*path, key))


@st.composite
def bodies(draw, path):
    """A sound body, in which some values are others, or missing, or there is a key more."""
    body = json.loads(json.dumps(BODIES[path]))
    for _ in range(draw(st.integers(1, 3))):
        *before, last = draw(st.sampled_from(list(places(body))))
        inner = body
        for key in before:
            inner = inner[key]
        if isinstance(inner, dict) and draw(st.booleans()):
            inner[draw(st.sampled_from([last, *WORDS]))] = draw(VALUES)
        elif draw(st.integers(0, 3)):
            inner[last] = draw(VALUES)
        else:
            del inner[last]
        if not list(places(body)):
            break
    return body


def serve(path, body) -> Wanted:
    """Read, and write all that a dialect writes."""
    dialect = DIALECTS[path]
    wanted = dialect.read(body)
    whole = turn(*[WHOLE.choices[0]] * wanted.asked.count)
    json.dumps(dialect.reply(wanted, whole, "x", 7), allow_nan=False)
    stream = dialect.stream(wanted, "x", 7)
    stream.opened()
    for each in PARTS:
        stream.part(each)
    stream.ended(whole)
    for said in wanted.asked.messages:
        for text in (said.content, said.reasoning, said.call_id, *(f"{c.name}{c.arguments}{c.id}" for c in said.calls)):
            assert isinstance(text, str)
            text.encode()
    assert isinstance(json.loads(wanted.asked.tools), list)
    return wanted


@pytest.mark.parametrize("path", BODIES)
def test_sound_bodies_are_served(path) -> None:
    serve(path, BODIES[path])


@pytest.mark.parametrize("path", BODIES)
@settings(max_examples=60)
@given(data=st.data())
def test_bodies_are_read_or_refused(path, data) -> None:
    try:
        serve(path, data.draw(bodies(path)))
    except RequestError as error:
        _, told = DIALECTS[path].error("request", str(error), error.field)
        json.dumps(told, ensure_ascii=False).encode()


@given(st.dictionaries(st.text(st.characters(), max_size=5), VALUES, max_size=3))
@settings(max_examples=30)
def test_any_object_is_read_or_refused(body) -> None:
    for dialect in DIALECTS.values():
        with pytest.raises(RequestError):
            dialect.read(body)


@given(st.lists(st.tuples(st.booleans(), st.text(max_size=3), st.lists(st.integers(0, 9), max_size=2))), st.booleans())
@settings(max_examples=40)
def test_a_stream_adds_up_to_the_reply_however_it_is_cut(cuts, whole_parts) -> None:
    cuts.sort(key=lambda each: each[0])  # a reply has its reasoning first
    parts = [part(text, ids=tuple(ids)) if said else part("", text, tuple(ids)) for said, text, ids in cuts]
    content, reasoning = "".join(each.content for each in parts), "".join(each.reasoning for each in parts)
    ids = tuple(token for _, _, ids in cuts for token in ids)
    whole = turn(choice(content, reasoning, [WHOLE.choices[0].calls[0]], "tool_calls", ids))
    parts = parts if whole_parts else parts[: len(parts) // 2]
    last = events(streamed(RESPONSES, {"input": "hi", "return_token_ids": True}, parts, whole))[-1]
    assert last["response"] == replied(RESPONSES, {"input": "hi", "return_token_ids": True}, whole)
    hello = {"messages": [{"role": "user", "content": "hi"}], "return_token_ids": True}
    texts = {"text": "", "thinking": ""}
    for each in events(streamed(MESSAGES, hello, parts, whole)):
        for key in texts:
            texts[key] += each.get("delta", {}).get(key, "")
    assert texts == {"text": content, "thinking": reasoning}
    choices = [chunk["choices"][0] for chunk in events(streamed(CHAT, hello, parts, whole))[:-1]]
    assert [token for each in choices for token in each.get("token_ids", [])] == list(ids)
    assert "".join(each["delta"].get("content", "") for each in choices) == content


def test_bytes_that_are_no_object_are_refused() -> None:
    assert read_body(b'{"a": 1}') == {"a": 1}
    for content, says in (
        (b"", "the body is not JSON"),
        (b"[1]", "the body must be a JSON object; it is a list"),
        (b"null", "it is missing"),
        (b"\xff\xfe\xff", "the body is"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "thousands of digits"),
    ):
        with pytest.raises(RequestError, match=says):
            read_body(content)


def test_a_hundred_thousand_tokens_are_read_at_once() -> None:
    assert len(DIALECTS[GENERATE].read({"token_ids": [*range(100_000)]}).asked.tokens) == 100_000


def test_a_body_of_one_dialect_is_refused_by_another() -> None:
    for path, body in BODIES.items():
        for other in set(BODIES) - {path}:
            with pytest.raises(RequestError):
                DIALECTS[other].read(body)


def test_streams_of_one_dialect_do_not_share_anything() -> None:
    dialect = DIALECTS[RESPONSES]
    wanted = dialect.read(BODIES[RESPONSES])
    first, second = dialect.stream(wanted, "x", 7), dialect.stream(wanted, "x", 7)
    first.opened()
    first.ended(turn(choice("a")))
    assert second.opened() == dialect.stream(wanted, "x", 7).opened()


def test_the_model_is_listed_in_the_shape_that_the_header_asks_for() -> None:
    openai = models_body("m", {}, 7, 4096)
    card = {"id": "m", "object": "model", "created": 7, "owned_by": "agent-rl"}
    assert openai == {"object": "list", "data": [card | {"max_model_len": 4096}]}
    assert models_body("m", {}, 7) == {"object": "list", "data": [card]}
    listed = models_body("m", {"anthropic-version": "2023-06-01"}, 7)
    assert (listed["first_id"], listed["has_more"]) == ("m", False)
    assert listed["data"][0]["created_at"] == "1970-01-01T00:00:07Z"
