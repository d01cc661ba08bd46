"""Conversations with tools exactly as the model's own chat template renders them.

::

    template(messages, tools=schemas) --> prompt --> the model's turn --> calls, read in the template's layout
                                            ^                                |
                                            `---- results in the role "tool", rendered by the template

Nothing of ours is added: no system text, no tags around results. A prefill after the assistant's header belongs to the
prompt and to the turn's text. The tokens of turns are kept, so a template that changes earlier turns is rendered turn
by turn; `ChatFormat.differences` names what it changes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar

from agent_rl.rollout.parsing import (
    ID_LENGTH,
    OPENING,
    AnyCall,
    ParsedCall,
    certain,
    parse_calls,
    parse_list,
    parse_object,
    place_id,
    without_calls,
)
from agent_rl.rollout.prompts import EMPTY, ChatFormat, PromptError

if TYPE_CHECKING:
    from agent_rl.environments.base import Environment
    from agent_rl.messages import Problem

PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "A tool.",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    },
}
PROBE_CALL = ParsedCall("probe", {"text": 'a "word" < 2'})
QUESTION = {"role": "user", "content": "What is 1 + 1?"}
_RESPONSE = re.compile(r"<tool_response>\n?(.*?)\n?</tool_response>", re.DOTALL)
_MARK = "TURN-MARK"


class TemplateFormat(ChatFormat):
    """The model's own template with tools. Subclasses read calls in one layout each; `made_format` chooses."""

    layout: ClassVar[str]
    """A call in this layout, for messages."""
    probes: ClassVar = {
        "a call alone": ("", ""),
        "text before a call": ("I add.", "Again."),
        "thinking before a call": ("<think>\nI add.\n</think>\n\n", "<think>\nAgain.\n</think>\n\n"),
    }
    """Texts before the calls of two turns."""

    def __init__(
        self,
        tokenizer: Any,
        environments: Mapping[str, Environment] = EMPTY,
        schemas: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
        *,
        compact: bool | None = None,
    ) -> None:
        """As of `ChatFormat`. Raises PromptError when the template does not render tools, calls and results."""
        super().__init__(tokenizer, environments, schemas, compact=compact)
        self._probe_turn = self._require_tools()
        self._end_of_call = self._end_of(self._probe_turn)
        self.stop_tokens |= {self._end_of_call}

    @property
    def reads_calls(self) -> bool:
        """Whether `calls` finds the call that the template writes."""
        calls = self.calls(self._probe_turn.rpartition(self.decode([self._end_of_call]))[0])
        return [replace(call, id="") for call in calls if isinstance(call, ParsedCall)] == [PROBE_CALL]

    @classmethod
    def demonstration(cls, messages: Sequence[dict[str, str]]) -> Sequence[dict[str, str]]:
        """Task sources put responses between tags into messages of the user; here their role is ``tool``."""
        shown: list[dict[str, str]] = []
        for message in messages:
            results = _RESPONSE.findall(message["content"]) if message["role"] == "user" and shown else []
            shown += [{"role": "tool", "content": text} for text in results] or [message]
        return shown

    def put(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[list[dict[str, Any]], Sequence[Mapping[str, Any]]]:
        """As of `ChatFormat`; calls, results and tools are the template's."""
        shown: list[dict[str, Any]] = []
        calls: list[ParsedCall] = []
        for role, turns in groupby(self._spelt_messages(messages), key=lambda message: message["role"]):
            given = list(turns)
            if role == "tool":
                given = list(_tool_messages([turn["content"] for turn in given], self._named(given, calls)))
            for turn in given if role == "assistant" else ():
                calls = [_with_id(self._spelt_call(call), number) for number, call in enumerate(turn["calls"])]
                turn |= {**_assistant(without_calls(turn["content"]).strip(), calls), "calls": calls}
            shown += given
        return shown, self._spelt_json(list(tools), "system")

    def _spelt_call(self, call: ParsedCall) -> ParsedCall:
        return replace(call, name=self.spelt(call.name), arguments=self._spelt_json(call.arguments, "assistant"))

    def _turn_tokens(self, content: str) -> list[int]:
        calls = [self._spelt_call(call) for call in parse_calls(content) if isinstance(call, ParsedCall)]
        if not calls:
            return super()._turn_tokens(content)
        text = content.partition(OPENING)[0].strip()
        prompt = self.render([QUESTION], generate=True, tools=[PROBE_TOOL])
        turn = _assistant(text, [_with_id(call, number) for number, call in enumerate(calls)])
        try:
            ended = self.render([QUESTION, turn], generate=False, tools=[PROBE_TOOL])
        except Exception as error:  # templates raise arbitrary errors
            reason = f"the chat template cannot render a demonstrated turn with {len(calls)} tool calls: {error}"
            raise PromptError(reason) from error
        end = self.decode([self._end_of_call])
        return self.encode(self._turn_text(ended, prompt).rpartition(end)[0] + end)

    def response_tokens(self, responses: Sequence[str], calls: Sequence[AnyCall] = ()) -> list[int]:
        """The tokens from the end of an assistant's turn to the model's next one: the responses in the role ``tool``.

        A response whose call is malformed or unknown has the name of the turn's first valid call, else of a tool.
        """
        return self.encode(self._results([self.spelt(text) for text in responses], self._named(responses, calls)))

    def _named(self, responses: Sequence[Any], calls: Sequence[AnyCall]) -> list[ParsedCall]:
        """A call for each response."""
        named = [call if isinstance(call, ParsedCall) else None for call in calls[: len(responses)]]
        named += [None] * (len(responses) - len(named))
        other = next((call.name for call in named if call is not None), self._some_tool())
        return [
            _with_id(ParsedCall(self.spelt(other if call is None else call.name), {}, call.id if call else ""), number)
            for number, call in enumerate(named)
        ]

    def _opening(self, spelt: list[dict[str, str]], tools: Sequence[Mapping[str, Any]]) -> str:
        return self.render(spelt, generate=True, tools=tools)

    def _mixed_tokens(
        self, results: Sequence[str], others: Sequence[dict[str, str]], calls: Sequence[AnyCall]
    ) -> list[int]:
        text = self._results([self.spelt(text) for text in results], self._named(results, calls), others)
        if not all(message["content"].strip() in text for message in others):
            raise PromptError("the chat template leaves out a message after results of tools")
        return self.encode(text)

    def _some_tool(self) -> str:
        functions = (schema.get("function", {}) for schemas in self.schemas.values() for schema in schemas)
        return next((str(function["name"]) for function in functions if "name" in function), PROBE_CALL.name)

    def _results(
        self, responses: Sequence[str], calls: Sequence[ParsedCall], others: Sequence[dict[str, str]] = ()
    ) -> str:
        """The text between the end of a turn with these calls and the model's next token; ``others`` follow."""
        before = [QUESTION, _assistant(_MARK, calls)]
        tools = () if others else (PROBE_TOOL,)  # Mistral's list tools before the last question, which moves then
        ended = _marked(self.render(before, generate=False, tools=tools))
        whole = _marked(self.render([*before, *_tool_messages(responses, calls), *others], generate=True, tools=tools))
        return ended.rpartition(self.decode([self._end_of_call]))[2] + whole[len(ended) :]

    def offered(self, problem: Problem) -> Sequence[Mapping[str, Any]]:
        """The schemas of the problem's tools, where its environment lists them."""
        return self.schemas[problem.environment] if self.environments[problem.environment].lists_tools else ()

    def _with_tools(self, messages: list[dict[str, str]], problem: Problem) -> list[dict[str, str]]:
        del problem
        return messages

    def _require_tools(self) -> str:
        """The text of a turn with a call. Raises PromptError when the template does not render tools or results."""
        calls = [_with_id(PROBE_CALL, 0)]
        try:
            prompt = self.render([QUESTION], generate=True, tools=[PROBE_TOOL])
            ended = self.render([QUESTION, _assistant("", calls)], generate=False, tools=[PROBE_TOOL])
            turn = [QUESTION, _assistant(_MARK, calls)]
            before = _marked(self.render(turn, generate=False, tools=[PROBE_TOOL]))
            whole = self.render([*turn, *_tool_messages(["RESULT"], calls)], generate=True, tools=[PROBE_TOOL])
        except Exception as error:  # templates raise arbitrary errors
            raise PromptError(f"the chat template cannot render a tool call and its result: {error}") from error
        if PROBE_CALL.name not in prompt:
            raise PromptError('the chat template does not list tools; it cannot be used with `prompt = "template"`')
        after = _marked(whole)
        if not after.startswith(before) or "RESULT" not in after[len(before) :]:
            raise PromptError("the chat template does not append the results of tools, in the role `tool`")
        self._find_controls(whole.removesuffix(self.prefill), self.end_of_turn)
        return self._turn_text(ended, prompt)

    def _end_of(self, text: str) -> int:
        """The last control token of a turn's text, which ends the turn. Raises PromptError."""
        controls = [found.group() for found in self._controls.finditer(text)]
        tokens = self.encode(controls[-1]) if controls else []
        if len(tokens) != 1 or (text.rpartition(controls[-1])[2]).strip():
            raise PromptError(
                f"the chat template ends a turn with a tool call in {text[-40:]!r}, not in a control token"
            )
        return tokens[0]

    def _turn_text(self, ended: str, prompt: str) -> str:
        """The model's part of a rendered turn. A template without the prefill in earlier turns begins at the header."""
        if ended.startswith(prompt):
            return ended[len(prompt) :]
        return ended.removeprefix(prompt.removesuffix(self.prefill))

    def _difference(self, name: str, turns: Sequence[str], *, plain: bool = False) -> str:
        messages: list[dict[str, Any]] = [QUESTION]
        built = self.encode(self.render(messages, generate=True, tools=[PROBE_TOOL]))
        for number, text in enumerate(turns, 1):
            calls = [] if plain else [_with_id(PROBE_CALL, number)]
            prompt = self.render(messages, generate=True, tools=[PROBE_TOOL])
            messages.append(_assistant(self.prefill + (text or "I add." if plain else text), calls))
            turn = self._turn_text(self.render(messages, generate=False, tools=[PROBE_TOOL]), prompt)
            end = self.decode([self.end_of_turn if plain else self._end_of_call])
            built += self.encode(turn.rpartition(end)[0] + end)
            if plain:
                built += self.message_tokens([("user", "Go on.")])
                messages.append({"role": "user", "content": "Go on."})
            else:
                built += self.response_tokens(["two\nlines"], calls)
                messages += _tool_messages(["two\nlines"], calls)
            whole = self.encode(self.render(messages, generate=True, tools=[PROBE_TOOL]))
            if difference := self._compare(built, whole, plain=plain):
                return f"{name}, turn {number}, {difference}"
        return ""


class TaggedCalls(TemplateFormat):
    """Templates of Qwen and Hermes: `ChatFormat` reads these calls."""

    layout = '<tool_call>{"name": ..., "arguments": {...}}</tool_call>'


class ListedCalls(TemplateFormat):
    """Templates of Mistral."""

    layout = '[TOOL_CALLS] [{"name": ..., "arguments": {...}}]'

    @classmethod
    def calls(cls, text: str) -> tuple[AnyCall, ...]:
        """The elements of a JSON list."""
        return parse_list(text, "[TOOL_CALLS]")

    @classmethod
    def without_calls(cls, text: str) -> str:
        """What comes before the list."""
        return text.partition("[TOOL_CALLS]")[0]

    @classmethod
    def certain(cls, text: str) -> int:
        """Likewise."""
        return certain(text, "[TOOL_CALLS]")


class SingleCall(TemplateFormat):
    """Templates of Llama 3."""

    layout = '{"name": ..., "parameters": {...}}'

    @classmethod
    def calls(cls, text: str) -> tuple[AnyCall, ...]:
        """A turn that is one JSON object."""
        return parse_object(text.strip().removeprefix("<|python_tag|>"), "parameters")

    @classmethod
    def without_calls(cls, text: str) -> str:
        """Nothing."""
        del text
        return ""

    @classmethod
    def certain(cls, text: str) -> int:
        """A turn that begins as no object is none."""
        start = text.lstrip()
        return 0 if not start or start[0] in "{<" else len(text)


LAYOUTS: tuple[type[TemplateFormat], ...] = (TaggedCalls, ListedCalls, SingleCall)


def made_format(
    declared: type[ChatFormat],
    tokenizer: Any,
    environments: Mapping[str, Environment],
    schemas: Mapping[str, Sequence[Mapping[str, Any]]],
) -> ChatFormat:
    """The format of a run: ``declared``, or the model's template when an environment asks for it. Raises PromptError.

    All environments of a run share the format.
    """
    asking = next((name for name, each in environments.items() if each.lists_tools == "template"), None)
    if asking is None:
        return declared(tokenizer, environments, schemas)
    if declared is not ChatFormat:
        raise PromptError(
            f"environment {asking!r} is prompted by the model's chat template, and the generator has the chat format "
            f"{declared.__name__}; remove one of them"
        )
    for kind in LAYOUTS:
        made = kind(tokenizer, environments, schemas)
        if made.reads_calls:
            return made
    raise PromptError(
        f"the chat template writes a tool call as {made._probe_turn[:200]!r}; known are "  # noqa: SLF001 - of this file
        f"{'; '.join(each.layout for each in LAYOUTS)}; name a chat_format of your own, and another prompt"
    )


def _with_id(call: ParsedCall, number: int) -> ParsedCall:
    usable = len(call.id) == ID_LENGTH and call.id.isalnum()
    return call if usable else replace(call, id=place_id(number))


def _marked(text: str) -> str:
    """A rendered conversation from the mark in a turn on: some templates change what comes before when others follow.

    A template that leaves out text beside calls has no mark: the whole.
    """
    return text.rpartition(_MARK)[2]


def _assistant(text: str, calls: Sequence[ParsedCall]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    return message


def _tool_messages(responses: Sequence[str], calls: Sequence[ParsedCall]) -> list[dict[str, str]]:
    return [
        {"role": "tool", "name": call.name, "tool_call_id": call.id, "content": text}
        for text, call in zip(responses, calls, strict=True)
    ]
