"""Conversations as tokens: everything goes through the tokenizer's own chat template, and is built token in, token out.

A prompt is the template's rendering of the problem. What the model wrote is never decoded and encoded again: a tool response
is appended as the tokens that the template puts between an assistant's turn and the next one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from agent_rl.config.plugins import ContractError, called
from agent_rl.environments.load import sound_prompt
from agent_rl.rollout.parsing import AnyCall, MalformedCall, ParsedCall, parse_turn

if TYPE_CHECKING:
    from agent_rl.environments.base import Demonstration, Environment
    from agent_rl.messages import Problem

EMPTY: Mapping[str, Environment] = MappingProxyType({})

SYSTEM_TOOLS = """These are the tools, as JSON schemas:
<tools>
{tools}
</tools>

To call a tool, write a JSON object with its name and its arguments between these tags:
<tool_call>{{"name": "...", "arguments": {{...}}}}</tool_call>
The result comes back between <tool_response> and </tool_response>."""
"""What tells the model of its tools, ``tools`` being their JSON schemas, one a line."""

_PROBE_CALL = '<tool_call>{"name": "python_code_with_standard_io", "arguments": {"code": "print(1 + 1)"}}</tool_call>'
PROBES = {
    "calls alone": (_PROBE_CALL, _PROBE_CALL),
    "reasoning before a call": (f"<reason> I add. </reason>\n{_PROBE_CALL}", f"Again:\n\n{_PROBE_CALL}"),
    "thinking before a call": (
        f"<think>\nI add.\n</think>\n\n{_PROBE_CALL}",
        f"<think>\nAgain.\n</think>\n\n{_PROBE_CALL}",
    ),
    "white space around a call": (f"\n {_PROBE_CALL} \n", f" \n\n{_PROBE_CALL}\n\n"),
}
"""What a model may write in two turns, for looking whether a template keeps it as it was written."""


_MARK = "ASSISTANT-MARK"


class PromptError(Exception):
    """The tokenizer's chat template cannot carry a conversation with tools; the message says what it does instead."""


class ChatFormat:
    """One tokenizer's way to write our conversations, and the format of an episode's texts.

    A format of your own overrides `listing`, `calls`, `responses` and `demonstration`: what the model is told of its tools, what of its
    turn is a call, how results come back, and how demonstrations look in it. Name it as a generator's ``chat_format``.
    """

    def __init__(
        self,
        tokenizer: Any,
        environments: Mapping[str, Environment] = EMPTY,
        schemas: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
        *,
        compact: bool | None = None,
    ) -> None:
        """``tokenizer`` is a transformers tokenizer with a chat template.

        ``environments`` by name say how their problems are put, ``schemas`` what the model may call in each, as JSON schemas (None:
        each environment's own tools). ``compact`` leaves out the line breaks around tool responses, as
        it is by itself where no environment lists its tools. Raises PromptError when the template will not do.
        """
        if getattr(tokenizer, "chat_template", None) is None:
            raise PromptError(
                "the tokenizer has no chat template; use an instruction-tuned model, or name one as chat_template in [model]"
            )
        self._tokenizer = tokenizer
        # Encoding a few dozen characters, transformers' own layer costs several times what the Rust tokenizer does.
        self._fast = getattr(tokenizer, "backend_tokenizer", None)
        self._controls = _control_tokens(tokenizer)
        self.environments = environments
        listed = any(environment.lists_tools for environment in environments.values())
        self.compact = bool(environments) and not listed if compact is None else compact
        own = {name: [tool.schema for tool in environment.tools] for name, environment in environments.items()}
        self.schemas = own if schemas is None else schemas
        self._last_prompt: tuple[Problem | None, tuple[int, ...]] = (None, ())
        self._before_response, self._after_response, end_of_turn = self._probe()
        self.end_of_turn: int = end_of_turn
        eos = tokenizer.eos_token_id
        self.stop_tokens: frozenset[int] = frozenset({end_of_turn} | ({eos} if eos is not None else set()))

    def prompt_tokens(self, problem: Problem) -> list[int]:
        """The prompt up to where the model writes. A group's samples ask for the same one after the other."""
        if self._last_prompt[0] != problem:
            tokens = self._encode(self._render(self.messages(problem), generate=True))
            self._last_prompt = (problem, tuple(tokens))
        return list(self._last_prompt[1])

    def opening_tokens(self, messages: Sequence[tuple[str, str]], problem: Problem) -> list[int]:
        """The prompt that a user's own loop makes of these messages (role, content), with the tools of the problem's environment.

        Raises PromptError when the template does not take them.
        """
        given = self._with_tools([{"role": role, "content": content} for role, content in messages], problem)
        try:
            return self._encode(self._render(given, generate=True))
        except Exception as error:  # a template refuses by raising what it likes
            raise PromptError(f"the chat template does not take these messages: {error}") from error

    def too_long(self, problems: Sequence[Problem], longest: int) -> list[tuple[Problem, int]]:
        """The problems whose prompts leave no room in a sequence of ``longest`` tokens, with the prompts' lengths.

        A token is at least a byte of text, so that only prompts of many bytes need be encoded.
        """
        frame = [{"role": "system", "content": ""}, {"role": "user", "content": ""}]
        around = len(self._encode(self._render(frame, generate=True)))
        suspects = [
            problem
            for problem in problems
            if sum(len(message["content"].encode()) for message in self.messages(problem)) + around >= longest
        ]
        lengths = [(problem, len(self.prompt_tokens(problem))) for problem in suspects]
        return [(problem, length) for problem, length in lengths if length >= longest]

    def response_tokens(self, responses: Sequence[str]) -> list[int]:
        """What follows an ended assistant turn when these tool responses come back: up to where the model writes again.

        A control token of the tokenizer's that a response spells (``</s>``, ``[INST]``) stays the text it is.
        """
        spelt = [self._controls.sub(_as_text, text) for text in responses]
        return self._encode(self._before_response + self.responses(spelt) + self._after_response)

    def message_tokens(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """What follows an ended assistant turn when these messages (role, content) come: up to where the model writes again.

        Control tokens are treated as in responses. Raises PromptError when the template does not take messages of these roles.
        """
        spelt = [{"role": role, "content": self._controls.sub(_as_text, content)} for role, content in messages]
        if len(spelt) == 1 and spelt[0]["role"] == "user":
            return self._encode(self._before_response + spelt[0]["content"] + self._after_response)
        frame = [{"role": "user", "content": "question"}, {"role": "assistant", "content": _MARK}]
        end = self.decode([self.end_of_turn])
        try:
            after = self._render([*frame, *spelt], generate=True).partition(_MARK)[2]
        except Exception as error:  # a template refuses by raising what it likes
            roles = ", ".join(role for role, _ in messages)
            raise PromptError(f"the chat template cannot go on with messages of the roles {roles}: {error}") from error
        if not after.startswith(end) or not all(message["content"].strip() in after for message in spelt):
            raise PromptError(
                f"the chat template leaves out messages of the roles {', '.join(role for role, _ in messages)}"
            )
        return self._encode(after.removeprefix(end))

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, tags included."""
        decode = self._tokenizer.decode if self._fast is None else self._fast.decode
        return str(decode(tokens, skip_special_tokens=False))

    def demonstration_tokens(self, shown: Demonstration) -> tuple[list[int], list[int]]:
        """A demonstration as tokens and its loss mask: 1 on what the assistant writes, its end of turn included."""
        return self.conversation_tokens([*self.messages(shown.problem), *self.demonstration(shown.messages)[1:]])

    def conversation_tokens(self, messages: Sequence[dict[str, str]]) -> tuple[list[int], list[int]]:
        """Any conversation as tokens and its loss mask: 1 on what the assistant writes, its ends of turn included.

        ``messages`` (``role``, ``content``) begins with the user's, a system message before it or not. Messages of the role
        ``tool`` that follow each other are the responses to one turn's calls.
        """
        start = 1 + (messages[0]["role"] == "system")
        tokens = self._encode(self._render(list(messages[:start]), generate=True))
        mask = [0] * len(tokens)
        for role, turns in groupby(messages[start:], key=lambda message: message["role"]):
            contents = [turn["content"] for turn in turns]
            if role == "assistant":
                added = [token for content in contents for token in (*self._encode(content), self.end_of_turn)]
            elif role == "tool":
                added = self.response_tokens(contents)
            else:
                added = self.message_tokens([(role, content) for content in contents])
            tokens += added
            mask += [int(role == "assistant")] * len(added)
        return tokens, mask

    # The format of an episode's texts --------------------------------------------------------------------------------------

    def messages(self, problem: Problem) -> list[dict[str, str]]:
        """The conversation (``role``, ``content``) that puts a problem to the model: its environment's, and the tools."""
        return self._with_tools(sound_prompt(self.environments[problem.environment], problem), problem)

    def _with_tools(self, messages: list[dict[str, str]], problem: Problem) -> list[dict[str, str]]:
        schemas = self.schemas[problem.environment]
        if self.environments[problem.environment].lists_tools and schemas:
            system = messages.pop(0)["content"] if messages and messages[0]["role"] == "system" else ""
            text = "\n\n".join(part for part in (system, self.listing(schemas)) if part)
            messages.insert(0, {"role": "system", "content": text})
        return messages

    def listing(self, schemas: Sequence[Mapping[str, Any]]) -> str:
        """What tells the model of its tools and how to call them; it stands at the end of the system message."""
        return SYSTEM_TOOLS.format(tools="\n".join(json.dumps(schema, ensure_ascii=False) for schema in schemas))

    @classmethod
    def calls(cls, text: str) -> tuple[AnyCall, ...]:
        """The tool calls in what the model wrote in one turn, in order; without any the episode ends. Never raises."""
        return parse_turn(text).calls

    @classmethod
    def sound_calls(cls, text: str) -> tuple[AnyCall, ...]:
        """The same as `calls`; raises ContractError when a format of the user's own raises or returns anything else."""
        name, given = f"{cls.__name__}.calls", f"for the turn {text[:200]!r}"
        found = called(name, lambda: tuple(cls.calls(text)), given)
        if not all(isinstance(call, ParsedCall | MalformedCall) for call in found):
            raise ContractError(f"{name} returned {found!r} {given}; it must return ParsedCalls and MalformedCalls")
        return found

    def responses(self, responses: Sequence[str]) -> str:
        """What the model reads of its calls' results, in their order."""
        if self.compact:
            return "".join(f"<tool_response>{text}</tool_response>" for text in responses)
        return "\n".join(f"<tool_response>\n{text}\n</tool_response>" for text in responses)

    @classmethod
    def demonstration(cls, messages: Sequence[dict[str, str]]) -> Sequence[dict[str, str]]:
        """A demonstration in this format, given as task sources write it: in the format of this very class."""
        return messages

    # ------------------------------------------------------------------------------------------------------------------------

    def _render(self, messages: list[dict[str, str]], *, generate: bool) -> str:
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generate))

    def _encode(self, text: str) -> list[int]:
        if self._fast is None:
            return list(self._tokenizer.encode(text, add_special_tokens=False))
        return list(self._fast.encode(text, add_special_tokens=False).ids)

    def differences(self) -> list[str]:
        """Where a conversation built turn by turn, as the agent loop does, is not what the template makes of it as a whole.

        What a model is trained on is what was built. A difference says that it would read something else where the whole
        conversation is rendered anew at every turn, as many servers do.
        """
        return [found for name, turns in PROBES.items() if (found := self._difference(name, turns))]

    def rewriting(self) -> str:
        """How the template changes what a model has written once somebody answers it in plain words; empty where it does not.

        White space does not count.
        """
        return next(
            (found for name, turns in PROBES.items() if (found := self._difference(name, turns, plain=True))), ""
        )

    def _difference(self, name: str, turns: Sequence[str], *, plain: bool = False) -> str:
        """The first one of a conversation in which the model writes these turns; empty without any.

        ``plain``: they are answered in plain words rather than by a tool, and white space is not looked at.
        """
        messages = [{"role": "user", "content": "What is 1 + 1?"}]
        built = self._encode(self._render(messages, generate=True))
        for number, text in enumerate(turns, 1):
            responses = ["2", "two\nlines"][:number]
            answer = "Go on." if plain else self.responses(responses)
            added = self.message_tokens([("user", answer)]) if plain else self.response_tokens(responses)
            built += [*self._encode(text), self.end_of_turn, *added]
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": answer}]
            whole = self._encode(self._render(messages, generate=True))
            if built != whole and not (plain and _solid(self.decode(built)) == _solid(self.decode(whole))):
                same = next((at for at, pair in enumerate(zip(built, whole, strict=False)) if pair[0] != pair[1]), None)
                at = min(len(built), len(whole)) if same is None else same
                near = slice(max(0, at - 4), at + 12)
                return (
                    f"{name}, turn {number}, token {at}: built {self.decode(built[near])!r}, "
                    f"the template gives {self.decode(whole[near])!r}"
                )
        return ""

    def _probe(self) -> tuple[str, str, int]:
        """What the template puts around a tool response, from a conversation with marks in it."""
        answer, response = _MARK, "RESPONSE-MARK"
        messages = [
            {"role": "user", "content": "question"},
            {"role": "assistant", "content": answer},
            {"role": "user", "content": response},
        ]
        rendered = self._render(messages, generate=True)
        if rendered.count(answer) != 1 or rendered.count(response) != 1:
            raise PromptError("the chat template leaves out or repeats a turn of a conversation")
        between = rendered.split(answer)[1].split(response)[0]
        after = rendered.split(response)[1]
        first = self._encode(between)[:1]
        end_of_turn = self._tokenizer.decode(first, skip_special_tokens=False)
        if not first or not between.startswith(end_of_turn):
            raise PromptError(
                f"the chat template ends an assistant's turn with {between!r}, which no single token begins"
            )
        return between[len(end_of_turn) :], after, first[0]


def _solid(text: str) -> str:
    """A text without its white space."""
    return "".join(text.split())


def _control_tokens(tokenizer: Any) -> re.Pattern[str]:
    """Finds what the tokenizer would read as one of its control tokens; nothing if it has none."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    controls = {*tokenizer.all_special_tokens, *(token.content for token in added if token.special)}
    longest_first = sorted((control for control in controls if len(control) > 1), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _as_text(control: re.Match[str]) -> str:
    """The token so that people read the same, and the tokenizer does not."""
    token = control.group()
    return f"&lt;{token[1:]}" if token.startswith("<") else f"{token[0]} {token[1:]}"
