"""Two real executors and a real generator: one of the executors is killed in the middle of its calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from actors.engines.scripted import ScriptedEngine
from actors.rollout_generator import RolloutGenerator
from actors.testing import running, stand_ins
from actors.tool_executor import ToolExecutor
from actors.weights.files import model_directory
from agent_rl.environments.arithmetic import Arithmetic
from agent_rl.environments.python_tools import notebook
from agent_rl.messages import Policy, Sampling, ToolCall, ToolResult, Trajectory
from tests import builders
from tests.actors.topologies import micro

GENERATOR = "rollout_generator.0"
ROLLOUTS = 6
ANSWER = "<answer>\\boxed{4}</answer>"


def cell(code: str) -> str:
    return f'<tool_call>{{"name": "jupyter_code", "arguments": {{"code": "{code}"}}}}</tool_call>'


def test_a_killed_executors_calls_and_sessions_go_on_at_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six sessions, spread over both; one executor dies while all six run a cell: nothing is lost, and it is said."""
    monkeypatch.setattr(Arithmetic, "tools", (notebook,))
    topology = micro(tmp_path)
    entry = topology.actors["tool_executor"].model_copy(update={"replicas": 2})
    topology = topology.model_copy(update={"actors": {**topology.actors, "tool_executor": entry}})
    model = model_directory(topology, tmp_path)
    turns = [cell("x = 40"), cell("import time; time.sleep(1.5)"), cell("print(x + 2)"), ANSWER]
    at_once: list[int] = []
    killed: dict[str, int] = {}

    class Counting(ToolExecutor):
        """Says which calls it was given, and when all rollouts are in the cell that takes long."""

        async def execute(self, call: ToolCall) -> ToolResult:
            given.setdefault(self.context.name, []).append(call)
            if "sleep" in call.arguments.get("code", ""):
                at_once.append(1)
                if len(at_once) == ROLLOUTS:
                    all_sleep.set()
            return await super().execute(call)

    class Scripted(RolloutGenerator):
        def _make_engine(self, directory: Path, settings: Any) -> Any:
            return ScriptedEngine(
                model, initial_policy=Policy(0, 0), script=lambda number, _: turns[number - 1], longest=10_000
            )

    responses: dict[str, str] = {}
    given: dict[str, list[ToolCall]] = {}
    all_sleep = trio.Event()

    async def first_lives(until: trio.Event, stage: Any, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        async with running(Counting, topology, "tool_executor", tmp_path, stage, kill=True):
            await stage.started("tool_executor.0")
            task_status.started()
            await until.wait()
            killed.update(calls=len(given["tool_executor.0"]))

    async def main() -> list[Trajectory]:
        with trio.fail_after(60):
            async with (
                stand_ins(topology, "rollout_generator", "tool_executor") as stage,
                running(Counting, topology, "tool_executor", tmp_path, stage, replica=1),
                trio.open_nursery() as nursery,
            ):
                stage["learner"].announce("policy", GENERATOR).set(builders.published(3))
                await nursery.start(first_lives, all_sleep, stage)
                async with running(Scripted, topology, "rollout_generator", tmp_path, stage) as generator:
                    push = stage["kv_scheduler"].push("requests", GENERATOR)
                    for number in range(ROLLOUTS):
                        request = builders.request(
                            rollout=f"s0-g{number:06d}/0/0", group=f"s0-g{number:06d}", sampling=Sampling(1.0, 900, 4)
                        )
                        await push.send(request)
                    made = [await stage["roc_filter"].receive(Trajectory) for _ in range(ROLLOUTS)]
                    for each in made:
                        responses[each.rollout] = generator._chat.decode(
                            each.unpack().tokens[each.unpack().loss_mask == 0].tolist()
                        )
                    return made
        raise AssertionError("the body returns")

    made = trio.run(main)
    assert {trajectory.status for trajectory in made} == {"finished"}
    assert [[call.outcome for call in trajectory.transcript.calls] for trajectory in made] == [
        ["success"] * 3
    ] * ROLLOUTS
    first, second = given["tool_executor.0"], given["tool_executor.1"]
    lost = {call.rollout for call in first}
    assert (len(lost), len(first)) == (ROLLOUTS // 2, killed["calls"])  # by outstanding work, half each
    moved = [call for call in second if call.rollout in lost]
    assert {call.state for call in moved if "sleep" in call.arguments["code"]} == {b'["x = 40"]'}
    assert len(moved) == 2 * len(lost)
    note = "[The session was lost: its 1 earlier cells were run again.]"
    assert {rollout for rollout, text in responses.items() if text.count(note) == 1} == lost
    assert all("<tool_response>42</tool_response>" in text for text in responses.values())
