"""A tool whose module a sandbox can load: it imports what is installed or of the product, and nothing of the tests."""

from __future__ import annotations

from pathlib import Path

from agent_rl.environments.tools import tool


@tool(runs="sandbox")
def in_the_sandbox(path: str, *, state: list[str]) -> str:
    """Looks whether there is a file, and prints."""
    print("looking")  # noqa: T201
    state.append(path)
    if path == "raise":
        raise RuntimeError("on purpose")
    return f"{Path(path).exists()} {len(state)}"
