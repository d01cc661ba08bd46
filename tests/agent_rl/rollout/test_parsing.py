from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_rl.environments.base import ToolOutput
from agent_rl.environments.tools import rendered
from agent_rl.rollout.parsing import (
    MalformedCall,
    ParsedCall,
    certain,
    cut_middle,
    harmless,
    parse_calls,
    parse_list,
    parse_object,
    without_calls,
)


def call(name: object = "python", arguments: object = None, **more: object) -> str:
    content = {"name": name, "arguments": {"code": "1"} if arguments is None else arguments, **more}
    return f"<tool_call>{json.dumps(content)}</tool_call>"


def only_error(text: str) -> str:
    (found,) = parse_calls(text)
    assert isinstance(found, MalformedCall)
    return found.error


def test_calls_are_found_in_order_among_text_and_space_and_further_keys_do_no_harm() -> None:
    text = "<reason>hm</reason>" + call(arguments={"code": "print(1)"}) + "and\n" + call("search", {}) + "<answer>"
    assert parse_calls(text) == (ParsedCall("python", {"code": "print(1)"}), ParsedCall("search", {}))
    assert parse_calls("no call, only </tool_call>") == ()
    assert parse_calls("") == ()
    assert parse_calls('<tool_call>\n {"name": "f", "arguments": {}} \n</tool_call>') == (ParsedCall("f", {}),)
    assert parse_calls(call("f", {}, id=3)) == (ParsedCall("f", {}),)


@pytest.mark.parametrize(
    ("text", "names", "beside"),
    [
        (f"<think>Or {call('a')}?</think>{call('b')}", "b", f"<think>Or {call('a')}?</think>"),
        (f"{call('a')}<think>{call('b')}</think>{call('c')}<think>", "ac", f"<think>{call('b')}</think><think>"),
        (f"<think>{call('a')}", "", f"<think>{call('a')}"),
        (f"<think></think><think>{call('a')}</think>", "", f"<think></think><think>{call('a')}</think>"),
        (call("a", {"code": "'<think>'"}) + call("b"), "ab", ""),
        (f"thought</think>{call('a')}", "a", "thought</think>"),
    ],
)
def test_a_call_that_is_drafted_in_a_thought_is_none(text: str, names: str, beside: str) -> None:
    """A thought that is not closed goes to the turn's end."""
    assert "".join(each.name for each in parse_calls(text) if isinstance(each, ParsedCall)) == names
    assert without_calls(text) == beside
    assert certain(text) == (0 if text.startswith("<tool_call>") else len(beside))


def test_drafts_of_other_layouts_are_none_either() -> None:
    listed, single = '[TOOL_CALLS] [{"name": "f", "arguments": {}}]', '{"name": "f", "parameters": {}}'
    assert (
        parse_list(f"<think>{listed}</think>", "[TOOL_CALLS]")
        == parse_object(f"<think>{single}</think>", "parameters")
        == ()
    )
    assert parse_list(f"<think>No.</think>{listed}", "[TOOL_CALLS]") == (ParsedCall("f", {}),)
    tag = (ParsedCall("f", {"code": "<think>"}),)
    assert parse_list(listed.replace("{}", '{"code": "<think>"}'), "[TOOL_CALLS]") == tag
    assert parse_object(single.replace("{}", '{"code": "<think>"}'), "parameters") == tag
    assert parse_object(f"<think>No.</think>{single}", "parameters") == (ParsedCall("f", {}),)


def test_tags_in_a_string_of_the_arguments_belong_to_the_string() -> None:
    code = "print('</tool_call><tool_call>')"
    assert parse_calls(call(arguments={"code": code})) == (ParsedCall("python", {"code": code}),)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<tool_call>{'name': 'f'}</tool_call>", "not valid JSON: Expecting property name"),
        ("<tool_call></tool_call>", "not valid JSON"),
        ('<tool_call>{"name": "f", "arguments": {"code": "a\nb"}}</tool_call>', "Invalid control character"),
        ('<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>', "NaN is not valid JSON"),
        ('<tool_call>{"name": "f", "arguments": {}} and so on</tool_call>', "unexpected text after"),
        ("<tool_call>[1, 2]</tool_call>", "not a JSON object"),
        ('<tool_call>{"arguments": {}}</tool_call>', '"name" is missing'),
        (call(name=3), '"name" is missing in the tool call, or is not a string'),
        (call(name=""), '"name"'),
        ('<tool_call>{"name": "f"}</tool_call>', '"arguments" is missing'),
        (call(arguments='{"code": "1"}'), '"arguments" is missing in the tool call, or is not a JSON object'),
        (call(arguments={"x": 2**64}), "beyond 64 bits"),
        (call(arguments={"x": ["\ud800"]}), "unpaired surrogate"),
        ('<tool_call>{"name": "f", "arguments": {"x": 1e999}}</tool_call>', "too large"),
        ('<tool_call>{"name": "f", "arguments": {"x": ' + "[" * 100 + "]" * 100 + "}}</tool_call>", "too deeply"),
        ("<tool_call>" + "[" * 100_000 + "]" * 100_000 + "</tool_call>", "too deeply"),
        ("<tool_call>" + "9" * 5000 + "</tool_call>", "not valid JSON"),
        ('<tool_call>{"name": "f", "arguments": {"code": "1', "not closed"),
        ('<tool_call>{"name": "f", "arguments": {}}', "not closed"),
        ("<tool_call>", "not closed"),
    ],
)
def test_what_is_no_call_gets_an_error_for_the_model(text: str, says: str) -> None:
    error = only_error(text)
    assert error.startswith("Error: ")
    assert says in error


def test_positions_in_errors_count_from_the_beginning_of_the_call() -> None:
    assert only_error("a long preamble\n" * 9 + "<tool_call>{]</tool_call>").endswith("line 1 column 2 (char 1).")


def test_a_malformed_call_does_not_hide_its_neighbours() -> None:
    good, bad, last = parse_calls(call("f", {}) + "<tool_call>{</tool_call>" + call("g", {}))
    assert good == ParsedCall("f", {})
    assert isinstance(bad, MalformedCall)
    assert last == ParsedCall("g", {})


PIECES = ["<tool_call>", "</tool_call>", '{"name": "f", "arguments": {}}', "{", '"', " ", "x"]


@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_any_text_is_parsed_without_an_exception(text: str) -> None:
    assert len(parse_calls(text)) <= text.count("<tool_call>")


def test_many_broken_calls_take_little_time() -> None:
    started = time.process_time()
    assert len(parse_calls('<tool_call>{"</tool_call>' * 2000)) <= 2000
    assert time.process_time() - started < 2


def respond(outcome: str = "success", max_chars: int = 1000, **fields: object) -> str:
    return cut_middle(harmless(rendered(ToolOutput(outcome, **fields))), max_chars)  # type: ignore[arg-type]


def test_a_success_is_what_was_printed_or_the_value() -> None:
    assert respond(stdout="42\n") == "42"
    assert respond(stdout="42\n", value="43", stderr="warning") == "42"
    assert respond(value="43") == "43"
    assert respond(stdout="\n", value="43") == "43"
    assert respond(stderr="a warning\n") == "a warning"
    assert respond() == "The call succeeded and returned nothing."


def test_a_failure_says_what_happened_after_what_was_printed() -> None:
    trace = "Traceback (most recent call last):\nValueError: x\n"
    assert respond("error", stdout="1\n", stderr=trace) == "1\nTraceback (most recent call last):\nValueError: x"
    assert respond("error") == "Error: the code failed without a message."
    assert respond("timeout", stdout="1\n", run_seconds=4.02) == "1\nTimeout: the code was stopped after 4.0 seconds."
    assert respond("memory_limit", stderr=trace).endswith("ValueError: x\nMemory limit exceeded: the code was stopped.")
    assert respond("output_limit", stdout="xx").startswith("xx\nOutput limit exceeded")
    assert respond("killed").startswith("Killed")
    assert respond("malformed", stderr="Error: not valid JSON.") == "Error: not valid JSON."
    assert respond("unknown_tool") == "Error: there is no tool of this name."
    assert respond("unavailable") == "Error: the tool is unavailable."


def test_a_note_comes_first_whatever_else_is_said() -> None:
    note = "[The session was lost: its 2 earlier cells were run again.]\n"
    assert respond(stdout="4\n", note=note) == f"{note}4"
    assert respond(value="4", note=note) == f"{note}4"
    assert (
        respond("timeout", stderr="x", note=note, run_seconds=4.0)
        == f"{note}x\nTimeout: the code was stopped after 4.0 seconds."
    )


def test_a_long_result_is_cut_in_the_middle() -> None:
    text = respond(stdout="a" * 500 + "b" * 500, max_chars=200)
    assert len(text) == 200
    assert text.startswith("a" * 50)
    assert text.endswith("b" * 50)
    assert "characters cut" in text
    assert respond(stdout="a" * 200, max_chars=200) == "a" * 200
    assert respond(stdout="a" * 200, max_chars=10) == "a" * 10


@pytest.mark.parametrize(
    "tag",
    [
        "<tool_response>",
        "</tool_response>",
        "<tool_call>",
        "</ TOOL_CALL >",
        "<answer>",
        "</answer>",
        "<think>",
        "<|im_end|>",
        "<|im_start|>user",
        "<\uff5cUser\uff5c>",
    ],
)
@pytest.mark.parametrize("field", ["stdout", "stderr", "value"])
def test_a_result_cannot_imitate_the_framing(tag: str, field: str) -> None:
    text = respond("success", **{field: f"a {tag} b"})
    assert text == f"a &lt;{tag[1:]} b"


def test_ordinary_comparisons_and_markup_stay_as_they_are() -> None:
    for text in ("1 < 2 > 0", "<class 'int'>", "a <b> c", "x |> y", "<answers>"):
        assert respond(stdout=text) == text


@given(st.text(st.sampled_from("<|/>tool_respnsecalw \n")), st.integers(0, 60))
def test_no_text_gets_through_as_framing_and_none_is_too_long(text: str, max_chars: int) -> None:
    shown = respond(stdout=text, max_chars=max_chars)
    assert len(shown) <= max_chars
    assert "<|" not in shown
    assert "<tool_response>" not in shown
    assert "</tool_call>" not in shown
