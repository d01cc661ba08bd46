"""What a harness says itself about a request."""

from __future__ import annotations

from typing import Any

import pytest

from agent_rl.gateway.base import RequestError
from agent_rl.gateway.evidence import evidence_of


@pytest.mark.parametrize(
    ("headers", "meta", "cause"),
    [
        ({"x-openai-subagent": "collab_spawn"}, None, "sub_agent"),
        ({"x-openai-subagent": "compact"}, None, "compaction"),
        ({"x-openai-subagent": "memory_consolidation"}, None, "side_call"),
        ({"x-codex-turn-metadata": '{"turn_id": "7", "request_kind": "compaction"}'}, None, "compaction"),
        ({"x-codex-turn-metadata": "no object"}, None, None),
        ({"x-codex-turn-metadata": "[" * 5000}, None, None),
        ({}, {"agent_rl": {"branch": "sub-agent"}}, "sub_agent"),
        ({}, {"hermes": {"sessionProvenance": {"reason": "compression"}}}, "compaction"),
        ({}, {"other": {"reason": "the user asked", "n": 1}}, None),
        ({}, {}, None),
    ],
)
def test_evidence_of_a_branch(headers: dict[str, str], meta: Any, cause: str | None) -> None:
    body = {"model": "m", "_meta": meta}
    assert evidence_of(headers, body) == cause
    assert body == {"model": "m"}


def test_meta_that_is_no_object_is_refused() -> None:
    with pytest.raises(RequestError, match="_meta must be an object"):
        evidence_of({}, {"_meta": ["sub_agent"]})
