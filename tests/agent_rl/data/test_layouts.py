"""The layouts of public sets: rows that we wrote ourselves in each layout become the one format that is trained on."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.cli.main import main
from agent_rl.data.conversations import conversation, tool_turn_without_call, try_conversations, written
from agent_rl.data.layouts import LAYOUTS, NoConversation, bracket_calls, call_text
from agent_rl.environments.base import TaskError
from agent_rl.rollout.parsing import ParsedCall, parse_calls
from tests.agent_rl.data.test_data_command import write_rows

ROWS = json.loads(Path(__file__).with_name("public_rows.json").read_text(encoding="utf-8"))
"""A row of our own in the layout of each set, the roles of its conversation, and the tools that are called there."""
TOOLACE, GLAIVE, LLAMA_NEMOTRON, TULU = (ROWS[name]["row"] for name in ("ToolACE", "Glaive", "Llama-Nemotron", "Tulu"))


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_each_public_set_becomes_a_conversation(name: str) -> None:
    row, roles, names = ROWS[name].values()
    messages, tools = said = conversation(row)
    assert [message["role"] for message in messages] == roles.split()
    calls = [call for message in messages if message["role"] == "assistant" for call in parse_calls(message["content"])]
    assert [call.name for call in calls if isinstance(call, ParsedCall)] == names
    assert len(calls) == len(names)  # none of them is malformed
    assert not tool_turn_without_call(messages)
    assert conversation({"messages": [*map(written, messages)], "tools": tools}) == said
    assert {tool.get("function", tool)["name"] for tool in tools} >= {*names}
    system = messages[0]["content"] if names else ""
    assert "params_name" not in system  # the set's own way to call tools is not asked for any more
    assert "Use them if required" not in system


def test_the_table_of_the_documents_is_that_of_the_code() -> None:
    lines = (Path(__file__).parents[3] / "docs/data.md").read_text(encoding="utf-8").splitlines()
    first = lines.index("| columns | sets | what becomes of them |") + 2
    assert lines[first : first + len(LAYOUTS) + 1] == [*(layout.row for layout in LAYOUTS), ""]


def test_arguments_keep_their_types_whatever_python_thinks_of_their_names() -> None:
    first, second = parse_calls(conversation(TOOLACE).messages[1]["content"])
    assert first == ParsedCall("Tide Table/at", {"port": "Brest", "days": ["Mon", "Tue"], "from": 3})
    assert second == ParsedCall("Tide Table/at", {"port": "St Malo", "in": None})
    (call,) = parse_calls(conversation(GLAIVE).messages[2]["content"])
    assert call == ParsedCall("add", {"a": 1, "note": "it's 2"})
    assert conversation(GLAIVE).messages[2]["content"].startswith("Let me see.\n<tool_call>")
    assert conversation(GLAIVE).messages[0]["content"] == "You are a helpful assistant."
    assert conversation(LLAMA_NEMOTRON).messages[0]["content"] == "detailed thinking on"
    assert conversation({**LLAMA_NEMOTRON, "input": "Why?"}) == conversation(LLAMA_NEMOTRON)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
NAME = st.from_regex(r"[A-Za-z][A-Za-z0-9 ./_-]{0,12}[A-Za-z0-9]", fullmatch=True)
CALLS = st.lists(
    st.fixed_dictionaries(
        {"name": NAME, "arguments": st.dictionaries(st.from_regex(r"[a-z_-]{1,6}", fullmatch=True), JSON, max_size=3)}
    ),
    min_size=1,
    max_size=3,
)


@given(CALLS, st.sampled_from([json.dumps, repr]))
def test_calls_in_brackets_are_read_as_they_were_written(calls: list[dict[str, Any]], write: Any) -> None:
    written = [
        f"{call['name']}({', '.join(f'{key}={write(value)}' for key, value in call['arguments'].items())})"
        for call in calls
    ]
    assert bracket_calls(f"[{', '.join(written)}]") == calls
    assert all(isinstance(parse_calls(call_text(call))[0], ParsedCall) for call in calls)


@pytest.mark.parametrize(
    "text", ["", "[", "[1] and [2]", "[f(1)]", "[f(a=open(x))]", "[f(a=1]", "[a, b]", "[f(a={1})]"]
)
def test_another_text_in_brackets_is_no_call(text: str) -> None:
    assert not bracket_calls(text)


@given(st.dictionaries(st.sampled_from([key for layout in LAYOUTS for key in layout.columns]), JSON | st.just([{}])))
def test_no_row_of_any_values_raises_anything_else(row: dict[str, Any]) -> None:
    with suppress(NoConversation):
        conversation(row)


def tool_row(text: str, *, answered: bool) -> dict[str, Any]:
    after = [{"role": "tool", "content": "2"}, {"role": "assistant", "content": "2"}] if answered else []
    return {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}, *after]}


def test_tool_turns_without_a_call_are_refused_counted_and_named(tmp_path: Path, capsys: Any) -> None:
    valid = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    rows = [
        tool_row(valid, answered=True),
        tool_row("add(1)", answered=True),
        tool_row("<tool_call>add(1)</tool_call>", answered=False),
        tool_row(f"{valid}<tool_call>add(1)</tool_call>", answered=True),
        tool_row("no tool", answered=False),
        *[tool_row("print(1)", answered=True)] * 5,
        {"text": "x"},
    ]
    file, out = write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    assert main(["data", "sft", file, "--out", str(out)]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    counts = json.loads(last)
    assert (counts["read"], counts["kept"]) == (11, 3)
    assert counts["dropped_tool_turn_without_a_call"] == 7
    assert counts["dropped_unknown_layout"] == 1
    first = ", ".join(f"{file}:{line}" for line in (2, 3, 6, 7, 8))
    assert f"note: 7 rows left out (tool turn without a call): {first}, ..." in lines
    assert f"note: 1 row left out (unknown layout): {file}:11" in lines
    assert len(out.read_text().splitlines()) == 3


def test_a_file_of_an_unknown_layout_is_one_message_with_the_known_ones(tmp_path: Path, capsys: Any) -> None:
    sound = write_rows(tmp_path / "a.jsonl", [TULU])
    file = write_rows(tmp_path / "b.jsonl", [{"text": "User: hi", "meta": 1}])
    assert main(["data", "sft", sound, file, "--out", str(tmp_path / "out.jsonl")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{file}:1: unknown layout of conversations; its columns are text, meta; known are messages (OpenAI" in line
    assert all(name in line for name in ("ToolACE", "Glaive v2", "Magicoder", "Nemotron", "xlam", "Tulu 3"))
    assert not (tmp_path / "out.jsonl").exists()
    with pytest.raises(TaskError, match=r"b\.jsonl:1: unknown layout .*its columns are text, meta; known are messages"):
        try_conversations(["a.jsonl", "b.jsonl"], tmp_path, 1000)
