"""An MCP server with a fault, without any package: ``python bad_mcp_server.py FAULT``."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

fault = sys.argv[1]


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if fault in ("gone", "once"):  # the second argument is the file of one who has served before
    served = Path(sys.argv[2])
    fault = "dies" if fault == "gone" and served.exists() else "well" if served.exists() else "ends"
    served.touch()
if fault == "dies":
    sys.exit("no configuration file")
if fault == "stays" and os.fork() == 0:  # a child of the server, which has none of its pipes
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    time.sleep(600)
if fault == "banner":
    say("Welcome to my server!")
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
LISTED = {
    "old": {"protocolVersion": "1999-01-01"},
    "array": {"tools": [{"name": "f", "inputSchema": {"type": "array"}}]},
    "nameless": {"tools": [{"inputSchema": SCHEMA}]},
    "empty": {"tools": []},
}
CALLED = {
    "list": {"jsonrpc": "2.0", "id": [1], "result": {}},
    "content": {"result": {"content": "text"}},
    "no result": {},
    "error": {"error": {"code": -32000, "message": "the disk is full"}},
    "params": {"error": {"code": -32602, "message": "Unknown tool"}},
    "well": {"result": {"content": [{"type": "text", "text": "well"}]}},
    "half": {"error": {"code": -32602, "message": "\ud83d is half"}},
    "deep": {"result": {"structuredContent": json.loads("[" * 500 + "]" * 500)}},
    "long": {"result": {"content": [{"type": "text", "text": "a" * (1 << 17)}]}},
    "structured": {"result": {"content": [], "structuredContent": {"a": "ä"}}},
}
for line in sys.stdin:
    asked = json.loads(line)
    result: dict = {}
    match asked["method"]:
        case "initialize":
            if fault == "mute":
                continue
            result = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "bad"}}
            say(json.dumps({"jsonrpc": "2.0", "id": "p", "method": "ping"}))
            pong = json.loads(sys.stdin.readline())
            assert pong == {"jsonrpc": "2.0", "id": "p", "result": {}}
        case "tools/list" if fault == "pages" and not asked["params"]:
            result = {"tools": [{"name": "f", "inputSchema": SCHEMA}], "nextCursor": "2"}
        case "tools/list" if fault == "pages":
            result = {"tools": [{"name": "g", "inputSchema": {"type": "object"}}]}
        case "tools/list":
            result = {"tools": [{"name": "f", "description": "F.", "inputSchema": SCHEMA}]}
        case "tools/call" if fault in CALLED:
            say(json.dumps({"jsonrpc": "2.0", "id": asked["id"]} | CALLED[fault]))
            continue
        case "tools/call" if fault == "ends":
            sys.exit(3)
        case "tools/call" if fault == "deaf":
            time.sleep(600)
        case "notifications/cancelled":
            sys.stderr.write(f"cancelled {asked['params']}")
            sys.exit(5)
        case _:
            continue
    if asked["method"] == ("initialize" if fault == "old" else "tools/list"):
        result = result | LISTED.get(fault, {})
    say(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}))
