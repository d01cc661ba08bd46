"""The part of an MCP server that all scripts of adapters share: requests on standard input, answers on standard output.

The environment makes the calls, not the model: no tool is listed. Standard library alone, for any interpreter.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

Answer: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""The result of a call, by its name and arguments. What it raises is the call's error."""
NAME = {"name": "agent_rl adapter", "version": "1"}


def prepared() -> Any:
    """The stream for answers. Call it first: what a library prints is no message, and its names are not ours."""
    here = Path(__file__).parent
    sys.path[:] = [each for each in sys.path if Path(each or ".").resolve() != here]
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return out


def required(module: str, package: str) -> Any:
    """A module of another project. Ends this process with the remedy where its package is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        sys.exit(f"{error}; install {package} for {sys.executable}")


def written(rows: list[dict[str, Any]], file: Path) -> None:
    """Write a file of tasks, whole or not at all."""
    partial = file.with_name(f"{file.name}.{os.getpid()}")
    partial.write_text("".join(json.dumps(row) + "\n" for row in rows))
    partial.replace(file)


async def serve(answer: Answer, out: Any) -> None:
    """Answer the lines of standard input, several at once, until it ends."""
    running: dict[Any, asyncio.Task[None]] = {}

    async def reply(asked: dict[str, Any]) -> None:
        try:
            said = {"jsonrpc": "2.0", "id": asked["id"], **await _answered(answer, asked)}
            out.write(json.dumps(said) + "\n")
            out.flush()
        finally:
            del running[asked["id"]]

    while line := await asyncio.to_thread(sys.stdin.readline):
        asked = json.loads(line)
        if asked.get("method") == "notifications/cancelled":
            if task := running.get(asked["params"]["requestId"]):
                task.cancel()
        elif "id" in asked and "method" in asked:
            running[asked["id"]] = asyncio.create_task(reply(asked))


async def _answered(answer: Answer, asked: dict[str, Any]) -> dict[str, Any]:
    """The result of a request, or its error."""
    match asked["method"]:
        case "initialize":
            return {"result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": NAME}}
        case "ping":
            return {"result": {}}
        case "tools/list":
            return {"result": {"tools": []}}
        case "tools/call":
            try:
                said = await answer(asked["params"]["name"], asked["params"]["arguments"])
            except Exception as error:  # noqa: BLE001  whatever the library raises is the result of the call
                return {"error": {"code": -32000, "message": f"{type(error).__name__}: {error}"}}
            return {"result": {"content": [{"type": "text", "text": json.dumps(said)}]}}
    return {"error": {"code": -32601, "message": f"{asked['method']} is not offered"}}
