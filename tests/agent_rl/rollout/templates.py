"""Tokenizers with chat templates that have tools in the layouts of public model families, written for the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from agent_rl.learning.tiny import build_tokenizer
from agent_rl.rollout.prompts import ChatFormat
from agent_rl.rollout.template import made_format
from agent_rl_contract import builders


def _of_file(name: str) -> str:
    return Path(__file__).with_name(f"{name}.jinja").read_text(encoding="utf-8")


HERMES, LLAMA, MISTRAL = map(_of_file, ("hermes", "llama", "mistral"))
THINKING = HERMES.replace(
    "{{- '<|im_start|>assistant\\n' }}{%- endif %}", "{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"
)
"""With a prefill that earlier turns keep."""
FORGETTING = THINKING.replace(
    "'<|im_start|>assistant\\n' + message.content", "'<|im_start|>assistant\\n' + message.content.split('</think>')[-1]"
)
"""With a prefill, and without the reasoning of earlier turns."""
CONTROLS = [
    *("<|im_start|>", "<|im_end|>"),
    *("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    *("<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
]


SCHEMAS = [tool.schema for tool in builders.environments()["arithmetic"].tools]


def tokenizer_with(template: str) -> Any:
    """A tokenizer with the control tokens of all layouts."""
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": CONTROLS})
    tokenizer.chat_template = template
    return tokenizer


def chat_of(template: str) -> tuple[Any, ChatFormat]:
    """Such a tokenizer, and the format in which the template itself writes prompts, calls and results."""
    tokenizer = tokenizer_with(template)
    return tokenizer, made_format(ChatFormat, tokenizer, builders.environments("template"), {"arithmetic": SCHEMAS})


def chat_with(template: str, prompt: str = "plain") -> tuple[Any, ChatFormat]:
    """A tokenizer with two of the control tokens, and the format with prompts of ours."""
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": CONTROLS[:2]})
    tokenizer.chat_template = template
    return tokenizer, ChatFormat(tokenizer, builders.environments(prompt))


def turn(chat: ChatFormat, written: str | list[int], *, version: int = 0) -> dict[str, Any]:
    """What an engine hands over for a text, or for tokens with the end of the turn."""
    tokens = [*chat.encode(written), chat.end_of_turn] if isinstance(written, str) else written
    return {
        "tokens": np.array(tokens, dtype=np.int32),
        "logprobs": np.full(len(tokens), -0.1, dtype=np.float32),
        "policies": np.tile(np.array([[1, version]], dtype=np.int32), (len(tokens), 1)),
        "stopped": True,
    }
