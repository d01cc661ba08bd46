"""The chat template of a model: its own, a file that the topology names, or one of ours."""

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

    tokenizer = AutoTokenizer.from_pretrained(directory)
    file = template_file(topology, base)
    if file is not None:
        tokenizer.chat_template = file.read_text(encoding="utf-8")
    elif topology.model.chat_template is not None:
        tokenizer.chat_template = OURS[topology.model.chat_template]
    return tokenizer
