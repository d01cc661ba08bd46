"""Chat templates with tools in the layouts of public model families, written for the tests, and their tokenizers."""

from __future__ import annotations

from typing import Any

import numpy as np

from agent_rl.learning.tiny import build_tokenizer
from agent_rl.rollout.prompts import ChatFormat
from agent_rl.rollout.template import made_format
from agent_rl_contract import builders

HERMES = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- 'Signatures:\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' + message.content }}
        {%- for call in message.tool_calls or [] %}
            {%- if not loop.first or message.content %}{{- '\\n' }}{%- endif %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
THINKING = HERMES.replace(
    "{{- '<|im_start|>assistant\\n' }}{%- endif %}", "{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"
)
"""With a prefill that earlier turns keep."""
FORGETTING = THINKING.replace(
    "'<|im_start|>assistant\\n' + message.content", "'<|im_start|>assistant\\n' + message.content.split('</think>')[-1]"
)
"""With a prefill, and without the reasoning of earlier turns."""

LLAMA = """\
{{- '<|begin_of_text|><|start_header_id|>system<|end_header_id|>\\n\\n' }}
{%- if tools %}{{- 'Environment: ipython\\n' }}{%- endif %}
{%- if messages[0].role == 'system' %}{{- messages[0].content }}{%- endif %}
{{- '<|eot_id|>' }}
{%- for message in messages if message.role != 'system' %}
    {%- if message.role == 'tool' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + (message.content | tojson) + '<|eot_id|>' }}
    {%- elif message.tool_calls %}
        {%- if message.tool_calls | length != 1 %}{{- raise_exception('one call at a time') }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {{- '{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + '}<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
        {%- if tools and loop.first %}
            {%- for tool in tools %}{{- (tool | tojson(indent=4)) + '\\n\\n' }}{%- endfor %}
        {%- endif %}
        {{- message.content | trim }}{{- '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

MISTRAL = """\
{{- '<s>' }}
{%- set last = namespace(user=-1) %}
{%- for message in messages %}{%- if message.role == 'user' %}{%- set last.user = loop.index0 %}{%- endif %}{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- if tools and loop.index0 == last.user %}
            {{- '[AVAILABLE_TOOLS] ' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST] ' + message.content + '[/INST]' }}
    {%- elif message.role == 'assistant' and message.tool_calls %}
        {{- '[TOOL_CALLS] [' }}
        {%- for call in message.tool_calls %}
            {%- if call.id | length != 9 %}{{- raise_exception('ids have nine characters') }}{%- endif %}
            {{- '{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) }}
            {{- ', "id": "' + call.id + '"}' + ('' if loop.last else ', ') }}
        {%- endfor %}
        {{- ']</s>' }}
    {%- elif message.role == 'assistant' %}
        {{- ' ' + (message.content | trim) + '</s>' }}
    {%- elif message.role == 'tool' %}
        {%- if message.tool_call_id | length != 9 %}{{- raise_exception('ids have nine characters') }}{%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + (message.content | tojson) + ', "call_id": "' + message.tool_call_id }}
        {{- '"}[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}
"""
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
