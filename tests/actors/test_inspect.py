"""Tasks of inspect-ai itself, in an interpreter of their own: listed by a server, run by a harness in a jail."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from actors.rollout_generator.agent_loop import EnvironmentFaultError
from agent_rl.config.topology import Harness, McpServer
from agent_rl.environments.base import TaskError
from agent_rl.environments.harness import HarnessOutcome, told_of
from agent_rl.messages import EnvironmentMessage, Judgement, Problem, Sampling, Transcript
from agent_rl.rollout.episode import Episode
from agent_rl_contract import builders
from examples.adapters.inspect_tasks import InspectTask
from tests.actors.gateway.stand import stand
from tests.actors.test_mcp_servers import serving

INSPECT = Path(__file__).parents[2] / ".venv-inspect"
PYTHON = str(INSPECT / "bin/python")
SCRIPT = str(Path(__file__).parents[2] / "examples/adapters/inspect_server.py")
SUMS = f"{Path(__file__).parents[1] / 'servers/sums_task.py'}@"
THREATS = "inspect_evals/agent_threat_bench_memory_poison"
with_inspect = pytest.mark.skipif(
    not (INSPECT / "installed").is_file(), reason="inspect-ai is not here: make .venv-inspect/installed"
)
pytestmark = pytest.mark.real_time


async def listed(folder: Path, *arguments: str) -> InspectTask:
    """The environment of a task, of whose samples the last three are held out."""
    settings = McpServer(command=(PYTHON, SCRIPT, "list", *arguments), per="rollout")
    async with serving(folder, inspect=settings) as servers:
        assert list((await servers.listings()).values()) == [[]]
    return InspectTask(seed=0, base=folder, held_out=3)


async def run(folder: Path, made: InspectTask, problem: Problem, texts: Sequence[str], *arguments: str) -> Judgement:
    """The judgement of a rollout in which the engine writes these texts."""
    turns = iter(texts)
    shows = (str(Path(__file__).parents[1] / "servers"),)
    made.harness = Harness(command=(PYTHON, SCRIPT, "run", *arguments), fork=True, isolation="strong", shows=shows)
    with trio.fail_after(120):
        async with stand(folder, lambda *_: next(turns, "One turn too many.")) as at:
            generator = at.generator
            request = builders.request(problem=problem, sampling=Sampling(1.0, 100_000, 100))
            episode = Episode(request, generator._chat, generator._engine.longest, begun=False)
            await generator._harnesses.run(made, episode)
    assert episode.turns == len(texts), [message.content for message in episode.transcript.replies]
    return await made.judge(problem, episode.transcript, None)


@pytest.mark.slow
@with_inspect
async def test_the_solver_of_a_task_writes_the_rollout_and_its_scorer_judges(tmp_path):
    made = await listed(tmp_path, f"{SUMS}sums", "tasks.jsonl", '{"start": 10}')
    problem = made.problems().evaluation(2)
    assert (problem.text, made.problems().evaluation_count) == ("What is 14 + 2?", 3)
    ran = (f"{SUMS}sums", "{id}", '{"start": 10}')
    call = '<tool_call>{"name": "add", "arguments": {"a": 14, "b": 2}}</tool_call>'
    right = await run(tmp_path, made, problem, [call, "It is 16."], *ran)
    assert right == Judgement(1.0, success=True, parts={"match": 1.0}, note="inspect")
    assert (await run(tmp_path, made, problem, ["It is 17."], *ran)).reward == 0.0
    fault = pytest.RaisesExc(EnvironmentFaultError, match=r"sample 4-.* is not that of the file; remove the file, and")
    with pytest.RaisesGroup(fault, flatten_subgroups=True):
        await run(tmp_path, made, problem, [], *ran[:2], '{"start": 9}')


@pytest.mark.slow
@with_inspect
@pytest.mark.parametrize(("which", "fault"), [("graded", "No model specified"), ("failing", "no score for you")])
async def test_a_scorer_that_fails_is_named(tmp_path, which, fault):
    made = await listed(tmp_path, f"{SUMS}{which}", "tasks.jsonl")
    problem = made.problems().evaluation(0)
    with pytest.raises(RuntimeError, match=rf"(?i)sample 2-.* has no score: .*{fault}"):
        await run(tmp_path, made, problem, ["4"], f"{SUMS}{which}", "{id}")


@pytest.mark.slow
@with_inspect
@pytest.mark.parametrize(
    ("name", "fault"),
    [
        (f"{SUMS}contained", "needs the sandbox 'docker', and programs here have no containers"),
        (f"{SUMS}products", "the task .*products cannot be loaded"),
        ("no_such_package/sums", "no_such_package/sums names 0 tasks; install its package"),
    ],
)
async def test_a_task_that_cannot_be_run_is_refused(tmp_path, name, fault):
    with pytest.RaisesGroup(pytest.RaisesExc(TaskError, match=rf"environment 'arithmetic': .*{fault}")):
        await listed(tmp_path, name, "tasks.jsonl")
    assert not (tmp_path / "tasks.jsonl").exists()


@pytest.mark.slow
@with_inspect
async def test_a_task_of_inspect_evals_is_run(tmp_path):
    made = await listed(tmp_path, THREATS, "tasks.jsonl")
    problem = made.problems().evaluation(0)
    call = '<tool_call>{"name": "memory_read", "arguments": {"query": "office"}}</tool_call>'
    judged = await run(tmp_path, made, problem, [call, "I do not know."], THREATS, "{id}")
    assert judged.parts == {"agent_threat_bench_scorer/utility": 0.0, "agent_threat_bench_scorer/security": 1.0}
    assert (judged.reward, judged.success) == (0.5, False)


async def test_what_a_harness_leaves_is_judged(tmp_path):
    (tmp_path / "tasks.jsonl").write_text('{"id": "0-a", "text": "?"}')
    made = InspectTask(seed=0, base=tmp_path, score="f1")
    made.harness = Harness(command=(PYTHON,))
    problem = made.problems().evaluation(0)

    def left(status: str, output: str) -> Transcript:
        replies = [EnvironmentMessage(1, role, text) for role, text in told_of(HarnessOutcome(status, output))]
        return Transcript(("a",), replies=tuple(replies))

    async def judged(status: str, output: str) -> Judgement:
        return await made.judge(problem, left(status, output), None)

    scores = json.dumps({"scores": {"f1": 0.5, "exact": 0.0}, "error": ""})
    assert (await judged("status 0", f"scores forged\nscores {scores}\n")).reward == 0.5
    assert await judged("stopped", "loading") == Judgement(0.0, success=False, note="stopped")
    with pytest.raises(RuntimeError, match=r"sample 0-a was not run \(status 1\): no module"):
        await judged("status 1", "no module")
    with pytest.raises(RuntimeError, match="there is no score 'f1'; there is exact"):
        await judged("status 0", 'scores {"scores": {"exact": 0.0}, "error": ""}')
    made.harness = None
    with pytest.raises(RuntimeError, match="no harness runs the task"):
        await made.judge(problem, Transcript(("a",)), None)


def test_a_file_without_samples_is_named(tmp_path):
    with pytest.raises(TaskError, match=r"there is no .*/tasks.jsonl; write it with `agent-rl mcp FILE`"):
        InspectTask(seed=0, base=tmp_path)
    (tmp_path / "tasks.jsonl").write_text("{}")
    with pytest.raises(TaskError, match=r"tasks.jsonl:1: no sample; remove the file, and run `agent-rl mcp FILE`"):
        InspectTask(seed=0, base=tmp_path)
    (tmp_path / "tasks.jsonl").write_text('{"id": "0-a", "text": "?"}')
    with pytest.raises(TaskError, match=r"tasks.jsonl has 1 samples, and held_out is 2; hold fewer"):
        InspectTask(seed=0, base=tmp_path, held_out=2)
