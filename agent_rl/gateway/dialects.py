"""The dialects by the path of their requests, and the model of a run as ``GET /v1/models`` lists it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from agent_rl.gateway.anthropic import Anthropic
from agent_rl.gateway.base import Dialect
from agent_rl.gateway.chat import Chat
from agent_rl.gateway.generate import Generate
from agent_rl.gateway.responses import Responses

DIALECTS: Mapping[str, Dialect] = {
    "/v1/chat/completions": Chat(),
    "/v1/responses": Responses(),
    "/v1/messages": Anthropic(),
    "/v1/messages/count_tokens": Anthropic(counts_only=True),
    "/inference/v1/generate": Generate(),
}


def models_body(name: str, headers: Mapping[str, str], created: int = 0, context: int = 0) -> dict[str, Any]:
    """The list of the one model; in Anthropic's shape for a request with the header ``anthropic-version``.

    ``headers``: by names in lower case. ``created``: seconds since 1970. ``context``: tokens that a conversation may
    have, or 0; OpenAI's shape has it as vLLM's ``max_model_len``.
    """
    card: dict[str, Any] = {"id": name}
    if "anthropic-version" not in headers:
        card |= {"object": "model", "created": created, "owned_by": "agent-rl"}
        return {"object": "list", "data": [card | ({"max_model_len": context} if context else {})]}
    card |= {"type": "model", "display_name": name, "lifecycle": "active", "max_input_tokens": context or None}
    card["created_at"] = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"data": [card], "has_more": False, "first_id": name, "last_id": name}
