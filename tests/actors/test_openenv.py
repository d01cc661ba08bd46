"""Environments of OpenEnv at a real server of its own, behind a real executor's servers."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from actors.tool_executor.mcp_servers import McpServers
from agent_rl.config.topology import McpServer
from agent_rl.environments.base import TaskError, ToolOutput
from agent_rl.messages import EnvironmentMessage, Problem, ToolCallRecord, Transcript
from examples.adapters.openenv_tasks import OpenEnv
from tests.actors.sandbox.running import eventually, is_alive
from tests.actors.test_mcp_servers import serving

OPENENV = Path(__file__).parents[2] / ".venv-openenv"
ADAPTERS = Path(__file__).parents[2] / "examples/adapters"
SERVERS = str(Path(__file__).parents[1] / "servers")
with_openenv = pytest.mark.skipif(
    not (OPENENV / "installed").is_file(), reason="OpenEnv is not here: make .venv-openenv/installed"
)
pytestmark = pytest.mark.real_time


def server(app: str, *arguments: str) -> McpServer:
    command = (str(OPENENV / "bin/python"), f"{ADAPTERS}/openenv_server.py", app, "tasks.jsonl", *arguments)
    return McpServer(command=command, environment={"PYTHONPATH": SERVERS}, seconds=60)


class Context:
    """What the environment needs of one."""

    def __init__(self, servers: McpServers, rollout: str, problem: Problem, seconds: float = 120) -> None:
        self.servers, self.rollout, self.problem, self.seconds = servers, rollout, problem, seconds

    async def ask_server(self, server, tool, arguments):
        with trio.fail_after(self.seconds):
            return await self.servers.call("arithmetic", server, tool, arguments, rollout=self.rollout, again=False)


async def served(folder: Path, settings: McpServer, main: Callable[[McpServers], Awaitable[None]]) -> None:
    async with serving(folder, openenv=settings) as servers:
        assert list((await servers.listings()).values()) == [[]]
        await main(servers)


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
@with_openenv
async def test_texts_are_steps_and_their_rewards_judge(tmp_path):
    async def main(servers: McpServers):
        made = OpenEnv(seed=0, base=tmp_path, held_out=1)
        assert (made.observes, made.tools) == (True, ())
        problem = made.problems().evaluation(0)
        assert made.prompt(problem) == [{"role": "user", "content": "Say 13."}]
        context = Context(servers, "r1", problem)
        transcript = await played(made, context, ["12", "raise", "13", "14"])
        assert read(transcript)[0::2] == ["Wrong.", "Right.\nThe episode has ended."]
        assert "no number" in read(transcript)[1]
        one = await made.judge(problem, transcript, context)
        assert (one.reward, one.success, one.parts) == (0.75, False, {"steps": 3.0, "done": 1.0})
        again = await made.judge(problem, transcript, Context(servers, "r2", problem))  # all is played again
        last = OpenEnv(seed=0, base=tmp_path, reward="last")
        assert again == one
        assert (await last.judge(problem, transcript, context)).reward == 1.0
        assert (await made.judge(problem, Transcript(("13",)), context)).reward == 0.0  # nobody answered that turn

    await served(tmp_path, server("tallies:app", "4", json.dumps({"plus": 10})), main)
    assert len((tmp_path / "tasks.jsonl").read_text().splitlines()) == 5


@pytest.mark.slow
@with_openenv
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

        context = Context(servers, "r1", problem)
        assert [(await call(number, context)).value for number in (1, 3)] == [
            "count 4",
            "count 7\nThe episode has ended.",
        ]
        late = await call(1, context)
        assert (late.outcome, "the episode has ended" in late.stderr) == ("error", True)
        judged = await made.judge(problem, Transcript(("", ""), tuple(calls)), context)
        assert (judged.reward, judged.success, judged.parts) == (1.0, True, {"steps": 2.0, "done": 1.0})

    await served(tmp_path, server("tallies:tools", "5"), main)


@pytest.mark.slow
@with_openenv
async def test_rollouts_share_the_places_of_a_server_that_has_few(tmp_path):
    async def main(servers: McpServers):
        made = OpenEnv(seed=0, base=tmp_path)
        problems = [made.problems().problem(0, number) for number in range(6)]
        found: list[float] = []

        async def rollout(number: int) -> None:
            context = Context(servers, f"r{number}", problems[number])
            texts = ["wrong", "wrong", problems[number].id]
            found.append((await made.judge(problems[number], await played(made, context, texts), context)).reward)

        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(rollout, number)
        assert found == [0.5] * 6

    await served(tmp_path, server("tallies:app", "6"), main)


@pytest.mark.slow
@with_openenv
async def test_a_server_that_dies_or_hangs_harms_its_rollout_alone_and_leaves_nothing(tmp_path):
    async def main(servers: McpServers):
        made = OpenEnv(seed=0, base=tmp_path)
        problem = made.problems().problem(0, 0)
        honest = Context(servers, "honest", problem)
        transcript = await played(made, honest, ["wrong"])
        ends = (
            "The server 'openenv' of this tool ended during the call|ConnectionClosedError"  # whichever is heard first
        )
        with pytest.raises(RuntimeError, match=f"took no step: ({ends})"):
            await played(made, Context(servers, "bad", problem), ["die"])
        await played(made, Context(servers, "next", problem), ["wrong"])  # it is started again
        with pytest.raises(trio.TooSlowError):
            await played(made, Context(servers, "bad", problem, 1.0), ["hang"])
        with trio.fail_after(60):
            assert (await made.judge(problem, transcript, honest)).reward == -0.25
        other = await played(made, Context(servers, "other", problem), ["random"])
        with pytest.raises(RuntimeError, match=r"shows another episode than the model has read.*use one executor"):
            await made.judge(problem, other, Context(servers, "elsewhere", problem))
        pids.extend(working_in(tmp_path))

    pids: list[int] = []
    with capture_logs() as logs:
        await served(tmp_path, server("tallies:app", "2"), main)
    said = [row["why"] for row in logs if row["log_level"] == "error"]
    assert "the server of tallies:app ended with exit status 7" in said[0]
    assert "the environment's server hangs: it gives no session within 8 s" in said[-1], said
    assert len(pids) == 2
    assert await eventually(lambda: not any(map(is_alive, pids)))


@pytest.mark.slow
@with_openenv
@pytest.mark.parametrize(
    ("app", "fault"),
    [
        ("no_such_environment:app", "No module named 'no_such_environment'; install the environment of"),
        ("http://127.0.0.1:9", "http://127.0.0.1:9 is no server of OpenEnv: .*refused"),
    ],
)
async def test_an_environment_that_is_missing_is_named(tmp_path, app, fault):
    async def main(servers: McpServers):
        raise AssertionError

    with pytest.RaisesGroup(
        pytest.RaisesExc(TaskError, match=rf"(?s)environment 'arithmetic': the MCP server 'openenv'.*{fault}")
    ):
        await served(tmp_path, server(app, "2"), main)
    assert not (tmp_path / "tasks.jsonl").exists()


def test_a_file_without_tasks_is_named(tmp_path):
    with pytest.raises(TaskError, match=r"there is no .*/tasks.jsonl; write it with `agent-rl mcp FILE`"):
        OpenEnv(seed=0, base=tmp_path)
    (tmp_path / "tasks.jsonl").write_text('{"seed": 0}')
    with pytest.raises(TaskError, match=r"tasks.jsonl:1: no tasks; remove the file, and run `agent-rl mcp FILE`"):
        OpenEnv(seed=0, base=tmp_path)
    (tmp_path / "tasks.jsonl").write_text('{"action": {}, "tools": []}\n{"seed": 0, "text": "a"}')
    with pytest.raises(TaskError, match=r"tasks.jsonl has 1 tasks, and held_out is 1; hold fewer"):
        OpenEnv(seed=0, base=tmp_path, held_out=1)


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
