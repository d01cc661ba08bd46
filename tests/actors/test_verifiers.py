"""Tasks and rewards of verifiers itself, in an interpreter of its own, behind a real executor's servers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from actors.tool_executor.mcp_servers import McpServers
from agent_rl.config.plugins import ContractError
from agent_rl.config.topology import McpServer
from agent_rl.environments.base import TaskError
from agent_rl.messages import Transcript
from examples.adapters.verifiers_tasks import Verifiers
from tests.actors.test_mcp_servers import serving

VERIFIERS = Path(__file__).parents[2] / ".venv-verifiers"
ADAPTERS = Path(__file__).parents[2] / "examples/adapters"
TASKSETS = str(Path(__file__).parents[1] / "servers")
pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(
        not (VERIFIERS / "installed").is_file(), reason="verifiers is not here: make .venv-verifiers/installed"
    ),
]


def server(*arguments: str) -> McpServer:
    command = (str(VERIFIERS / "bin/python"), f"{ADAPTERS}/verifiers_server.py", "sums-taskset", *arguments)
    return McpServer(command=command, environment={"PYTHONPATH": TASKSETS}, seconds=60)


class Context:
    """What `judge` needs of one."""

    def __init__(self, servers: McpServers) -> None:
        self.servers = servers

    async def ask_server(self, server, tool, arguments):
        with trio.fail_after(120):
            return await self.servers.call("arithmetic", server, tool, arguments, rollout="r", again=False)


async def listed(folder: Path, settings: McpServer, main=None):
    async with serving(folder, verifiers=settings) as servers:
        assert list((await servers.listings()).values()) == [[]]
        return await main(Context(servers)) if main else None


@pytest.mark.slow
async def test_the_tasks_of_a_taskset_are_problems_and_its_rewards_judge(tmp_path):
    async def main(context: Context):
        made = Verifiers(seed=0, base=tmp_path, held_out=2, success_at=2.0)
        problem = made.problems().evaluation(0)
        assert (problem.text, made.problems().evaluation_count) == ("What is 8 + 2?", 2)
        prompt = [{"role": "system", "content": "Add."}, {"role": "user", "content": problem.text}]
        assert made.prompt(problem) == prompt
        right = await made.judge(problem, Transcript(("10",)), context)
        assert (right.reward, right.success, right.parts) == (2.0, True, {"turns": 1.0, "right": 2.0})
        wrong = await made.judge(problem, Transcript(("11",)), context)
        assert (wrong.reward, wrong.success) == (0.0, False)
        with pytest.raises(RuntimeError, match=r"verifiers gave no score: .*no score"):
            await made.judge(problem, Transcript(("raise",)), context)
        other = Verifiers(seed=0, base=tmp_path, server="other")
        with pytest.raises(ContractError, match=r"no MCP server 'other'; write it as \[environments.mcp.other\]"):
            await other.judge(problem, Transcript(("10",)), context)

    await listed(tmp_path, server("tasks.jsonl", "10"), main)
    assert len((tmp_path / "tasks.jsonl").read_text().splitlines()) == 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["micro.toml", "tasks.jsonl"]

    async def changed(context: Context):
        made = Verifiers(seed=0, base=tmp_path)
        problem = made.problems().problem(0, 0)
        with pytest.raises(RuntimeError, match=r"is not that of the file; remove the file, and run agent-rl mcp"):
            await made.judge(problem, Transcript(("10",)), context)

    await listed(tmp_path, server("tasks.jsonl", "10", json.dumps({"start": 1})), changed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hard", "fault"),
    [
        ("prompt", "has no prompt that is one text"),
        ("setup", "needs a runtime"),
        ("reward", "has the reward files, which needs a runtime"),
    ],
)
async def test_a_taskset_that_the_adapter_cannot_run_is_refused(tmp_path, hard, fault):
    with pytest.raises(ExceptionGroup) as caught:
        await listed(tmp_path, server("tasks.jsonl", "10", json.dumps({"hard": hard})))
    (error,) = caught.value.exceptions
    assert isinstance(error, TaskError)
    assert f"task 0 of sums-taskset {fault}; this adapter runs tasks with a text as prompt, alone" in str(error)
    assert not (tmp_path / "tasks.jsonl").exists()


def test_a_missing_file_and_too_many_held_out_are_named(tmp_path):
    with pytest.raises(TaskError, match=r"there is no .*/tasks.jsonl; write it with `agent-rl mcp FILE`"):
        Verifiers(seed=0, base=tmp_path)
    row = {"index": 0, "key": "k", "prompt": "?", "system": None}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(row))
    with pytest.raises(TaskError, match=r"tasks.jsonl has 1 tasks, and held_out is 1; hold fewer"):
        Verifiers(seed=0, base=tmp_path, held_out=1)
    (tmp_path / "tasks.jsonl").write_text("{}")
    with pytest.raises(TaskError, match=r"tasks.jsonl:1: no task; remove the file, and run `agent-rl mcp FILE`"):
        Verifiers(seed=0, base=tmp_path)
