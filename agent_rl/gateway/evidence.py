"""What a harness says itself about a request: that it is a sub-agent's, a compaction, or beside the task.

Coding agents name it in headers (Codex) or in ``_meta``, the object that the Agent Client Protocol lets every message
carry. Without any, the rollout looks at what was said.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agent_rl.gateway.base import RequestError
from agent_rl.messages import BranchCause

META = "_meta"
SUB_AGENT, TURN = "x-openai-subagent", "x-codex-turn-metadata"
_SAID: Mapping[str, BranchCause] = {
    "compact": "compaction",
    "compaction": "compaction",
    "compression": "compaction",
    "memory_consolidation": "side_call",
    "title": "side_call",
    "side_call": "side_call",
}
_SUB_AGENTS = {"review", "collab_spawn", "sub_agent", "subagent"}
_KEYS = ("branch", "request_kind", "kind", "reason")


def evidence_of(headers: Mapping[str, str], body: dict[str, Any]) -> BranchCause | None:
    """Why a request begins a branch, where it says so; ``_meta`` is taken out of the body. Raises RequestError."""
    meta = body.pop(META, None)
    if meta is not None and not isinstance(meta, Mapping):
        raise RequestError(f"{META} must be an object", META)
    told = [headers.get(SUB_AGENT, "")]
    for given in (_object(headers.get(TURN, "")), *_spaces(meta or {})):
        told += [value for key in _KEYS if isinstance(value := given.get(key), str)]
    for word in (each.lower().replace("-", "_") for each in told):
        if word in _SUB_AGENTS:
            return "sub_agent"
        if word in _SAID:
            return _SAID[word]
    return None


def _spaces(meta: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Programs put what they say into an object of their own name, or one below it."""
    below = [each for each in meta.values() if isinstance(each, Mapping)]
    return [meta, *below, *(each for space in below for each in space.values() if isinstance(each, Mapping))]


def _object(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, Mapping) else {}
