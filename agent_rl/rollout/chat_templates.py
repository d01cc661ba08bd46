"""The chat template a model is spoken to with: its own, a file of the user's, or one of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent_rl.config.topology import Topology

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
"""For tokenizers that know ``<|im_start|>`` and ``<|im_end|>``. It repeats what was said as it was said, where many models' own
leave out earlier turns' reasoning: the conversation so far is always a prefix of what it becomes."""

OURS = {"chatml": CHATML}
"""Templates by the names that ``chat_template`` of a topology's ``[model]`` may have; anything else there is a file."""


def template_file(topology: Topology, base: Path) -> Path | None:
    """The file that the topology names as template; None when it names none, or one of ours."""
    name = topology.model.chat_template
    return None if name is None or name in OURS else base / name


def load_tokenizer(directory: Path, topology: Topology, base: Path) -> Any:
    """The model's transformers tokenizer, with the template that the topology names.

    ``base`` is where the topology file is. Raises OSError and UnicodeDecodeError when a template file cannot be read.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)
    file = template_file(topology, base)
    if file is not None:
        tokenizer.chat_template = file.read_text(encoding="utf-8")
    elif topology.model.chat_template is not None:
        tokenizer.chat_template = OURS[topology.model.chat_template]
    return tokenizer
