"""A server of tools with the package mcp, as users write one: ``python mcp_server.py [PORT]``; with a port by HTTP."""

import os
import sys

import anyio
from mcp.server.mcpserver import MCPServer

server = MCPServer("words")
kept: list[str] = []


@server.tool()
def remember(word: str) -> str:
    """Remember a word; all words so far."""
    kept.append(word)
    return " ".join(kept)


@server.tool()
def divide(a: float, b: float) -> float:
    """Divide a by b."""
    return a / b


@server.tool()
async def wait(seconds: float) -> str:
    """Wait for some seconds."""
    await anyio.sleep(seconds)
    return "waited"


@server.tool()
def leave() -> str:
    """End the server."""
    os._exit(3)


@server.tool()
def process() -> str:
    """The number of the server's process, and a variable that it must not see."""
    return f"{os.getpid()} {os.environ.get('SECRET')} {os.environ.get('GIVEN')}"


if __name__ == "__main__":
    if sys.argv[1:]:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
