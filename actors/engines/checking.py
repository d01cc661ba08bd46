"""Checks, without loading torch or vLLM, whether a generator's engine can be made with its settings."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, PositiveInt, ValidationError

from actors.base import Settings
from agent_rl.config.plugins import PluginError, find, path_of
from agent_rl.config.suggestions import suggest

VLLM = "actors.engines.vllm:VllmEngine"


class TorchEngineSettings(Settings):
    """The keys of ``engine_settings`` for `actors.engines.torch.engine.TorchEngine`."""

    kv_on_update: Literal["keep", "recompute"] = "recompute"
    """The fate of the KV cache of sequences in flight when new weights are loaded: compute it again, or keep it. With
    "keep", tokens after an update are sampled from neither version's distribution."""


class VllmEngineSettings(Settings):
    """Keys of ``engine_settings`` for `actors.engines.vllm.engine.VllmEngine`; others are vLLM's engine arguments."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False, frozen=True)

    kv_on_update: Literal["keep", "recompute"] = "recompute"
    """As for the torch engine."""
    block_size: PositiveInt = 32
    """Tokens of a block of the KV cache."""


KNOWN: Mapping[str, type[Settings]] = {
    "actors.engines.torch:TorchEngine": TorchEngineSettings,
    VLLM: VllmEngineSettings,
}
"""The settings of the built-in engines. The constructor of a user's engine checks its own at start."""


def engine_faults(
    engine: str, settings: Mapping[str, Any], *, max_rollouts: int, kv_tokens: int | None
) -> Iterator[str]:
    """The faults that prevent making the engine, each with its remedy."""
    try:
        find("engine", engine)
    except PluginError as error:
        yield f"engine: {error}"
        return
    known = KNOWN.get(path_of("engine", engine))
    if known is None:
        return
    try:
        found = known.model_validate(dict(settings))
    except ValidationError as error:
        for each in error.errors(include_url=False):
            where = ".".join(map(str, each["loc"]))
            if each["type"] == "extra_forbidden":
                yield f"engine_settings.{where} is no setting of {engine}; {suggest(where, known.model_fields)}"
            else:
                yield f"engine_settings.{where}: {each['msg']}, not {each['input']!r:.60}"
        return
    if isinstance(found, VllmEngineSettings):
        yield from _vllm_faults(found, max_rollouts, kv_tokens)


def _vllm_faults(settings: VllmEngineSettings, max_rollouts: int, kv_tokens: int | None) -> Iterator[str]:
    if find_spec("vllm") is None:
        yield f"engine: {VLLM} needs vLLM, which is not installed; pip install 'agent-rl[vllm]'"
    if kv_tokens is not None and kv_tokens < settings.block_size:
        block = settings.block_size
        yield f"kv_tokens: {kv_tokens} tokens are less than a block of {block}; raise kv_tokens or lower block_size"
    arguments = vllm_arguments()
    for name in settings.model_extra or {}:
        if arguments and name not in arguments:
            other = suggest(name, arguments)
            yield f"engine_settings.{name} is neither a setting of {VLLM} nor an engine argument of vLLM; {other}"
    own = (settings.model_extra or {}).get("max_num_seqs")
    if isinstance(own, int) and own < max_rollouts:
        yield f"engine_settings.max_num_seqs: {own} is below max_rollouts ({max_rollouts}), which sets it; leave it out"


@cache
def vllm_arguments() -> frozenset[str]:
    """The names of vLLM's engine arguments, from its source; empty when vLLM is missing or its source has changed."""
    spec = find_spec("vllm")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        try:
            tree = ast.parse((Path(place) / "engine" / "arg_utils.py").read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError):
            continue
        classes = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name in {"EngineArgs", "AsyncEngineArgs"}]
        fields = [node.target for each in classes for node in each.body if isinstance(node, ast.AnnAssign)]
        return frozenset(target.id for target in fields if isinstance(target, ast.Name))
    return frozenset()
