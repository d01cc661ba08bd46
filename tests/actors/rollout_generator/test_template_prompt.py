"""A generator whose prompt is the model's chat template: refused, or run with the template's tool role."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from actors.engines.base import EngineRefusedError
from agent_rl.config.topology import EnvironmentEntry
from agent_rl.messages import Sampling, Trajectory
from tests.actors.test_rollout_generator import ask, generator, model

__all__ = ["model"]  # the fixture

TEMPLATE = Path(__file__).with_name("tools.jinja")
PYTHON = "python_code_with_standard_io"
CALL = f"<tool_call>{json.dumps({'name': PYTHON, 'arguments': {'code': 'print(2+2)'}})}</tool_call>"


def maths(folder: Path) -> EnvironmentEntry:
    (folder / "problems.jsonl").write_text(json.dumps({"id": "p", "problem": "What is 2 + 2?", "answer": "4"}) + "\n")
    settings = {"files": ["problems.jsonl"], "prompt": "template"}
    return EnvironmentEntry(**{"class": "maths", "name": "arithmetic", "settings": settings})


async def test_tools_calls_and_results_are_the_templates(tmp_path: Path, model: Path) -> None:
    def script(number: int, _: Any) -> str:
        return 3 * CALL if number == 1 else "\\boxed{4}"

    shutil.copy(TEMPLATE, tmp_path)
    options: dict[str, Any] = {"tasks": maths(tmp_path), "template": "tools.jinja", "tool_calls_per_turn": 2}
    async with generator(tmp_path, model, script, **options) as (stage, actor):
        await ask(stage, sampling=Sampling(1.0, 2000, 3))
        made: Trajectory = await stage["roc_filter"].receive(Trajectory)
        body = made.unpack()
        prompt, given = map(
            actor._chat.decode, (body.prompt_tokens.tolist(), body.tokens[body.loss_mask == 0].tolist())
        )
        assert (made.status, made.turns) == ("finished", 2)
        assert prompt.startswith('<|user|>{"type": "function", "function": {"name": "python_code')
        assert prompt.endswith("<|end|><|user|>What is 2 + 2?<|end|><|assistant|>")
        assert given.count(f"<|user|>{PYTHON}: 4") == 2
        assert f"<|user|>{PYTHON}: Error: a turn may make 2 tool calls, and this turn made 3" in given
        assert "<tool_response>" not in given
        assert [call.outcome for call in made.transcript.calls] == ["success", "success", "malformed"]


async def test_a_template_without_tools_is_refused_at_the_start(tmp_path: Path, model: Path) -> None:
    said = f"the chat template of {tmp_path}.*: .* does not list tools"
    with pytest.RaisesGroup(pytest.RaisesExc(EngineRefusedError, match=said), flatten_subgroups=True):
        async with generator(tmp_path, model, str, tasks=maths(tmp_path)):
            pass
