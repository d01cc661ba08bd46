"""Tasks of verifiers, OpenEnv and inspect-ai themselves, each in an interpreter of its own: listed by a server, played
and judged behind a real executor's servers, or run by a harness in a jail.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from actors.rollout_generator.agent_loop import EnvironmentFaultError
from actors.tool_executor.mcp_servers import McpServers
from agent_rl.config.plugins import ContractError
from agent_rl.config.topology import Harness, McpServer
from agent_rl.environments.base import TaskError, ToolOutput
from agent_rl.environments.harness import HarnessOutcome, told_of
from agent_rl.messages import EnvironmentMessage, Judgement, Problem, Sampling, ToolCallRecord, Transcript
from agent_rl.rollout.episode import Episode
from agent_rl_contract import builders
from examples.adapters.inspect_tasks import InspectTask
from examples.adapters.openenv_tasks import OpenEnv
from examples.adapters.verifiers_tasks import Verifiers
from tests.actors.gateway.stand import stand
from tests.actors.sandbox.running import eventually, is_alive
from tests.actors.test_mcp_servers import serving

ROOT = Path(__file__).parents[2]
SERVERS = Path(__file__).parents[1] / "servers"
SUMS = f"{SERVERS / 'sums_task.py'}@"
TASKSET = ("sums-taskset", "tasks.jsonl", "10")
pytestmark = pytest.mark.real_time


def here(package: str) -> pytest.MarkDecorator:
    """The test needs verifiers, openenv or inspect."""
    missing = not (ROOT / f".venv-{package}/installed").is_file()
    return pytest.mark.skipif(missing, reason=f"{package} is not here: make .venv-{package}/installed")


def program(package: str, *arguments: str) -> tuple[str, ...]:
    """The adapter's server, in the interpreter that has the package."""
    return (str(ROOT / f".venv-{package}/bin/python"), f"{ROOT}/examples/adapters/{package}_server.py", *arguments)


def server(package: str, *arguments: str) -> McpServer:
    return McpServer(command=program(package, *arguments), environment={"PYTHONPATH": str(SERVERS)}, seconds=60)


class Context:
    """What an environment needs of one."""

    def __init__(self, servers: McpServers, problem: Problem | None = None, rollout: str = "r", seconds: float = 120):
        self.servers, self.rollout, self.problem, self.seconds = servers, rollout, problem, seconds

    async def ask_server(self, server, tool, arguments):
        with trio.fail_after(self.seconds):
            return await self.servers.call("arithmetic", server, tool, arguments, rollout=self.rollout, again=False)


async def nothing(_: McpServers) -> None:
    """Only the file of tasks is written."""


async def served(
    folder: Path, name: str, settings: McpServer, main: Callable[[McpServers], Awaitable[None]] = nothing
) -> None:
    """Have the server write the file of tasks, and play with it."""
    async with serving(folder, **{name: settings}) as servers:
        assert list((await servers.listings()).values()) == [[]]
        await main(servers)


@pytest.mark.parametrize(
    ("environment", "bad", "said", "good", "most"),
    [
        (InspectTask, "{}", "no sample", '{"id": "0-a", "text": "?"}', "1 samples, and held_out is 2"),
        (OpenEnv, '{"seed": 0}', "no tasks", '{"action": {}, "tools": []}\n{"seed": 0, "text": "a"}', "1 tasks, and held_out is 1"),
        (Verifiers, "{}", "no task", '{"index": 0, "key": "k", "prompt": "?", "system": null}', "1 tasks, and held_out is 1"),
    ],
)  # fmt: skip
def test_a_file_without_tasks_is_named(tmp_path, environment, bad, said, good, most):
    with pytest.raises(TaskError, match=r"there is no .*/tasks.jsonl; write it with `agent-rl mcp FILE`"):
        environment(seed=0, base=tmp_path)
    (tmp_path / "tasks.jsonl").write_text(bad)
    with pytest.raises(TaskError, match=rf"tasks.jsonl:1: {said}; remove the file, and run `agent-rl mcp FILE`"):
        environment(seed=0, base=tmp_path)
    (tmp_path / "tasks.jsonl").write_text(good)
    with pytest.raises(TaskError, match=rf"tasks.jsonl has {most}; hold fewer"):
        environment(seed=0, base=tmp_path, held_out=int(most[-1]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "given", "fault"),
    [
        pytest.param(package, given, fault, marks=here(package))
        for package, given, fault in (
            ("openenv", ("no_such_environment:app", "tasks.jsonl", "2"), "No module named 'no_such_environment'; install the environment of"),
            ("openenv", ("http://127.0.0.1:9", "tasks.jsonl", "2"), "http://127.0.0.1:9 is no server of OpenEnv: .*refused"),
            ("inspect", ("list", f"{SUMS}contained", "tasks.jsonl"), "needs the sandbox 'docker', and programs here have no containers"),
            ("inspect", ("list", f"{SUMS}products", "tasks.jsonl"), "the task .*products cannot be loaded"),
            ("inspect", ("list", "no_such_package/sums", "tasks.jsonl"), "no_such_package/sums names 0 tasks; install its package"),
            ("verifiers", (*TASKSET, '{"hard": "prompt"}'), "task 0 of sums-taskset has no prompt that is one text; this adapter runs tasks with a text as prompt, alone"),
            ("verifiers", (*TASKSET, '{"hard": "setup"}'), "task 0 of sums-taskset needs a runtime; this adapter"),
            ("verifiers", (*TASKSET, '{"hard": "reward"}'), "task 0 of sums-taskset has the reward files, which needs a runtime; this adapter"),
        )
    ],
)  # fmt: skip
async def test_tasks_that_an_adapter_cannot_run_are_refused(tmp_path, package, given, fault):
    said = pytest.RaisesExc(TaskError, match=rf"(?s)environment 'arithmetic': the MCP server {package!r}.*{fault}")
    with pytest.RaisesGroup(said):
        await served(tmp_path, package, server(package, *given))
    assert not (tmp_path / "tasks.jsonl").exists()


@pytest.mark.parametrize(
    ("script", "given", "said"),
    [
        ("verifiers", ("a-taskset", "t.jsonl"), "'verifiers'; install verifiers 0.4 and the taskset for "),
        ("openenv", ("json:app", "t.jsonl"), "'uvicorn'; install the environment of json:app for "),
        ("inspect", ("list", "a/task", "t.jsonl"), "'inspect_ai'; install inspect-ai for "),
    ],
)
async def test_the_package_of_an_adapter_that_is_missing_is_named(tmp_path, script, given, said):
    command = (sys.executable, "-S", f"{ROOT}/examples/adapters/{script}_server.py", *given)
    async with serving(tmp_path, s=McpServer(command=command)) as servers:
        with pytest.raises(TaskError) as caught:
            await servers.listings()
    assert str(caught.value).startswith("environment 'arithmetic': the MCP server 's' (")
    assert f"wrote: No module named {said}{sys.executable}" in str(caught.value)
    assert "Traceback" not in str(caught.value)


# verifiers ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@here("verifiers")
async def test_the_tasks_of_a_taskset_are_problems_and_its_rewards_judge(tmp_path):
    async def main(servers: McpServers):
        context = Context(servers)
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

    await served(tmp_path, "verifiers", server("verifiers", *TASKSET), main)
    assert len((tmp_path / "tasks.jsonl").read_text().splitlines()) == 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["micro.toml", "tasks.jsonl"]

    async def changed(servers: McpServers):
        made = Verifiers(seed=0, base=tmp_path)
        problem = made.problems().problem(0, 0)
        with pytest.raises(RuntimeError, match=r"is not that of the file; remove the file, and run agent-rl mcp"):
            await made.judge(problem, Transcript(("10",)), Context(servers))

    await served(tmp_path, "verifiers", server("verifiers", *TASKSET, '{"start": 1}'), changed)


# OpenEnv ---------------------------------------------------------------------------------------------------------------


async def played(made: OpenEnv, context: Context, texts: Sequence[str]) -> Transcript:
    """The transcript of a rollout with these turns."""
    transcript = Transcript(())
    for turn, text in enumerate(texts, start=1):
        transcript = Transcript((*transcript.texts, text), replies=transcript.replies)
        answer = await made.observe(context.problem, transcript, b"", context)
        said = tuple(EnvironmentMessage(turn, each["role"], each["content"]) for each in answer.messages)
        transcript = Transcript(transcript.texts, replies=(*transcript.replies, *said))
        if answer.done:
            break
    return transcript


def working_in(folder: Path) -> list[int]:
    """The processes whose working directory is a folder."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):
            found += [int(each.parent.name)] * (each.readlink() == folder)
    return found


def read(transcript: Transcript) -> list[str]:
    return [reply.content for reply in transcript.replies]


@pytest.mark.slow
@here("openenv")
async def test_texts_are_steps_and_their_rewards_judge(tmp_path):
    async def main(servers: McpServers):
        made = OpenEnv(seed=0, base=tmp_path, held_out=1)
        assert (made.observes, made.tools) == (True, ())
        problem = made.problems().evaluation(0)
        assert made.prompt(problem) == [{"role": "user", "content": "Say 13."}]
        context = Context(servers, problem, "r1")
        transcript = await played(made, context, ["12", "raise", "13", "14"])
        assert read(transcript)[0::2] == ["Wrong.", "Right.\nThe episode has ended."]
        assert "no number" in read(transcript)[1]
        one = await made.judge(problem, transcript, context)
        assert (one.reward, one.success, one.parts) == (0.75, False, {"steps": 3.0, "done": 1.0})
        again = await made.judge(problem, transcript, Context(servers, problem, "r2"))  # all is played again
        last = OpenEnv(seed=0, base=tmp_path, reward="last")
        assert again == one
        assert (await last.judge(problem, transcript, context)).reward == 1.0
        assert (await made.judge(problem, Transcript(("13",)), context)).reward == 0.0  # nobody answered that turn

    await served(
        tmp_path, "openenv", server("openenv", "tallies:app", "tasks.jsonl", "4", json.dumps({"plus": 10})), main
    )
    assert len((tmp_path / "tasks.jsonl").read_text().splitlines()) == 5


@pytest.mark.slow
@here("openenv")
async def test_calls_of_tools_are_steps(tmp_path):
    async def main(servers: McpServers):
        with pytest.raises(TaskError, match="shows nothing at the beginning; write an instruction"):
            OpenEnv(seed=0, base=tmp_path)
        made = OpenEnv(seed=0, base=tmp_path, instruction="Count to 7.")
        (add,) = made.tools
        assert (add.name, made.observes, add.schema["function"]["description"]) == ("add", False, "Add to the count.")
        problem = made._tasks._parts[0][3]
        calls: list[ToolCallRecord] = []

        async def call(number: int, context: Context) -> ToolOutput:
            output = await add.call({"number": number}, b"", context)
            record = {"arguments": {"number": number}, "response": add.render(output)}
            calls.append(ToolCallRecord(1, "add", output.outcome, 0.0, 0.0, **record))
            return output

        context = Context(servers, problem, "r1")
        assert [(await call(number, context)).value for number in (1, 3)] == [
            "count 4",
            "count 7\nThe episode has ended.",
        ]
        late = await call(1, context)
        assert (late.outcome, "the episode has ended" in late.stderr) == ("error", True)
        judged = await made.judge(problem, Transcript(("", ""), tuple(calls)), context)
        assert (judged.reward, judged.success, judged.parts) == (1.0, True, {"steps": 2.0, "done": 1.0})

    await served(tmp_path, "openenv", server("openenv", "tallies:tools", "tasks.jsonl", "5"), main)


@pytest.mark.slow
@here("openenv")
async def test_rollouts_share_the_places_of_a_server_that_has_few(tmp_path):
    async def main(servers: McpServers):
        made = OpenEnv(seed=0, base=tmp_path)
        problems = [made.problems().problem(0, number) for number in range(6)]
        found: list[float] = []

        async def rollout(number: int) -> None:
            context = Context(servers, problems[number], f"r{number}")
            texts = ["wrong", "wrong", problems[number].id]
            found.append((await made.judge(problems[number], await played(made, context, texts), context)).reward)

        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(rollout, number)
        assert found == [0.5] * 6

    await served(tmp_path, "openenv", server("openenv", "tallies:app", "tasks.jsonl", "6"), main)


@pytest.mark.slow
@here("openenv")
async def test_a_server_that_dies_or_hangs_harms_its_rollout_alone_and_leaves_nothing(tmp_path):
    async def main(servers: McpServers):
        made = OpenEnv(seed=0, base=tmp_path)
        problem = made.problems().problem(0, 0)
        honest = Context(servers, problem, "honest")
        transcript = await played(made, honest, ["wrong"])
        with pytest.raises(RuntimeError, match="took no step: The server 'openenv' of this tool ended during the call"):
            await played(made, Context(servers, problem, "bad"), ["die"])
        await played(made, Context(servers, problem, "next"), ["wrong"])  # it is started again
        with pytest.raises(trio.TooSlowError):
            await played(made, Context(servers, problem, "bad", 1.0), ["hang"])
        with trio.fail_after(60):
            assert (await made.judge(problem, transcript, honest)).reward == -0.25
        other = await played(made, Context(servers, problem, "other"), ["random"])
        with pytest.raises(RuntimeError, match=r"shows another episode than the model has read.*use one executor"):
            await made.judge(problem, other, Context(servers, problem, "elsewhere"))
        pids.extend(working_in(tmp_path))

    pids: list[int] = []
    with capture_logs() as logs:
        await served(tmp_path, "openenv", server("openenv", "tallies:app", "tasks.jsonl", "2"), main)
    said = [row["why"] for row in logs if row["log_level"] == "error"]
    assert "the server of tallies:app ended with exit status 7" in said[0]
    assert "the environment's server hangs: it gives no session within 8 s" in said[-1], said
    assert len(pids) == 2
    assert await eventually(lambda: not any(map(is_alive, pids)))


def test_a_text_is_the_only_text_of_an_action_or_the_whole_action(tmp_path):
    def made(action: dict) -> OpenEnv:
        rows = [{"action": action, "tools": []}, {"seed": 0, "text": "a"}]
        (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, rows)))
        return OpenEnv(seed=0, base=tmp_path)

    fields = {"metadata": {"type": "object"}, "message": {"type": "string"}}
    one = made({"properties": fields, "required": ["message"]})
    assert one._action("go") == {"message": "go"}
    two = made({"properties": fields | {"to": {"type": "string"}}, "required": ["message", "to"]})
    assert (two._action('{"to": "a"}'), two._action("go"), two._action("[1]")) == ({"to": "a"}, None, None)


# inspect-ai -----------------------------------------------------------------------------------------------------------


async def listed(folder: Path, *arguments: str) -> InspectTask:
    """The environment of a task, of whose samples the last three are held out."""
    await served(folder, "inspect", server("inspect", "list", *arguments))
    return InspectTask(seed=0, base=folder, held_out=3)


async def run(folder: Path, made: InspectTask, problem: Problem, texts: Sequence[str], *arguments: str) -> Judgement:
    """The judgement of a rollout in which the engine writes these texts."""
    turns = iter(texts)
    command, shows = program("inspect", "run", *arguments), (str(SERVERS),)
    made.harness = Harness(command=command, fork=True, isolation="strong", shows=shows)
    with trio.fail_after(120):
        async with stand(folder, lambda *_: next(turns, "One turn too many.")) as at:
            generator = at.generator
            request = builders.request(problem=problem, sampling=Sampling(1.0, 100_000, 100))
            episode = Episode(request, generator._chat, generator._engine.longest, begun=False)
            await generator._harnesses.run(made, episode)
    assert episode.turns == len(texts), [message.content for message in episode.transcript.replies]
    return await made.judge(problem, episode.transcript, None)


@pytest.mark.slow
@here("inspect")
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
@here("inspect")
@pytest.mark.parametrize(("which", "fault"), [("graded", "No model specified"), ("failing", "no score for you")])
async def test_a_scorer_that_fails_is_named(tmp_path, which, fault):
    made = await listed(tmp_path, f"{SUMS}{which}", "tasks.jsonl")
    problem = made.problems().evaluation(0)
    with pytest.raises(RuntimeError, match=rf"(?i)sample 2-.* has no score: .*{fault}"):
        await run(tmp_path, made, problem, ["4"], f"{SUMS}{which}", "{id}")


async def test_what_a_harness_leaves_is_judged(tmp_path):
    (tmp_path / "tasks.jsonl").write_text('{"id": "0-a", "text": "?"}')
    made = InspectTask(seed=0, base=tmp_path, score="f1")
    made.harness = Harness(command=(sys.executable,))
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
    made._score = ""
    assert (await judged("status 0", f"scores {scores}\n")).reward == 0.25, "the mean of all"
    made.harness = None
    with pytest.raises(RuntimeError, match="no harness runs the task"):
        await made.judge(problem, Transcript(("a",)), None)
