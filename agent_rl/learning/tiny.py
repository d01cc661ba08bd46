"""A small Qwen3 and a character tokenizer, saved in Hugging Face format.

With them the whole path of a real model (chat template, sampling, parsing, training, weights on disk) runs on a laptop
in seconds. The tokenizer has one token per printable ASCII character, and one token for each text that every episode
repeats: tags, the JSON frame of a tool call, and the words of the quickstart's problems. Fewer tokens make rollout and
training faster.
"""

from __future__ import annotations

import string
from pathlib import Path
from typing import TYPE_CHECKING

from agent_rl.environments.python_tools import PYTHON_TOOL

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    from agent_rl.config.topology import InitialiseModel

UNKNOWN, PAD, END = "<unk>", "<pad>", "<|end|>"
ROLES = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>"}

CALL_HEAD = f'{{"name": "{PYTHON_TOOL}", "arguments": {{"code": "'
CALL_TAIL = '", "input": ""}}'
"""Before and after the code of a call of Python."""

MARKUP = (
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<answer>", "</answer>", "\\boxed{"),
    *(CALL_HEAD, CALL_TAIL, "print("),
)
WORDS = (
    *("A shop", " has", " gets", " sells", " and", " more", " How many", " now?"),
    *(" boxes", " hold", " each", " in all?", " go into", " of", " are", " full?", " left", " over?", " lie loose"),
    *(" a day", " in", " days?", " after", " eggs", " nuts", " pens", " cups"),
    *("SyntaxError: ", "'(' was never closed", "invalid syntax"),
)

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'assistant' -%}"
    "{{- '<|assistant|>' -}}"
    "{%- generation -%}{{- message['content'] + '<|end|>' -}}{%- endgeneration -%}"
    "{%- else -%}"
    "{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' -}}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)
"""One token before each message and one after, so that a conversation is always a prefix of its continuation."""


def character_tokenizer(*, byte_fallback: bool = False) -> Tokenizer:
    """The character tokenizer alone, without transformers.

    Text of printable ASCII and newlines survives encoding and decoding unchanged; any other character becomes
    ``<unk>``, or with ``byte_fallback`` the tokens of its UTF-8 bytes, so that all text survives.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models

    specials = (UNKNOWN, PAD, END, *ROLES.values())
    characters = sorted({"\n", " "} | set(string.ascii_letters + string.digits + string.punctuation))
    octets = [f"<0x{byte:02X}>" for byte in range(256)] if byte_fallback else []
    vocabulary = {token: index for index, token in enumerate((*specials, *characters, *octets))}
    # BPE without merges splits a text into single characters; its decoder joins tokens without separators.
    bpe = models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN, byte_fallback=byte_fallback)
    tokenizer = Tokenizer(bpe)
    tokenizer.decoder = decoders.Fuse()
    if byte_fallback:
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in (*MARKUP, *WORDS)])
    return tokenizer


def build_tokenizer(max_length: int = 256, *, byte_fallback: bool = False) -> PreTrainedTokenizerFast:
    """`character_tokenizer` with its chat template. The end-of-turn token is also the end-of-sequence token.

    ``max_length`` is in tokens.
    """
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(
        tokenizer_object=character_tokenizer(byte_fallback=byte_fallback),
        unk_token=UNKNOWN,
        pad_token=PAD,
        eos_token=END,
        model_max_length=max_length,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def initialise_model(spec: InitialiseModel, directory: Path, seed: int) -> None:
    """Write a freshly initialised float32 model and its tokenizer to ``directory``, loadable with ``from_pretrained``.

    The weights are a function of ``spec`` and ``seed``; the random state of torch does not change. The standard
    deviation is 1/sqrt(hidden size): with 0.02, which suits wide models, a narrow model takes several times as many
    supervised steps until it copies operands.
    """
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    tokenizer = build_tokenizer(spec.max_length, byte_fallback=spec.byte_fallback)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=spec.hidden_size,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        intermediate_size=spec.mlp_size,
        max_position_embeddings=spec.max_length,
        tie_word_embeddings=spec.tie_embeddings,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        initializer_range=spec.hidden_size**-0.5,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True, temperature=1.0
    )
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
