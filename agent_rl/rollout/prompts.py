"""Conversations as tokens, by the tokenizer's own chat template.

A prompt is the template's rendering of the problem. The model's turns are never decoded and encoded again. A tool
response is appended as the tokens that the template puts between an assistant's turn and the next one.

All other text comes from outside: problems, tools, environments, users' loops, demonstrations. `ChatFormat.spelt` takes
the control tokens out of it, so that only the template begins and ends turns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from agent_rl.config.plugins import ContractError, called
from agent_rl.environments.load import sound_prompt
from agent_rl.files.reading_json import read_text
from agent_rl.rollout.parsing import AnyCall, MalformedCall, ParsedCall, certain, harmless, parse_calls, without_calls

if TYPE_CHECKING:
    from agent_rl.environments.base import Environment
    from agent_rl.messages import Problem
from pathlib import Path

from agent_rl.config.topology import Topology

EMPTY: Mapping[str, Environment] = MappingProxyType({})

SYSTEM_TOOLS = """These are the tools, as JSON schemas:
<tools>
{tools}
</tools>

To call a tool, write a JSON object with its name and its arguments between these tags:
<tool_call>{{"name": "...", "arguments": {{...}}}}</tool_call>
The result comes back between <tool_response> and </tool_response>."""
"""The text about the tools in the system message. ``tools``: their JSON schemas, one a line."""

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
"""Pairs of turns that a model may write, to test whether a template keeps them unchanged."""

THOUGHTS = ("reasoning_content", "thinking", "reasoning")
"""Keys of a message under which templates look for a thought."""
_MARK = "ASSISTANT-MARK"
FEW = 100
"""Messages that a template may put in another order."""
LONG_TEXT = 100_000
"""Characters of a text that takes long to encode."""


class PromptError(Exception):
    """The chat template cannot render a conversation with tools; the message says what it does instead."""


def _in_order(parts: Sequence[str], text: str) -> bool:
    """Whether a text has these parts, one after the other, or in any order where there are few."""
    at = 0
    for part in parts:
        found = text.find(part, at)
        if found < 0 and len(parts) <= FEW:
            found = text.find(part)
        if found < 0:
            return False
        at = max(at, found + len(part))
    return True


class ChatFormat:
    """Renders conversations as tokens for one tokenizer, and reads calls from turns.

    A format of your own overrides `listing` (the text about tools), `calls` (the calls in a turn), `responses` (the
    text of results) and `demonstration` (the form of demonstrations); for agents at the gateway also `without_calls`
    (the text beside calls) and `turn_of` (a turn of others). Name it as a generator's ``chat_format``.
    """

    probes: ClassVar[Mapping[str, tuple[str, str]]] = PROBES
    closing: ClassVar[str] = ""
    """A turn of the agent loop ends at the first token that holds this and makes it `complete`; empty: it stops."""
    _frame = ""

    def __init__(
        self,
        tokenizer: Any,
        environments: Mapping[str, Environment] = EMPTY,
        schemas: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
        *,
        compact: bool | None = None,
    ) -> None:
        """``tokenizer``: a transformers tokenizer with a chat template.

        ``environments`` make the prompts, by name. ``schemas``: the tools of each, as JSON schemas (None: the
        environment's own). ``compact`` leaves out the line breaks around tool responses; by default it is set when no
        environment lists its tools. Raises PromptError when the template cannot be used.
        """
        if getattr(tokenizer, "chat_template", None) is None:
            raise PromptError(
                "the tokenizer has no chat template; use an instruction-tuned model, or name a template as "
                "chat_template in [model]"
            )
        self._tokenizer = tokenizer
        # For a few dozen characters, transformers' own layer costs several times as much as the Rust tokenizer.
        self._fast = getattr(tokenizer, "backend_tokenizer", None)
        self.prefill = ""
        """The text with which the template begins the model's turn, after the assistant's header."""
        self._before_response, self._after_response, self.end_of_turn = self._probe()
        self.environments = environments
        listed = any(environment.lists_tools for environment in environments.values())
        self.compact = bool(environments) and not listed if compact is None else compact
        own = {name: [tool.schema for tool in environment.tools] for name, environment in environments.items()}
        given = own if schemas is None else schemas
        self.schemas: Mapping[str, Sequence[Mapping[str, Any]]] = {
            name: self._spelt_json(list(tools), "system") for name, tools in given.items()
        }
        self._last_prompt: tuple[Problem | None, tuple[int, ...]] = (None, ())
        eos = tokenizer.eos_token_id
        self.stop_tokens: frozenset[int] = frozenset({self.end_of_turn} | ({eos} if eos is not None else set()))

    @cached_property
    def longest_token(self) -> int:
        """The most characters of a token."""
        return max(map(len, self._tokenizer.get_vocab()))

    @property
    def vocabulary(self) -> int:
        """Token ids that the tokenizer knows: below this number."""
        return len(self._tokenizer)

    def prompt_tokens(self, problem: Problem) -> list[int]:
        """The prompt up to the model's first token. The last one is kept: a group's samples share their prompt."""
        if self._last_prompt[0] != problem:
            tokens = self.encode(self._prompt(self.messages(problem), problem))
            self._last_prompt = (problem, tuple(tokens))
        return list(self._last_prompt[1])

    def opening_tokens(self, messages: Sequence[tuple[str, str]], problem: Problem) -> list[int]:
        """The prompt of a user's own loop: its messages (role, content), with the tools of the problem's environment.

        Raises PromptError when the template does not take the messages.
        """
        given = self._put([{"role": role, "content": content} for role, content in messages], problem)
        try:
            return self.encode(self._prompt(given, problem))
        except Exception as error:  # templates raise arbitrary errors
            raise PromptError(f"the chat template does not take these messages: {error}") from error

    def too_long(self, problems: Sequence[Problem], longest: int) -> list[tuple[Problem, int]]:
        """The problems whose prompts leave no room in a sequence of ``longest`` tokens, with the prompts' lengths.

        A token is at least a byte of text, so only prompts of many bytes are encoded.
        """
        frame = [{"role": "system", "content": ""}, {"role": "user", "content": ""}]
        one_of_each = {problem.environment: problem for problem in problems}
        around = {name: len(self.encode(self._prompt(frame, each))) for name, each in one_of_each.items()}
        suspects = [
            problem
            for problem in problems
            if sum(len(message["content"].encode()) for message in self.messages(problem)) + around[problem.environment]
            >= longest
        ]
        lengths = [(problem, len(self.prompt_tokens(problem))) for problem in suspects]
        return [(problem, length) for problem, length in lengths if length >= longest]

    def response_tokens(self, responses: Sequence[str], calls: Sequence[AnyCall] = ()) -> list[int]:
        """The tokens from the end of an assistant's turn to the model's next one, with these responses to ``calls``."""
        del calls
        spelt = [self.spelt(text) for text in responses]
        return self.encode(self._before_response + self.responses(spelt) + self._after_response)

    def message_tokens(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """The tokens from the end of an assistant's turn to the model's next one, with these messages (role, content).

        Raises PromptError when the template does not take the roles.
        """
        return self._later_tokens([{"role": role, "content": self.spelt(content)} for role, content in messages])

    def _later_tokens(self, spelt: Sequence[dict[str, str]]) -> list[int]:
        if len(spelt) == 1 and spelt[0]["role"] == "user":
            return self.encode(self._before_response + spelt[0]["content"] + self._after_response)
        roles = ", ".join(message["role"] for message in spelt)
        frame = [{"role": "user", "content": "question"}, {"role": "assistant", "content": _MARK}]
        end = self.decode([self.end_of_turn])
        try:
            after = self.render([*frame, *spelt], generate=True).partition(_MARK)[2]
        except Exception as error:  # templates raise arbitrary errors
            reason = f"the chat template cannot continue with messages of the roles {roles}: {error}"
            raise PromptError(reason) from error
        if not after.startswith(end) or not all(message["content"].strip() in after for message in spelt):
            raise PromptError(f"the chat template leaves out messages of the roles {roles}")
        return self.encode(after.removeprefix(end))

    # Conversations of an agent behind the gateway.

    def asked_tokens(self, messages: Sequence[tuple[str, str]], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """The prompt of messages (role, content) with ``tools``, JSON schemas, up to the model's first token.

        A system message that is not the first becomes one of the user where the template leaves it out. Raises
        PromptError when the template does not take the messages.
        """
        spelt = [{"role": role, "content": self.spelt(content, role)} for role, content in messages]
        schemas = self._spelt_json(list(tools), "system")
        for given in (spelt, [*spelt[:1], *map(_of_user, spelt[1:])]):
            try:
                text = self._opening(list(given), schemas)
            except Exception as error:  # templates raise arbitrary errors
                raise PromptError(f"the chat template does not take these messages: {error}") from error
            if _in_order([message["content"].strip() for message in given], text):
                return self.encode(text)
        raise PromptError("the chat template leaves out a message")

    def _opening(self, spelt: list[dict[str, str]], tools: Sequence[Mapping[str, Any]]) -> str:
        return self.render(self._told(spelt, tools), generate=True)

    def given_turn_tokens(self, content: str) -> list[int]:
        """A turn of the assistant that others wrote, with its calls in tags, as the model would write it."""
        return self._turn_tokens(self.spelt(self.turn_of(content), "assistant"))

    def between_tokens(self, messages: Sequence[tuple[str, str]], calls: Sequence[AnyCall]) -> list[int]:
        """The tokens from the end of a turn with ``calls`` to the next one: results (role ``tool``) and messages.

        Raises PromptError when the template does not take the roles.
        """
        results = [content for role, content in messages if role == "tool"]
        others = [(role, content) for role, content in messages if role != "tool"]
        if not others:
            return self.response_tokens(results, calls)
        spelt = [{"role": role, "content": self.spelt(text)} for role, text in others]
        try:
            return self._mixed_tokens(results, spelt, calls) if results else self._later_tokens(spelt)
        except PromptError:
            if all(role != "system" for role, _ in others):
                raise
            as_user = list(map(_of_user, spelt))
            return self._mixed_tokens(results, as_user, calls) if results else self._later_tokens(as_user)

    def _mixed_tokens(
        self, results: Sequence[str], others: Sequence[dict[str, str]], calls: Sequence[AnyCall]
    ) -> list[int]:
        del calls
        shown = self.responses([self.spelt(text) for text in results])
        return self._later_tokens([{"role": "user", "content": shown}, *others])

    @classmethod
    def turn_of(cls, content: str) -> str:
        """A turn whose calls are between tags, ``<tool_call>{...}</tool_call>``, as the model would write it."""
        return content

    @classmethod
    def without_calls(cls, text: str) -> str:
        """A turn's text without its valid calls."""
        return without_calls(text)

    @classmethod
    def certain(cls, text: str) -> int:
        """How many characters of a turn that is being written are no part of a call, whatever follows."""
        own = next(each for each in cls.__mro__ if "calls" in vars(each)) is not ChatFormat
        return 0 if own else certain(text)

    def turn_text(self, tokens: Sequence[int]) -> str:
        """The text of a turn of the model, with the template's prefill."""
        return self.prefill + self.decode(tokens)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, special tokens included."""
        decode = self._tokenizer.decode if self._fast is None else self._fast.decode
        return str(decode(tokens, skip_special_tokens=False))

    def put(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[list[dict[str, Any]], Sequence[Mapping[str, Any]]]:
        """A conversation (`agent_rl.data.conversations`) as messages for the template, and the tools that it lists.

        An assistant's message keeps ``train`` and ``thought``, and has ``calls``, those in its content.
        """
        shown: list[dict[str, Any]] = []
        for role, turns in groupby(self._spelt_messages(messages), key=lambda message: message["role"]):
            given = list(turns)
            if role == "tool":
                given = [{"role": "user", "content": self.responses([turn["content"] for turn in given])}]
            shown += given
        own = self.demonstration([{"role": each["role"], "content": each["content"]} for each in shown])
        if len(own) != len(shown):
            raise PromptError(f"{type(self).__name__}.demonstration makes {len(own)} messages of {len(shown)}")
        put = [{**before, **after} for before, after in zip(shown, own, strict=True)]
        return self._told(put, self._spelt_json(list(tools), "system")), ()

    def _spelt_messages(self, messages: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        for message in messages:
            spelt = {**message, "content": self.spelt(message["content"], message["role"])}
            if message["role"] == "assistant":
                spelt["calls"] = [call for call in parse_calls(spelt["content"]) if isinstance(call, ParsedCall)]
            if thought := message.get("thought"):
                spelt |= dict.fromkeys(("thought", *THOUGHTS), self.spelt(thought, "assistant").strip())
            yield spelt

    def ended(self, text: str) -> tuple[str, str]:
        """A rendered turn without the control tokens that end it, and these; where there are none, a turn's usual end.

        What follows them after white space, as the end of a whole text, is no part of the turn.
        """
        text = text.rstrip()
        while found := self._ends.search(text):
            before = text[: found.start()]
            if before == before.rstrip() or not self._ends.search(before.rstrip()):
                return before, found.group()
            text = before.rstrip()
        return text, self.decode([self.end_of_turn])

    def holds_control(self, text: str) -> bool:
        """Whether a text holds a control token."""
        return self._controls.search(text) is not None

    # The format of an episode's texts.

    def messages(self, problem: Problem) -> list[dict[str, str]]:
        """The messages (``role``, ``content``) of a problem: its environment's, and the text about tools."""
        return self._put(sound_prompt(self.environments[problem.environment], problem), problem)

    def _put(self, messages: Sequence[dict[str, str]], problem: Problem) -> list[dict[str, str]]:
        """The spelt messages of a prompt, with the text about tools."""
        put = [{**message, "content": self.spelt(message["content"], message["role"])} for message in messages]
        return self._with_tools(put, problem)

    def _with_tools(self, messages: list[dict[str, str]], problem: Problem) -> list[dict[str, str]]:
        lists = self.environments[problem.environment].lists_tools
        return self._told(messages, self.schemas[problem.environment] if lists else ())

    def _told(self, messages: list[dict[str, Any]], schemas: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The messages with the text about tools in the system message."""
        if schemas:
            system = messages.pop(0)["content"] if messages and messages[0]["role"] == "system" else ""
            text = "\n\n".join(part for part in (system, self.listing(schemas)) if part)
            if text:
                messages.insert(0, {"role": "system", "content": text})
        return messages

    def listing(self, schemas: Sequence[Mapping[str, Any]]) -> str:
        """The text about the tools and how to call them, for the end of the system message."""
        return SYSTEM_TOOLS.format(tools="\n".join(json.dumps(schema, ensure_ascii=False) for schema in schemas))

    @classmethod
    def calls(cls, text: str) -> tuple[AnyCall, ...]:
        """The tool calls in a turn of the model, in order. A turn without calls ends the episode. Never raises."""
        return parse_calls(text)

    @classmethod
    def complete(cls, text: str) -> bool:
        """Whether a turn that is being written ends here."""
        del text
        return False

    @classmethod
    def sound_calls(cls, text: str) -> tuple[AnyCall, ...]:
        """As `calls`. Raises ContractError when a user's own format raises, or returns something else."""
        name, given = f"{cls.__name__}.calls", f"for the turn {text[:200]!r}"
        calls = called(name, lambda: tuple(cls.calls(text)), given)
        if not all(isinstance(call, ParsedCall | MalformedCall) for call in calls):
            raise ContractError(f"{name} returned {calls!r} {given}; it must return ParsedCalls and MalformedCalls")
        return calls

    def responses(self, responses: Sequence[str]) -> str:
        """The text of the calls' results, in their order."""
        if self.compact:
            return "".join(f"<tool_response>{text}</tool_response>" for text in responses)
        return "\n".join(f"<tool_response>\n{text}\n</tool_response>" for text in responses)

    @classmethod
    def demonstration(cls, messages: Sequence[dict[str, str]]) -> Sequence[dict[str, str]]:
        """A demonstration in this format. ``messages`` have the format of `ChatFormat`, as task sources write it."""
        return messages

    def _turn_tokens(self, content: str) -> list[int]:
        """A demonstrated turn as the model would write it, with its end."""
        return [*self.encode(content.removeprefix(self.prefill)), self.end_of_turn]

    def _prompt(self, messages: Sequence[dict[str, str]], problem: Problem) -> str:
        """The text of a prompt about a problem."""
        return self.render(messages, generate=True, tools=self.offered(problem))

    def offered(self, problem: Problem) -> Sequence[Mapping[str, Any]]:
        """The schemas of the tools that the template lists itself; none where the system message lists them."""
        del problem
        return ()

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, generate: bool, tools: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        """The template's text of messages; ``generate`` adds its prompt for a turn. Raises whatever it raises."""
        options: dict[str, Any] = {"tools": list(tools)} if tools else {}
        rendered = self._tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=generate, **options
        )
        return str(rendered)

    def spelt(self, text: str, role: str = "user") -> str:
        """``text`` of a message as text that holds no control token: ``&lt;|im_end|>``, ``[ INST]``.

        Control tokens are those that the tokenizer calls special or the template frames turns with, and other added
        ones with a meaning in conversations, as Qwen3's ``<tool_call>``. The latter stay in the roles ``assistant`` and
        ``system``: models write them, and authors name them. A text in which a token appears as the tokenizer
        normalizes it is normalized.
        """
        controls = self._controls if role in {"assistant", "system"} else self._markup
        spelt = controls.sub(_as_text, text)
        normalizer = getattr(self._fast, "normalizer", None)
        normal = spelt if normalizer is None else normalizer.normalize_str(spelt)
        return controls.sub(_as_text, normal) if controls.search(normal) else spelt

    def _spelt_json(self, value: Any, role: str) -> Any:
        """A JSON value with all its texts spelt, keys too: an escape in JSON may hide a control token."""
        if isinstance(value, str):
            return self.spelt(value, role)
        if isinstance(value, Mapping):
            return {self.spelt(str(key), role): self._spelt_json(each, role) for key, each in value.items()}
        return [self._spelt_json(each, role) for each in value] if isinstance(value, list | tuple) else value

    def spells_out(self, messages: Sequence[Mapping[str, str]]) -> bool:
        """Whether a message (``role``, ``content``), or a call in it, holds the text of a control token."""
        for message in messages:
            calls = [call for call in parse_calls(message["content"]) if isinstance(call, ParsedCall)]
            texts = [message["content"], *([call.name, call.arguments] for call in calls)]
            if self._spelt_json(texts, message["role"]) != texts:
                return True
        return False

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, control tokens included."""
        if self._fast is None:
            return list(self._tokenizer.encode(text, add_special_tokens=False))
        if len(text) < LONG_TEXT:
            return list(self._fast.encode(text, add_special_tokens=False).ids)
        return list(self._fast.encode_batch([text], add_special_tokens=False)[0].ids)  # other threads go on meanwhile

    def differences(self) -> list[str]:
        """Where a conversation that is built turn by turn differs from the template's rendering of the whole.

        The agent loop builds turn by turn, and the model is trained on this. Many servers render the whole conversation
        again at each turn. There the model would read another text.
        """
        return [text for name, turns in self.probes.items() if (text := self._difference(name, turns))]

    def rewriting(self) -> str:
        """How the template changes earlier turns when a user's message answers them; empty if it does not.

        White space does not count.
        """
        found = (self._difference(name, turns, plain=True) for name, turns in self.probes.items())
        return next(filter(None, found), "")

    def _difference(self, name: str, turns: Sequence[str], *, plain: bool = False) -> str:
        """The first difference in a conversation with these turns of the model; empty if there is none.

        ``plain``: a user's message answers the turns instead of a tool, and white space does not count.
        """
        messages = [{"role": "user", "content": "What is 1 + 1?"}]
        built = self.encode(self.render(messages, generate=True))
        for number, text in enumerate(turns, 1):
            responses = ["2", "two\nlines"][:number]
            answer = "Go on." if plain else self.responses(responses)
            added = self.message_tokens([("user", answer)]) if plain else self.response_tokens(responses)
            built += [*self.encode(text), self.end_of_turn, *added]
            messages += [{"role": "assistant", "content": self.prefill + text}, {"role": "user", "content": answer}]
            whole = self.encode(self.render(messages, generate=True))
            if difference := self._compare(built, whole, plain=plain):
                return f"{name}, turn {number}, {difference}"
        return ""

    def _compare(self, built: Sequence[int], whole: Sequence[int], *, plain: bool) -> str:
        if built == whole or (plain and _solid(self.decode(built)) == _solid(self.decode(whole))):
            return ""
        same = next((at for at, pair in enumerate(zip(built, whole, strict=False)) if pair[0] != pair[1]), None)
        at = min(len(built), len(whole)) if same is None else same
        near = slice(max(0, at - 4), at + 12)
        return f"token {at}: built {self.decode(built[near])!r}, the template gives {self.decode(whole[near])!r}"

    def _probe(self) -> tuple[str, str, int]:
        """The text before and after a tool response, and the token that ends a turn, from a conversation with marks."""
        answer, response = _MARK, "RESPONSE-MARK"
        messages = [
            {"role": "user", "content": "question"},
            {"role": "assistant", "content": answer},
            {"role": "user", "content": response},
        ]
        rendered = self.render(messages, generate=True)
        if rendered.count(answer) != 1 or rendered.count(response) != 1:
            raise PromptError("the chat template leaves out or repeats a turn of a conversation")
        header, begun = rendered.split(answer)[0], self.render(messages[:1], generate=True)
        self.prefill = begun.removeprefix(header) if begun.startswith(header) else ""
        between = rendered.split(answer)[1].split(response)[0]
        after = rendered.split(response)[1]
        first = self.encode(between)[:1]
        end_of_turn = self._tokenizer.decode(first, skip_special_tokens=False)
        if not first or not between.startswith(end_of_turn):
            raise PromptError(
                f"the chat template ends an assistant's turn with {between!r}, which no single token begins"
            )
        added = {*getattr(self._tokenizer, "added_tokens_decoder", {}), self._tokenizer.eos_token_id}
        if between[:1] in "<[" and first[0] not in added:
            raise PromptError(
                f"the chat template ends an assistant's turn with {between!r}, and the tokenizer has no such "
                "token: name a template that belongs to the tokenizer as chat_template in [model]"
            )
        self._find_controls(rendered.removesuffix(self.prefill), first[0])
        return between[len(end_of_turn) :], after, first[0]

    def _find_controls(self, frame: str, end: int) -> None:
        """Patterns of special tokens with ``end`` and those in ``frame``, a template's text, and of all with a meaning
        in conversations.
        """
        self._frame += frame
        added = getattr(self._tokenizer, "added_tokens_decoder", {})
        special = {*self._tokenizer.all_special_tokens, *(token.content for token in added.values() if token.special)}
        template, tags = str(self._tokenizer.chat_template), set()
        for number, token in added.items():
            text = token.content
            tag = harmless(text) != text and text[1:2] not in "|\uff5c"  # as <think>, which models write
            if number == end or (text in self._frame and not tag and re.search(r"[^\w\s]", text)):
                special.add(text)
            elif harmless(text) != text or (text[:1] in "<[" and text in template):
                tags.add(text)
        self._controls, self._markup = self._any_of(special), self._any_of(special | tags)
        self._ends = re.compile(rf"(?:{self._controls.pattern})+\Z")

    def _any_of(self, tokens: set[str]) -> re.Pattern[str]:
        """Matches any of the texts, as they are or normalized, the longest first; nothing if there are none."""
        normalizer = getattr(self._fast, "normalizer", None)
        solid = {token for token in tokens if token.strip()}
        normal = set() if normalizer is None else set(map(normalizer.normalize_str, solid)) - {""}
        longest_first = sorted(solid | normal, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _of_user(message: dict[str, str]) -> dict[str, str]:
    """A system message as one of the user; others as they are."""
    return {**message, "role": "user"} if message["role"] == "system" else message


def _solid(text: str) -> str:
    """A text without its white space."""
    return "".join(text.split())


def _as_text(control: re.Match[str]) -> str:
    """The token's text, changed so that the tokenizer does not read the token, nor one within it."""
    first, rest = control.group()[0], control.re.sub(_as_text, control.group()[1:])
    return f"&lt;{rest}" if first == "<" else f"{first} {rest}" if rest else f"&#{ord(first)};"


CHATML = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' -}}"
    "{%- if message['role'] == 'assistant' -%}"
    "{%- generation -%}{{- message['content'] + '<|im_end|>' -}}{%- endgeneration -%}"
    "{%- else -%}{{- message['content'] + '<|im_end|>' -}}{%- endif -%}"
    "{{- '\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
"""For tokenizers with the tokens ``<|im_start|>`` and ``<|im_end|>``.

It repeats earlier turns unchanged, so a conversation is always a prefix of its continuation. The templates of many
models leave out the reasoning of earlier turns."""

OURS = {"chatml": CHATML}
"""Our templates by the names for ``chat_template`` in a topology's ``[model]``. Other values are files."""


def template_file(topology: Topology, base: Path) -> Path | None:
    """The template file that the topology names. None: it names none, or one of ours."""
    name = topology.model.chat_template
    return None if name is None or name in OURS else base / name


def load_tokenizer(directory: Path, topology: Topology, base: Path) -> Any:
    """The model's transformers tokenizer, with the template that the topology names.

    ``base``: the directory of the topology file. Raises OSError and UnicodeDecodeError for unreadable template files.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
    file = template_file(topology, base)
    if file is not None:
        tokenizer.chat_template = read_text(file)
    elif topology.model.chat_template is not None:
        tokenizer.chat_template = OURS[topology.model.chat_template]
    return tokenizer
