"""What the actor classes of a topology declare for each other: the format of episodes, and the tools there are.

The generator's class names the format (``chat_format``), executors' classes the tools (``tools``). Whoever writes or reads
conversations, the learner's demonstrations included, takes both from here, so that one changed ``class`` line of a
topology changes them everywhere.
"""

from __future__ import annotations

import json
from typing import Any

from agent_rl.checks.contracts import declaration
from agent_rl.config.plugins import ContractError, resolve
from agent_rl.config.topology import Topology
from agent_rl.rollout.prompts import TOOLS, ChatFormat


def declared_format(topology: Topology) -> type[ChatFormat]:
    """The format that the topology's generator speaks."""
    found: type[ChatFormat] | None = _first(topology, "chat_format")
    return found or ChatFormat


def declared_tools(topology: Topology) -> tuple[dict[str, Any], ...]:
    """The JSON schemas of the tools that the topology's executors run."""
    return tuple(_first(topology, "tools") or TOOLS)


def _first(topology: Topology, attribute: str) -> Any:
    """What the first class declares that has a say; `agent-rl check` has seen that the others declare the same."""
    found = (declaration(resolve("actor", entry.class_path), attribute) for entry in topology.actors.values())
    return next((value for value in found if value is not None), None)


def chat_format(topology: Topology, tokenizer: Any) -> ChatFormat:
    """How the topology's conversations are written with this tokenizer. Raises PromptError when it will not do."""
    return declared_format(topology)(tokenizer, topology.tasks.prompt, declared_tools(topology))


TURNS = (
    "",
    "So be it.",
    "<tool_call>",
    "<tool_call>{}</tool_call>",
    "```python",
    "```python\n1/0\n```",
    "\x00<|end|>\u2028" * 9,
)
"""Texts a model may write in a turn, for trying a format on."""


def format_faults(found: Any) -> list[str]:
    """What is wrong with a generator's ``chat_format``, found by reading a few turns with it."""
    if not (isinstance(found, type) and issubclass(found, ChatFormat)):
        return [f"chat_format is {found!r}; it must be a class derived from agent_rl.rollout.prompts.ChatFormat"]
    try:
        for turn in TURNS:
            found.sound_calls(turn)
    except ContractError as error:
        return [str(error)]
    if found.calls("So be it."):
        return [f"{found.__name__}.calls finds calls in a turn that has none; an episode would never end"]
    return []


def tool_faults(tools: Any) -> list[str]:
    """What is wrong with the tools an executor declares, as JSON schemas for the model to read."""
    if not isinstance(tools, tuple | list) or not tools:
        return [f"tools is {tools!r}; it must be a tuple of JSON schemas, at least one"]
    faults, names = [], set[str]()
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not name or not isinstance(function.get("parameters"), dict):  # type: ignore[union-attr]
            wanted = '{"type": "function", "function": {"name": ..., "description": ..., "parameters": {...}}}'
            faults.append(f"tools holds {tool!r:.100}; write it as {wanted}")
            continue
        if name in names:
            faults.append(f"tools declares {name!r} twice")
        names.add(name)
        try:
            json.dumps(tool)
        except (TypeError, ValueError) as error:
            faults.append(f"the tool {name!r} cannot be written as JSON: {error}")
    return faults
