"""Chat templates of real families, from TRL's wheel, and what is trained of three conversations with each.

``make .venv-clients/templates`` fetches the wheel; ``python -m tests.agent_rl.rollout.families`` prints
``docs/families.md`` and the counts.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerFast

from agent_rl.learning.tiny import character_tokenizer
from agent_rl.rollout.prompts import THOUGHTS, ChatFormat, PromptError
from agent_rl.rollout.supervised import sequences
from agent_rl.rollout.template import made_format
from agent_rl_contract import builders

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / ".venv-clients/templates/trl/chat_templates"
PICTURES = {"diffusion_gemma", "idefics3", "llava_next", "lfm2_2_5_vl", "qwen2_5_vl", "qwen3_vl", "smolvlm"}
"""Families of pictures."""
SPECIAL = re.compile(
    r"<[|\uff5c][^<>{}'\"\s]*?[|\uff5c]>|</?s>|<sop>|\[gMASK\]|\[/?INST\]|<(?:start|end)_of_turn>"
    r"|<\|(?:turn|channel|tool|tool_call|tool_response)>|<(?:turn|channel|tool|tool_call|tool_response)\|>"
)
SCHEMAS = [
    {"type": "function", "function": {"name": name, "description": "A tool.", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}}}
    for name in ("look", "see")
]  # fmt: skip
CALLS = [("look", "a"), ("see", "b")]
THINKS = ("I add.", "I say.")


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def tagged(name: str, text: str) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {{"text": "{text}"}}}}</tool_call>'


def dialogue(*turns: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for words, turn in zip(("What is 1 + 1?", "Why?"), turns, strict=True) for each in (user(words), turn)]


RESULTS = [{"role": "tool", "content": "one"}, {"role": "tool", "content": "two"}]
CONVERSATIONS = {
    "plain": dialogue(assistant("It is 2."), assistant("So.")),
    "thoughts": dialogue(assistant("It is 2.", thought=THINKS[0]), assistant("So.", thought=THINKS[1])),
    "tagged thoughts": dialogue(*(assistant(f"<think>\n{each}\n</think>\n\nSo.") for each in THINKS)),
    "calls": [user("Look."), assistant("Both.\n" + "\n".join(tagged(*call) for call in CALLS)), *RESULTS, assistant("Done.")],
}  # fmt: skip


def tokenizer_of(template: str) -> Any:
    """Characters, and the control tokens that the template names."""
    made = PreTrainedTokenizerFast(
        tokenizer_object=character_tokenizer(byte_fallback=True), eos_token="<|eos|>", pad_token="<pad>", bos_token="<bos>"
    )  # fmt: skip
    made.add_special_tokens({"additional_special_tokens": sorted({*SPECIAL.findall(template)})})
    made.add_tokens(["<think>", "</think>"])
    made.chat_template = template
    return made


def rendered(chat: ChatFormat, tokenizer: Any, messages: list[dict[str, Any]], tools: Any) -> Iterator[str]:
    """The template's own text up to each turn of the assistant."""
    own = [{key: value for key, value in each.items() if key != "thought"} | dict.fromkeys(THOUGHTS if each.get("thought") else (), each.get("thought")) for each in messages]  # fmt: skip
    listed: dict[str, Any] = {}
    if type(chat) is not ChatFormat:
        listed = {"tools": tools} if tools else {}
        own[1:4] = [
            assistant("Both.", tool_calls=[{"id": f"call0000{n}", "type": "function", "function": {"name": name, "arguments": {"text": text}}} for n, (name, text) in enumerate(CALLS)]),
            *({**each, "name": name, "tool_call_id": f"call0000{n}"} for n, (each, (name, _)) in enumerate(zip(RESULTS, CALLS, strict=True))),
        ]  # fmt: skip
    elif tools:
        own[2:4] = [user(chat.responses(["one", "two"]))]
        own.insert(0, {"role": "system", "content": chat.listing(tools)})
    for at, each in enumerate(own, 1):
        if each["role"] == "assistant":
            yield tokenizer.apply_chat_template(own[:at], tokenize=False, **listed)


class Outcome(NamedTuple):
    """What became of a conversation: its sequences, how it differs from the template's text, or why it is refused."""

    sequences: int = 0
    difference: str = ""
    refused: str = ""


def outcome(chat: ChatFormat, tokenizer: Any, name: str) -> Outcome:
    messages, tools = CONVERSATIONS[name], SCHEMAS if name == "calls" else ()
    try:
        made = sequences(chat, messages, tools)
    except PromptError as error:
        return Outcome(refused=str(error))
    ends = []
    for tokens, mask in made:
        ends += [(tokens[: at + 1], mask) for at in range(len(mask)) if mask[at] and not any(mask[at + 1 : at + 2])]
    for (tokens, _), whole in zip(ends, rendered(chat, tokenizer, messages, tools), strict=True):
        there = chat.encode(whole)
        rest = chat.decode(there[len(tokens) :])
        if tokens == there[: len(tokens)] and not chat._controls.sub("", rest).strip():
            continue
        if tokens[:-1] == there:
            return Outcome(len(made), "the end of a turn is added")
        return Outcome(len(made), f"{chat.decode(tokens)[-60:]!r} is trained, {whole[-60:]!r} rendered")
    return Outcome(len(made))


class Family(NamedTuple):
    name: str
    outcomes: dict[str, Outcome]
    template: str
    """The layout of calls with ``prompt = "template"``, or why it is refused."""
    with_tools: Outcome | None


def families() -> Iterator[Family]:
    for path in sorted(FOLDER.glob("*.jinja")):
        if path.stem.endswith("_training") or path.stem in PICTURES:
            continue
        tokenizer = tokenizer_of(path.read_text("utf-8"))
        chat = ChatFormat(tokenizer)
        outcomes = {name: outcome(chat, tokenizer, name) for name in CONVERSATIONS}
        try:
            own = made_format(ChatFormat, tokenizer, builders.environments("template"), {"arithmetic": SCHEMAS})
            yield Family(path.stem, outcomes, type(own).__name__, outcome(own, tokenizer, "calls"))
        except PromptError as error:
            yield Family(path.stem, outcomes, str(error), None)


def counts(found: list[Family]) -> Counter[str]:
    """Families that are exact wherever they are not refused, those refused altogether, and those trained wrongly."""
    count: Counter[str] = Counter(families_exact=0, families_refused=0, families_wrong=0)
    for family in found:
        each = [*family.outcomes.values(), *([family.with_tools] if family.with_tools else [])]
        wrong = any(one.difference and one.difference != "the end of a turn is added" for one in each)
        count["families_wrong" if wrong and family.name not in BEGUN else "families_exact"] += 1
    return count


BEGUN = {"deepseek_r1_distill", "deepseekv3"}
"""Their prompt for a turn begins a thought, and they leave thoughts out of every turn."""


def page(found: list[Family]) -> str:
    head, _, _ = (ROOT / "docs/families.md").read_text("utf-8").partition("| family |")
    lines = [
        "| family | supervised training | thoughts | `rstar2` and `plain` with tools | `template` |",
        "|---|---|---|---|---|",
    ]
    for family in found:
        plain, thoughts, calls = (family.outcomes[name] for name in ("plain", "thoughts", "calls"))
        exact = "exact" if not plain.difference else f"exact; {plain.difference}"
        if family.name in BEGUN:
            kept = "trained after the prompt that begins them; left out of earlier turns"
        elif thoughts.refused:
            kept = "refused beside the content"
        else:
            kept = "kept" if thoughts.sequences == 1 else "left out of earlier turns"
        tools = short(calls.refused) or "exact"
        own = (
            f"refused: {short(family.template)}"
            if family.with_tools is None
            else short(family.with_tools.refused) or "exact"
        )
        lines.append(f"| {family.name} | {exact} | {kept} | {tools} | {own} |")
    return head + "\n".join(lines) + "\n"


def short(reason: str) -> str:
    """A reason without what the template wrote."""
    for known, said in (
        ("does not list tools", "lists no tools"),
        ("must alternate", "takes no role `tool`"),
        ("cannot render a tool call and its result", "cannot render calls and results"),
        ("in a control token", "ends a call in no token"),
        ("not in a control token", "ends a call in no token"),
        ("writes a tool call as", "another layout of calls"),
        ("single tool-calls", "one call in a turn"),
        ("System role not supported", "refused: takes no system message"),
    ):
        if known in reason:
            return said
    return reason


if __name__ == "__main__":
    made = list(families())
    sys.stdout.write(page(made))
    sys.stderr.writelines(f"{name} {count}\n" for name, count in counts(made).items())
