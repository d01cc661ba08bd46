"""Tools of MCP servers: the files of what servers list, and the messages from servers, without a server."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agent_rl.config.topology import EnvironmentEntry, McpServer
from agent_rl.environments import mcp
from agent_rl.environments.base import BadArgumentError, ToolOutput
from agent_rl.environments.mcp import McpError
from agent_rl.environments.schemas import ToolError

OBJECT = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
F = {"name": "f", "description": "F.", "inputSchema": OBJECT}


def tools(folder, listed, **settings):
    """The tools of servers whose files have these contents."""
    for name, content in listed.items():
        (folder / f"{name}.tools.json").write_text(content if isinstance(content, str) else json.dumps(content))
    servers = {name: {"command": ["x"]} | settings.get(name, {}) for name in {**listed, **settings}}
    entry = EnvironmentEntry.model_validate({"class": "maths", "mcp": servers})
    return list(mcp.mcp_tools(entry, folder))


def test_a_tool_is_told_as_its_server_lists_it(tmp_path):
    bare = {"name": "g", "inputSchema": {"type": "object"}}
    settings = {"s": {"prefix": "my_", "seconds": 2}, "t": {"per": "rollout"}}
    first, second, private = tools(tmp_path, {"s": [F, bare], "t": [F]}, **settings)
    assert (first.name, first.listed, first.seconds, first.stateful) == ("my_f", "f", 2, False)
    assert first.schema == {"type": "function", "function": {"name": "my_f", "description": "F.", "parameters": OBJECT}}
    assert second.schema["function"]["parameters"] == {"type": "object", "properties": {}}
    assert (private.name, private.stateful, private.runs, private.seconds) == ("f", True, "host", 30)


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ("[", "s.tools.json: not JSON"),
        ({"tools": []}, "{'tools': []} is no tool; a tool is an object with name and inputSchema"),
        ([{"name": 1}], "{'name': 1} is no tool"),
        ([F | {"inputSchema": {"type": "array"}}], "the tool 'f': the parameters of its schema are {'properties': {}"),
        ([F | {"inputSchema": "object"}], "the tool 'f': its schema is"),
        ([{"name": "f"}], "the tool 'f': its schema is"),
    ],
)
def test_a_file_that_lists_no_tools_is_refused_with_its_place(tmp_path, listed, said):
    with pytest.raises(ToolError) as caught:
        tools(tmp_path, {"s": listed})
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"mcp.s: {tmp_path}/s.tools.json")


def test_a_missing_file_and_two_tools_of_one_name_are_refused(tmp_path):
    with pytest.raises(ToolError, match=r"mcp\.s: there is no .*s\.tools\.json; write it with `agent-rl mcp FILE`"):
        tools(tmp_path, {}, s={})
    with pytest.raises(
        ToolError, match=r"mcp\.t: the servers 's' and 't' both have a tool 'f'; give one of them a pre"
    ):
        tools(tmp_path, {"s": [F], "t": [F]})
    assert len(tools(tmp_path, {"s": [F], "t": [F]}, t={"prefix": "t_"})) == 2


@pytest.mark.parametrize("settings", [{}, {"command": ["x"], "url": "http://x"}, {"url": "ftp://x"}, {"seconds": 0}])
def test_a_server_is_a_command_or_an_address(settings):
    with pytest.raises(ValidationError):
        McpServer.model_validate(settings)


def test_a_tool_asks_its_server_and_one_with_state_knows_that_it_was_called(tmp_path):
    asked = []

    class Context:
        async def ask_server(self, server, tool, arguments, *, again):
            asked.append((server, tool, arguments, again))
            return ToolOutput("success", value="b")

    shared, private = tools(tmp_path, {"s": [F], "t": [F]}, s={"prefix": "p_"}, t={"per": "rollout"})
    assert trio.run(shared.call, {"a": "1"}, b"", Context()) == ToolOutput("success", value="b")
    first = trio.run(private.call, {}, b"", Context())
    trio.run(private.call, {}, first.state, Context())
    assert asked == [("s", "f", {"a": "1"}, False), ("t", "f", {}, False), ("t", "f", {}, True)]
    assert private.render(first) == "b"


def page(name, **more):
    return {"tools": [F | {"name": name}]} | more


@pytest.mark.parametrize("last", [{}, {"nextCursor": None}, {"nextCursor": ""}])
def test_a_list_of_tools_ends_without_a_cursor(last):
    listing = mcp.Listing()
    assert listing.add(page("f", nextCursor="2")) == "2"
    assert listing.add(page("g", **last)) is None
    assert [each["name"] for each in listing.tools] == ["f", "g"]


@pytest.mark.parametrize(
    ("pages", "said"),
    [
        ([page("f", nextCursor="a"), page("g", nextCursor="b"), page("h", nextCursor="a")], "the cursor 'a' again, so"),
        ([page("f", nextCursor=[1])], r"the cursor \[1\], which is no text"),
        ((page(f"t{n}", nextCursor=str(n)) for n in range(10**9)), "lists more than 1000 tools, 100 pages or"),
        ([{"tools": [F] * 1001}], "lists more than 1000 tools"),
        ([{"tools": [F | {"description": "a" * mcp.MESSAGE_BYTES}]}], f"or {mcp.MESSAGE_BYTES} bytes; offer fewer"),
    ],
    ids=["a circle", "no text", "endless", "many tools", "long"],
)
def test_a_list_of_tools_without_an_end_is_a_fault(pages, said):
    listing = mcp.Listing()
    with pytest.raises(McpError, match=said):
        any(not listing.add(each) for each in pages)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("[" * 200 + "]" * 200, "JSON nested deeper than 100 levels"),
        ("[" * 100_000 + "]" * 100_000, "JSON nested too deeply"),
        ("9" * 5000, "a number has thousands of digits"),
    ],
)
def test_json_that_nothing_else_could_handle_is_one_fault(value, said):
    with pytest.raises(McpError, match=f"wrote .* is no JSON-RPC message: {said}"):
        mcp.received(f'{{"jsonrpc": "2.0", "id": 1, "result": {{"content": {value}}}}}'.encode())


def test_half_of_a_surrogate_pair_becomes_a_character_everywhere():
    said = mcp.received(rb'{"jsonrpc": "2.0", "id": 1, "\udc00": ["\ud83d", "\ud83d\ude00", {"a": "\u00e4 \ud83d!"}]}')
    assert said == {"jsonrpc": "2.0", "id": 1, "\ufffd": ["\ufffd", "\U0001f600", {"a": "\u00e4 \ufffd!"}]}


def test_a_schema_that_changed_is_named_and_another_description_is_not():
    assert mcp.changed_tool([F], [F | {"description": "other"}, {"name": "g"}]) == ""
    assert mcp.changed_tool([F], [F | {"inputSchema": {"type": "object"}}]) == "f"
    assert mcp.changed_tool([F], []) == "f"


def test_events_of_a_stream_are_put_together():
    lines = b'event: message\r\ndata: {"a":\r\ndata: 1}\r\n\r\n: keep-alive\r\n\r\ndata: 2\n\ndata: cut'.splitlines(
        True
    )
    assert list(mcp.events(lines)) == [b'{"a":\n1}', b"2"]


def test_parts_of_a_result_become_one_text():
    parts = [
        {"type": "text", "text": "one"},
        {"type": "image", "data": "AAAA", "mimeType": "image/png"},
        {"type": "resource", "resource": {"uri": "file:///x", "text": "two"}},
        {"type": "resource_link", "uri": "file:///y"},
        {"type": "other"},
    ]
    output = mcp.output_of({"content": parts})
    assert output == ToolOutput("success", value="one\n[image image/png]\ntwo\n[resource_link file:///y]\n[other]")
    failed = {"content": [{"type": "text", "text": "no"}], "isError": True}
    assert mcp.output_of(failed) == ToolOutput("error", stderr="no")


def test_wrong_arguments_are_malformed_and_other_errors_are_the_tools():
    with pytest.raises(McpError) as caught:
        mcp.result_of({"error": {"code": -32602, "message": "no such tool"}})
    with pytest.raises(BadArgumentError, match="no such tool"):
        mcp.refused_call(caught.value)
    assert mcp.refused_call(McpError("full")) == ToolOutput("error", stderr="full")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(("id", "result", "error", "content", "a")), inner),
)


@given(JSON)
def test_whatever_a_server_writes_is_read_or_refused(value):
    data = json.dumps(value | {"jsonrpc": "2.0"} if isinstance(value, dict) else value).encode()
    with suppress(McpError):
        message = mcp.received(data)
        mcp.answer(message)
        mcp.output_of(mcp.result_of(message))
    with pytest.raises(McpError):
        mcp.received(data[:-1] + b"x")
