"""The format of episodes that a topology's generator declares.

All code that writes or reads conversations, also the learner's demonstrations, uses this format. So one changed
``class`` line of a topology changes the format everywhere.
"""

from __future__ import annotations

from typing import Any

from agent_rl.config.plugins import ContractError, resolve
from agent_rl.config.topology import Topology
from agent_rl.environments.load import Environments
from agent_rl.rollout.prompts import ChatFormat
from agent_rl.rollout.template import made_format
from agent_rl.topology_checks.contracts import declaration


def declared_format(topology: Topology) -> type[ChatFormat]:
    """The format that the topology's generator speaks; `agent-rl check` has seen that all generators speak the same."""
    found = (declaration(resolve("actor", entry.class_path), entry.settings) for entry in topology.actors.values())
    return next((value for value in found if value is not None), ChatFormat)


def chat_format(topology: Topology, tokenizer: Any, environments: Environments) -> ChatFormat:
    """The topology's chat format with this tokenizer. Raises PromptError when the tokenizer does not suit."""
    return made_format(declared_format(topology), tokenizer, environments, environments.schemas)


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
