"""A generator for another format of episodes: the model writes Python between fences instead of JSON between tags.

::

    the model:   Let me compute that.          what comes back:   ```output
                 ```python                                        42
                 print(6 * 7)                                     ```
                 ```

Two lines of a topology beside it choose it, for the learner's demonstrations too::

    [actors.rollout_generator]
    class = "fenced_generator:FencedGenerator"
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from actors.rollout_generator import RolloutGenerator
from agent_rl.environments.python_tools import PYTHON_TOOL
from agent_rl.rollout.parsing import AnyCall, MalformedCall, ParsedCall, parse_calls
from agent_rl.rollout.prompts import ChatFormat

OPENING, CLOSING = "```python\n", "```"
LISTING = """To run Python, write it between ```python and ```; what it prints comes back between ```output and ```."""
_RESPONSE = re.compile(r"<tool_response>\n?(.*?)\n?</tool_response>", re.DOTALL)


class FencedFormat(ChatFormat):
    """What the model is told, what of its turn is a call, how results come back, and how demonstrations look."""

    def listing(self, schemas: Sequence[Mapping[str, Any]]) -> str:
        """What follows the environment's system text."""
        del schemas
        return LISTING

    @classmethod
    def calls(cls, text: str) -> tuple[AnyCall, ...]:
        """Every block between fences, in order; one that is not closed is for the model to mend."""
        found: list[AnyCall] = []
        for block in text.split(OPENING)[1:]:
            code, closing, _ = block.partition(CLOSING)
            malformed = MalformedCall(f"Error: the Python is not closed by {CLOSING}.")
            found.append(ParsedCall(PYTHON_TOOL, {"code": code}) if closing else malformed)
        return tuple(found)

    def responses(self, responses: Sequence[str]) -> str:
        """What came of the calls; no output can pass for the end of its own block."""
        return "\n".join(_fenced(text) for text in responses)

    @classmethod
    def demonstration(cls, messages: Sequence[dict[str, str]]) -> Sequence[dict[str, str]]:
        """Task sources write demonstrations with tags and JSON: the same conversation, between fences."""
        return [{**message, "content": _translated(message)} for message in messages]


class FencedGenerator(RolloutGenerator):
    """The agent loop as it is, in another format."""

    chat_format = FencedFormat


def _fenced(output: str) -> str:
    harmless = output.replace(CLOSING, "'''")
    return f"```output\n{harmless}\n```"


def _translated(message: dict[str, str]) -> str:
    content = message["content"]
    if message["role"] == "assistant":
        blocks = [
            f"{OPENING}{call.arguments['code']}\n{CLOSING}"
            for call in parse_calls(content)
            if isinstance(call, ParsedCall)
        ]
        return "\n".join(blocks) or content
    results = _RESPONSE.findall(content)
    return "\n".join(_fenced(result) for result in results) or content
