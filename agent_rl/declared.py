"""What the actor classes of a topology declare for each other: the format of episodes, and the tools there are.

The generator's class names the format (``chat_format``), executors' classes the tools (``tools``). Whoever writes or reads
conversations, the learner's demonstrations included, takes both from here, so that one changed ``class`` line of a
topology changes them everywhere.
"""

from __future__ import annotations

from typing import Any

from agent_rl.check import find_class
from agent_rl.prompts import TOOLS, ChatFormat
from agent_rl.topology import Topology


def declared_format(topology: Topology) -> type[ChatFormat]:
    """The format that the topology's generator speaks."""
    for entry in topology.actors.values():
        found = getattr(find_class(entry.class_path), "chat_format", None)
        if found is not None:
            return found  # type: ignore[no-any-return]
    return ChatFormat


def declared_tools(topology: Topology) -> tuple[dict[str, Any], ...]:
    """The JSON schemas of the tools that the topology's executors run."""
    for entry in topology.actors.values():
        found = getattr(find_class(entry.class_path), "tools", None)
        if found is not None:
            return tuple(found)
    return TOOLS


def chat_format(topology: Topology, tokenizer: Any) -> ChatFormat:
    """How the topology's conversations are written with this tokenizer. Raises PromptError when it will not do."""
    return declared_format(topology)(tokenizer, topology.tasks.prompt, declared_tools(topology))
