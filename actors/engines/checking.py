"""Whether a generator's engine can be made with its settings, told without loading torch or vLLM."""

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
    """What ``engine_settings`` may say to `actors.engines.torch.engine.TorchEngine`."""

    kv_on_update: Literal["keep", "recompute"] = "keep"
    """Whether sequences in flight keep the KV cache of the old weights when new ones are loaded, or compute it again."""


class VllmEngineSettings(Settings):
    """What `actors.engines.vllm.engine.VllmEngine` takes itself; all else goes to vLLM's engine arguments."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False, frozen=True)

    kv_on_update: Literal["keep", "recompute"] = "recompute"
    """As of the embedded engine; vLLM recomputes unless told otherwise."""
    block_size: PositiveInt = 32
    """Tokens of a block of vLLM's KV cache."""


KNOWN: Mapping[str, type[Settings]] = {
    "actors.engines.torch:TorchEngine": TorchEngineSettings,
    VLLM: VllmEngineSettings,
}
"""The settings of our engines; of one of the user's own, its constructor says at start what it does not take."""


def engine_faults(
    engine: str, settings: Mapping[str, Any], *, max_rollouts: int, kv_tokens: int | None
) -> Iterator[str]:
    """What keeps the engine from being made, each with its remedy."""
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
        yield f"kv_tokens: {kv_tokens} tokens are less than one block of {settings.block_size}; give it more, or lower block_size"
    arguments = vllm_arguments()
    for name in settings.model_extra or {}:
        if arguments and name not in arguments:
            yield f"engine_settings.{name} is neither a setting of {VLLM} nor an engine argument of vLLM; {suggest(name, arguments)}"
    own = (settings.model_extra or {}).get("max_num_seqs")
    if isinstance(own, int) and own < max_rollouts:
        yield f"engine_settings.max_num_seqs: {own} is less than max_rollouts ({max_rollouts}); leave it out, since max_rollouts sets it"


@cache
def vllm_arguments() -> frozenset[str]:
    """The names of vLLM's engine arguments, read from its source; empty when it is not installed or written in another way."""
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
