"""Tools of MCP servers: the file of what a server lists, and the messages that a client exchanges with a server.

::

    agent-rl mcp FILE --> tools/list --> NAME.tools.json --> McpTool, in every actor alike
    McpTool.call --> Context.ask_server --> tools/call of the executor's server --> output_of

The model is told what the file says. So generators need no server, and a server that changes during a run does not
change the prompts. The protocol is JSON-RPC 2.0 (modelcontextprotocol.io, revisions with the ``initialize`` handshake).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from agent_rl.environments.base import BadArgumentError, Context, ToolOutput
from agent_rl.environments.schemas import ToolError, schema_fault
from agent_rl.environments.tools import rendered
from agent_rl.files.reading_json import JsonError, read_json, sound_json

if TYPE_CHECKING:
    from agent_rl.config.topology import EnvironmentEntry

PROTOCOL = "2025-11-25"
"""The newest revision that this client speaks. A server answers with the revision that it speaks."""
REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", PROTOCOL)
HELLO = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": {"name": "agent_rl", "version": "1"}}
"""The parameters of ``initialize``."""
HEADERS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
"""Of requests by HTTP."""
KEPT = ("name", "description", "inputSchema")
"""What the file says of each tool."""
INVALID_PARAMS = -32602
"""JSON-RPC's code for wrong arguments, and for an unknown tool."""
SHOWN, SAID = 200, 2000
"""Characters of a wrong message that an error shows, and of an error that a server tells."""
MESSAGE_BYTES = 1 << 24
"""The longest answer of a server, and the longest list of tools."""
MOST_PAGES, MOST_TOOLS = 100, 1000
"""What a server may list."""


class McpError(Exception):
    """A server did not do what was asked; the message says what it did instead. ``code`` is JSON-RPC's, 0 for none."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


@dataclass(eq=False, slots=True)
class McpTool:
    """A tool of a server, as a `Tool`. ``listed`` is its name at the server, ``name`` has the prefix too."""

    server: str
    listed: str
    name: str
    schema: Mapping[str, Any]
    seconds: float | None
    stateful: bool
    runs: Literal["sandbox", "host"] = "host"

    async def call(self, arguments: Mapping[str, Any], state: bytes, context: Context) -> ToolOutput:
        """Ask the server. Where a rollout has a server of its own, the state says that the tool was called before."""
        output = await context.ask_server(self.server, self.listed, arguments, again=bool(state))
        return dataclasses.replace(output, state=b"called") if self.stateful else output

    def render(self, output: ToolOutput) -> str:
        """The text that the model reads."""
        return rendered(output)


# What a server lists --------------------------------------------------------------------------------------------------


def listing_path(entry: EnvironmentEntry, server: str, base: Path) -> Path:
    """The file of what a server lists; ``base`` is the topology file's folder."""
    return base / entry.base / (entry.mcp[server].tools or f"{server}.tools.json")


def mcp_tools(entry: EnvironmentEntry, base: Path) -> Iterator[McpTool]:
    """The tools of an entry's servers. Raises ToolError for a file that cannot be read, and two tools of one name."""
    servers: dict[str, str] = {}
    for server, settings in entry.mcp.items():
        path = listing_path(entry, server, base)
        where = f"mcp.{server}"
        try:
            listed = read_json(path)
        except FileNotFoundError:
            raise ToolError(f"{where}: there is no {path}; write it with `agent-rl mcp FILE`") from None
        except (OSError, JsonError) as error:
            raise ToolError(f"{where}: {path}: {error}; write it again with `agent-rl mcp FILE`") from error
        for each, schema in sound_listing(listed, f"{where}: {path}").items():
            name = settings.prefix + each
            if first := servers.get(name):
                both = f"the servers {first!r} and {server!r} both have a tool {name!r}"
                raise ToolError(f"{where}: {both}; give one of them a prefix")
            servers[name] = server
            function = {"type": "function", "function": {**schema["function"], "name": name}}
            yield McpTool(server, each, name, function, settings.seconds, settings.per == "rollout")


def sound_listing(listed: Any, where: str) -> dict[str, Mapping[str, Any]]:
    """The schemas for chat templates, by name, of the tools that a server lists. Raises ToolError for what is none."""
    schemas: dict[str, Mapping[str, Any]] = {}
    for each in listed if isinstance(listed, list) else [listed]:
        if not isinstance(each, Mapping) or not isinstance(name := each.get("name"), str):
            raise ToolError(f"{where}: {each!r:.{SHOWN}} is no tool; a tool is an object with name and inputSchema")
        parameters = each.get("inputSchema")
        if isinstance(parameters, Mapping):
            parameters = {"properties": {}, **parameters}
        function = {"name": name, "description": each.get("description") or "", "parameters": parameters}
        schemas[name] = {"type": "function", "function": function}
        if fault := schema_fault(schemas[name], name):
            raise ToolError(f"{where}: the tool {name!r}: {fault}; correct the server")
    return schemas


def changed_tool(kept: Any, listed: Iterable[Mapping[str, Any]]) -> str:
    """The first tool of the file whose schema the server does not list; empty where there is none. Users may edit
    descriptions.
    """
    now = {each["name"]: each.get("inputSchema") for each in listed}
    kept = kept if isinstance(kept, list) else [kept]  # as `sound_listing` reads it
    return next((each["name"] for each in kept if now.get(each["name"]) != each.get("inputSchema")), "")


# Messages -------------------------------------------------------------------------------------------------------------


def request(number: int, method: str, params: Mapping[str, Any]) -> bytes:
    """A request, as a line without its end."""
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode()


def notification(method: str, **params: Any) -> bytes:
    """A message that nobody answers."""
    return json.dumps({"jsonrpc": "2.0", "method": method, **({"params": params} if params else {})}).encode()


def revision(result: Mapping[str, Any]) -> str:
    """The revision in a server's answer to ``initialize``. Raises McpError for one that this client cannot speak."""
    if (spoken := result.get("protocolVersion")) not in REVISIONS:
        raise McpError(f"speaks revision {spoken!r:.40} of the protocol; this client speaks {', '.join(REVISIONS)}")
    return str(spoken)


def received(data: bytes) -> Mapping[str, Any]:
    """A message of a server. Raises McpError for what is none."""
    why = "is no JSON-RPC message"
    try:
        message: Any = sound_json(data)
    except JsonError as error:
        message, why = None, f"{why}: {error}"
    if isinstance(message, dict) and message.get("jsonrpc") == "2.0" and isinstance(message.get("id", 0), int | str):
        return message
    raise McpError(f"wrote {data[:SHOWN].decode(errors='replace')!r}, which {why}")


def bounded(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a body. Raises McpError beyond ``MESSAGE_BYTES``, before a longer one is in memory."""
    size = 0
    for line in lines:
        size += len(line)
        if size > MESSAGE_BYTES:
            raise McpError(f"answered with more than {MESSAGE_BYTES} bytes")
        yield line


def events(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The data of each server-sent event of a body."""
    data: list[bytes] = []
    for line in lines:
        if line.startswith(b"data:"):
            data.append(line[5:].strip())
        elif not line.strip() and any(data):
            yield b"\n".join(data)
            data = []


@dataclass(slots=True)
class Listing:
    """The tools that a server has listed so far, page by page."""

    tools: list[Mapping[str, Any]] = field(default_factory=list)
    _cursors: list[str] = field(default_factory=list)
    _bytes: int = 0

    def add(self, page: Mapping[str, Any]) -> str | None:
        """Take a result of ``tools/list``. Returns the cursor of the next page, None after the last: where there is no
        cursor, null or an empty one. Raises McpError for what is no page, and for a list without an end.
        """
        tools, cursor = page.get("tools"), page.get("nextCursor") or None
        if not isinstance(tools, list) or not all(isinstance(each, Mapping) and "name" in each for each in tools):
            raise McpError(f"answered tools/list with {page!r:.{SHOWN}}, whose tools are no list of objects with names")
        if cursor is not None and not isinstance(cursor, str):
            raise McpError(f"answered tools/list with the cursor {cursor!r:.{SHOWN}}, which is no text")
        if cursor in self._cursors:
            raise McpError(
                f"answered tools/list with the cursor {cursor!r:.{SHOWN}} again, so that its list has no end"
            )
        self.tools += [{key: each[key] for key in KEPT if key in each} for each in tools]
        self._bytes += len(json.dumps(tools))
        if cursor is not None:
            self._cursors.append(cursor)
        if max(len(self._cursors) / MOST_PAGES, len(self.tools) / MOST_TOOLS, self._bytes / MESSAGE_BYTES) > 1:
            limits = f"{MOST_TOOLS} tools, {MOST_PAGES} pages or {MESSAGE_BYTES} bytes"
            raise McpError(f"lists more than {limits}; offer fewer tools")
        return cursor


def answer(message: Mapping[str, Any]) -> bytes | None:
    """The answer to a request of the server's; None where the message is no request."""
    if "method" not in message or "id" not in message:
        return None
    refusal = {"error": {"code": -32601, "message": "this client offers nothing but ping"}}
    said: dict[str, Any] = {"result": {}} if message["method"] == "ping" else refusal
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], **said}).encode()


def result_of(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The result in a response. Raises McpError for an error, and for what is no response."""
    if isinstance(error := message.get("error"), Mapping):
        code = error.get("code")
        raise McpError(f"{error.get('message', error)!s:.{SAID}}", code if isinstance(code, int) else 0)
    if not isinstance(result := message.get("result"), Mapping):
        raise McpError(f"answered {message!r:.{SHOWN}}, which has neither a result nor an error")
    return result


def output_of(result: Mapping[str, Any]) -> ToolOutput:
    """The output of a tool, of the result of ``tools/call``. Raises McpError for a result without content."""
    content = result.get("content", [])
    if not isinstance(content, list) or not all(isinstance(part, Mapping) for part in content):
        raise McpError(f"answered a call with {result!r:.{SHOWN}}, whose content is no list of objects")
    text = "\n".join(_text(part) for part in content)
    if not text and "structuredContent" in result:
        text = json.dumps(result["structuredContent"], ensure_ascii=False)
    if result.get("isError"):
        return ToolOutput("error", stderr=text)
    return ToolOutput("success", value=text)


def refused_call(error: McpError) -> ToolOutput:
    """The output of a call that the server answered with an error. Raises BadArgumentError for wrong arguments."""
    if error.code == INVALID_PARAMS:
        raise BadArgumentError(str(error))
    return ToolOutput("error", stderr=str(error))


def _text(part: Mapping[str, Any]) -> str:
    """A part of a result in words; what is no text is named."""
    inside = part.get("resource")
    for at in (part, inside if isinstance(inside, Mapping) else {}):
        if isinstance(at.get("text"), str):
            return str(at["text"])
    return f"[{part.get('type')} {part.get('uri') or part.get('mimeType') or ''}]".replace(" ]", "]")
