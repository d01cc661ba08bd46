"""Which architectures engine and learner compute: by the configuration, before anything is loaded.

`tests/agent_rl/learning/test_architectures.py` compares a tiny model of each type in ``EXACT``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EXACT = frozenset(
    {"apertus", "arcee", "aria_text", "bitnet", "cohere", "cohere2", "dots1", "ernie4_5", "ernie4_5_moe", "exaone4"}
    | {"gemma", "gemma3_text", "glm", "glm4", "glm4_moe", "gpt2", "gpt_neox", "granite", "granitemoe", "helium"}
    | {"hunyuan_v1_dense", "llama", "minimax_m2", "mistral", "mixtral", "olmo", "olmo2", "olmo3", "olmoe", "opt"}
    | {"persimmon", "phi", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "smollm3"}
    | {"starcoder2"}
)
"""Types of models whose log-probabilities are transformers' own, in packed rows, in trees and in turns."""
OTHERS = {
    "gpt_oss": "has attention sinks",
    **dict.fromkeys(("gemma3n_text", "gemma4_text"), "has layers that share keys and values"),
    **dict.fromkeys(("nemotron", "stablelm", "falcon", "gptj", "mpt", "bloom"), "has attention of its own kind"),
}
"""Types that were compared and differ, or cannot be computed, and why."""
LAYERS = frozenset({"full_attention", "sliding_attention"})
CAPS = ("final_logit_softcapping", "attn_logit_softcapping")


def fault(config: Mapping[str, Any]) -> str:
    """Why the learner cannot train a model with this configuration (of its text part); empty where nothing says so."""
    kinds = sorted({str(kind) for kind in config.get("layer_types") or ()} - LAYERS)
    if kinds:
        return f"has layers of the kinds {', '.join(kinds)}; sequences can only be packed for attention"
    if capped := [name for name in CAPS if config.get(name)]:
        return f"caps its logits ({capped[0]}), which the learner does not"
    return OTHERS.get(str(config.get("model_type")), "")


def torch_fault(config: Mapping[str, Any]) -> str:
    """Why the torch engine cannot serve such a model, which vLLM may serve; empty where nothing says so."""
    return "compresses keys and values" if config.get("kv_lora_rank") else ""


def window(config: Mapping[str, Any]) -> int | None:
    """How many tokens its layers attend to, where that is bounded: longer sequences are computed by no engine here."""
    size, kinds = config.get("sliding_window"), config.get("layer_types")
    slides = not isinstance(kinds, list) or "sliding_attention" in kinds
    used = config.get("use_sliding_window") is not False and slides
    return size if used and isinstance(size, int) and size > 0 else None


def logit_scale(config: Mapping[str, Any]) -> float:
    """The factor of logits: Cohere's ``logit_scale``, or one by Granite's ``logits_scaling``."""
    return float(config.get("logit_scale") or 1.0) / float(config.get("logits_scaling") or 1.0)
