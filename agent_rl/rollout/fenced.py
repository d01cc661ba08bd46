"""Calls as code between fences (``chat_format = "fenced"``), which every pretrained model has read by the million.

::

    the model:   Let me compute that.          what comes back:   ```output
                 ```python                                        42
                 print(6 * 7)                                     ```
                 ```

In the built-in loop a turn ends where its first block is closed, so the model writes no output of its own. Models that
never learned the tokens ``<tool_call>`` (docs/families.md) learn this form from a few dozen demonstrations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from agent_rl.environments.python_tools import PYTHON_TOOL
from agent_rl.rollout.parsing import AnyCall, MalformedCall, ParsedCall, certain, next_call, parse_calls, without_calls
from agent_rl.rollout.prompts import ChatFormat, PromptError

FENCE = "```"
LISTING = (
    "To use a tool, write its input between fences; the turn ends there, and what comes of it is the next message:"
)
_OPENING = re.compile(r"```(\w*)[ \t]*\n")
_RESPONSE = re.compile(r"<tool_response>\n?(.*?)\n?</tool_response>", re.DOTALL)


class _Block(NamedTuple):
    start: int
    end: int
    label: str
    code: str | None
    """None: it is not closed."""


class FencedFormat(ChatFormat):
    """Derive from it, with ``fences`` of your own, for tools that these do not call."""

    fences: ClassVar[Mapping[str, tuple[str, str]]] = MappingProxyType(
        {"python": (PYTHON_TOOL, "code"), "sql": ("sql", "query")}
    )
    """By the label of a fence: the tool, and the argument that the text between the fences is."""
    closing = FENCE
    probes: ClassVar[Mapping[str, tuple[str, str]]] = MappingProxyType(
        {"blocks": ("```python\nprint(1)\n```", "I add.\n```python\nprint(1 + 1)\n```")}
    )

    def __init__(self, tokenizer: Any, *arguments: Any, **named: Any) -> None:
        """Raises PromptError for a tool that no fence calls."""
        super().__init__(tokenizer, *arguments, **named)
        known = {tool for tool, _ in self.fences.values()}
        for schemas in self.schemas.values():
            for schema in schemas:
                if (name := schema["function"]["name"]) not in known:
                    raise PromptError(
                        f"the format {type(self).__name__} has no fence for the tool {name!r}: name a chat_format of "
                        "your own that derives from agent_rl.rollout.fenced:FencedFormat and has one in `fences`"
                    )

    def listing(self, schemas: Sequence[Mapping[str, Any]]) -> str:
        """Each tool with its fence."""
        labels = {tool: label for label, (tool, _) in self.fences.items()}
        told = [(each["function"]["name"], each["function"].get("description", "")) for each in schemas]
        return "\n".join([LISTING, *(f"{FENCE}{labels[name]}\n...\n{FENCE} {what}" for name, what in told)])

    @classmethod
    def calls(cls, text: str) -> tuple[AnyCall, ...]:
        """Every block whose label is known, in order; one that is not closed is for the model to mend."""
        unclosed = MalformedCall(f"Error: the code is not closed by {FENCE}.")
        return tuple(
            unclosed if block.code is None else ParsedCall(tool, {argument: block.code})
            for block in cls._blocks(text)
            for tool, argument in (cls.fences[block.label],)
        )

    @classmethod
    def complete(cls, text: str) -> bool:
        """Whether a call is closed."""
        return any(isinstance(call, ParsedCall) for call in cls.calls(text))

    @classmethod
    def without_calls(cls, text: str) -> str:
        """The text beside the blocks that are closed."""
        at, kept = 0, []
        for block in cls._blocks(text):
            kept.append(text[at : block.start])
            at = block.start if block.code is None else block.end
        return "".join([*kept, text[at:]])

    @classmethod
    def certain(cls, text: str) -> int:
        """Up to where no fence stands."""
        return certain(text, FENCE)

    @classmethod
    def turn_of(cls, content: str) -> str:
        """Calls between tags as blocks after the text. Raises PromptError for one that no block can say."""
        labels = {tool: label for label, tool in cls.fences.items()}
        blocks = []
        for call in parse_calls(content):
            if not isinstance(call, ParsedCall):
                return content
            given = {key: value for key, value in call.arguments.items() if value != ""}
            label = labels.get((call.name, next(iter(given), "")))
            if label is None or len(given) != 1:
                raise PromptError(f"no fence of {cls.__name__} says this call: {call.name} with {', '.join(given)}")
            code = str(*given.values())
            blocks.append(f"{FENCE}{label}\n{code}{'' if code.endswith(chr(10)) else chr(10)}{FENCE}")
        return "\n".join(filter(None, (without_calls(content).strip(), *blocks))) if blocks else content

    def responses(self, responses: Sequence[str]) -> str:
        """What came of the calls; no output can pass for the end of its own block."""
        return "\n".join(_output(text) for text in responses)

    @classmethod
    def demonstration(cls, messages: Sequence[dict[str, str]]) -> Sequence[dict[str, str]]:
        """The same conversation between fences, of one with tags and JSON."""
        return [{**message, "content": cls._translated(message)} for message in messages]

    @classmethod
    def _translated(cls, message: dict[str, str]) -> str:
        content = message["content"]
        if message["role"] == "assistant":
            return cls.turn_of(content)
        results = _RESPONSE.findall(content) if message["role"] == "user" else ()
        return "\n".join(map(_output, results)) or content

    @classmethod
    def _blocks(cls, text: str) -> Iterator[_Block]:
        """The blocks of known labels that no thought holds; other blocks are passed over whole."""
        at = 0
        while (start := next_call(text, at, FENCE)) >= 0:
            opening = _OPENING.match(text, start)
            closing = text.find(FENCE, opening.end()) if opening else start
            at = len(text) if closing < 0 else closing + len(FENCE)
            if opening and opening[1] in cls.fences:
                yield _Block(start, at, opening[1], None if closing < 0 else text[opening.end() : closing])


def _output(output: str) -> str:
    return f"{FENCE}output\n{output.replace(FENCE, chr(39) * 3)}\n{FENCE}"
