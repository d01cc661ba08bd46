"""The recipes of examples/agents: agents of others, unmodified, in a real run in which a scripted engine writes."""

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from actors.cli.main import main
from actors.engines.base import Engine
from actors.rollout_generator import RolloutGenerator
from agent_rl.messages import PolicyVersion, RolloutRequest
from agent_rl.rollout.episode import Episode
from tests.actors.gateway.stand import free_port
from tests.clients.test_clients import BASH, ENVIRONMENT, FINAL
from tests.end_to_end.faulty import AnyWeights
from tests.end_to_end.processes import finish, rows, start
from tests.end_to_end.topologies import write_model

RECIPE = Path(__file__).parents[2] / "examples" / "agents" / "agents.toml"
LENGTH = 200_000
"""Tokens of a sequence. Each letter is one, and a coding agent's prompt has tens of thousands."""
WRITE = '<tool_call>{"name": "write_file", "arguments": {"%s": "%s", "content": "{answer}\\n"}}</tool_call>'
TURNS = {
    "mini-swe-agent": (
        BASH % "echo {answer} > answer; cat answer",
        BASH % "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat answer",
    ),
    "smolagents": (WRITE % ("name", "answer"), FINAL % "done"),
    "openai-agents": (WRITE % ("name", "answer"), "It is written."),
    "qwen-code": (WRITE % ("file_path", "/app/answer"), "It is written."),
    "codex": (
        '<tool_call>{"name": "exec_command", "arguments": {"cmd": "echo {answer} > answer"}}</tool_call>',
        "It is written.",
    ),
}
"""What the engine writes for each agent."""


class ScriptedAgents(RolloutGenerator):
    """Turns of no model: every second rollout of an environment gives a wrong answer."""

    def make_episode(self, request: RolloutRequest) -> Episode:
        name = request.problem.environment
        answer = request.problem.answer if request.sample % 2 else "0"
        self._turns[request.rollout] = (turn.replace("{answer}", answer) for turn in TURNS[name])
        return super().make_episode(request)

    def _make_engine(self, directory: Path, settings: Any) -> Engine:
        self._turns: dict[str, Any] = {}

        def script(_: int, request: Any) -> str:
            return next(self._turns[request.rollout.partition("+")[0]], "One turn too many.")

        return AnyWeights(directory, initial_policy=PolicyVersion(0, 0), script=script, longest=LENGTH)


def needs(agent: str) -> pytest.MarkDecorator:
    """Skips a test where an agent of npm is not installed."""
    missing = not (ENVIRONMENT / agent).is_file() or shutil.which("node") is None
    return pytest.mark.skipif(missing, reason=f"not all agents are here: make .venv-clients/{agent}")


def inline(value: Any) -> str:
    """A value of a topology as TOML in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {inline(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    return json.dumps(value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["mini-swe-agent", "smolagents", "openai-agents", "qwen-code"], marks=needs("qwen"), id="qwen"),
        pytest.param(["codex"], marks=needs("codex"), id="codex"),
    ],
)
def test_agents_of_others_write_the_rollouts_of_a_run_and_are_judged(tmp_path, names):
    environments = [each for each in tomllib.loads(RECIPE.read_text())["environments"] if each["name"] in names]
    for each in environments:
        each["harness"]["isolation"] = "strong"
    model, directory = write_model(tmp_path, max_length=LENGTH), tmp_path / "run"
    finish(
        start(
            RECIPE,
            f'run.directory="{directory}"',
            'run.keep_trajectories="all"',
            "hosts.local.gpus=0",
            f'model.path="{model}"',
            'model.dtype="float32"',
            f"algorithm.groups_per_step={len(names)}",
            "algorithm.samples=2",
            "algorithm.keep=2",
            "stages.0.steps=1",
            "stages.0.max_response_tokens=100000",
            'actors.rollout_generator.class="tests.clients.test_recipes:ScriptedAgents"',
            'actors.rollout_generator.settings={engine="torch", device="cpu", max_rollouts=4}',
            "actors.learner.class=benchmarks.chaos.actors:ScriptedLearner",
            'actors.learner.settings={device="cpu"}',
            f"actors.gateway.settings.port={free_port()}",
            f"environments={inline(environments)}",
        ),
        seconds=400,  # of which the agents take most to load; they are started one or two at a time
    )
    assert main(["audit", str(directory)]) == 0
    assert main(["export", str(directory)]) == 0
    found = rows(directory / "trajectories.jsonl")
    for name in names:
        rewards = {row["sample"] % 2: row["reward"] for row in found if row["problem"]["environment"] == name}
        assert rewards == {0: 0.0, 1: 1.0}, name
