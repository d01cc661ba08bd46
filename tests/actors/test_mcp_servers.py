"""MCP servers as an executor's: those of the package mcp, and those with every fault."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, cast

import pytest
import structlog
import trio
from structlog.testing import capture_logs

from actors.cli.main import main
from actors.tool_executor import mcp_servers
from actors.tool_executor.context import ExecutorContext, Services
from actors.tool_executor.mcp_servers import McpServers
from actors.tool_executor.user_code import judged
from actors.user_threads import Pause
from agent_rl.config.topology import McpServer, Topology
from agent_rl.environments import mcp
from agent_rl.environments.base import BadArgumentError, Environment, TaskError
from agent_rl.messages import JudgementWanted, Problem, ToolResult, Transcript
from agent_rl_contract.builders import tool_call
from tests.actors.gateway.stand import free_port
from tests.actors.sandbox.running import commands, eventually, is_alive
from tests.actors.test_tool_executor import asker, executing
from tests.actors.topologies import micro
from tests.end_to_end.topologies import ENVIRONMENT, write_micro

SERVERS = Path(__file__).parents[2] / ".venv-servers"
WORDS = (str(SERVERS / "bin/python"), str(Path(__file__).parents[1] / "servers/words.py"))
BAD = (sys.executable, str(Path(__file__).with_name("bad_mcp_server.py")))
INSTALLED = (SERVERS / "installed").is_file()
MCP = pytest.mark.skipif(not INSTALLED, reason="the package mcp is not here: make .venv-servers/installed")


def with_mcp(test):
    return pytest.mark.slow(MCP(test))


pytestmark = pytest.mark.real_time


def topology_with(folder: Path, **servers: McpServer) -> Topology:
    topology = micro(folder)
    entry = topology.environments[0].model_copy(update={"mcp": servers})
    return topology.model_copy(update={"environments": (entry,)})


@asynccontextmanager
async def serving(folder: Path, **servers: McpServer) -> AsyncIterator[McpServers]:
    async with trio.open_nursery() as nursery:
        yield McpServers(topology_with(folder, **servers), folder, nursery, structlog.get_logger())
        nursery.cancel_scope.cancel()


def caller(servers: McpServers, server: str = "s"):
    async def call(tool: str, rollout: str = "r", *, again: bool = False, **arguments: Any):
        with trio.fail_after(60):
            return await servers.call("arithmetic", server, tool, arguments, rollout=rollout, again=again)

    return call


@with_mcp
async def test_a_server_of_the_package_mcp_is_shared_asked_at_once_and_started_again(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "1")
    monkeypatch.setenv("GIVEN", "2")
    settings = McpServer(command=WORDS, environment={"GIVEN": "env:GIVEN"})
    with capture_logs() as logs:
        async with serving(tmp_path, s=settings) as servers:
            call = caller(servers)
            (listed,) = (await servers.listings()).values()
            assert [each["name"] for each in listed] == ["remember", "divide", "wait", "leave", "process"]
            assert (await call("remember", "r1", word="a")).value == "a"
            assert (await call("remember", "r2", word="b")).value == "a b"
            divided = await call("divide", a=1, b=0)
            assert (divided.outcome, divided.stderr) == ("error", "Error executing tool divide")
            pid, secret, given = (await call("process")).value.split()
            assert (secret, given) == ("None", "2")
            assert (await call("divide", a="text", b=1)).outcome == "error"
            with trio.fail_after(8):
                async with trio.open_nursery() as nursery:
                    for _ in range(8):
                        nursery.start_soon(lambda: call("wait", seconds=2))
            left = await call("leave")
            assert (left.outcome, left.note) == ("error", "")
            assert left.stderr == "The server 's' of this tool ended during the call."
            assert (await call("remember", "r1", again=True, word="c")).value == "c"
            second = (await call("process")).value.split()[0]
            assert pid != second
    row, _ = (row for row in logs if row["log_level"] == "error")  # the call that ends it is made twice
    assert row["why"].startswith("environment 'arithmetic': the MCP server 's' (")
    assert ") ended with exit status 3 and wrote: " in row["why"]
    assert row["why"].endswith("; correct the server, or mcp.s of the environment")
    assert not is_alive(int(second))


async def test_a_server_that_hangs_is_ended_and_started_again(tmp_path, monkeypatch):
    monkeypatch.setattr(mcp_servers, "PING_SECONDS", 0.5)
    with capture_logs() as logs:
        async with serving(tmp_path, s=McpServer(command=(*BAD, "deaf"))) as servers:
            await servers.listings()
            (first,) = (place.server for place in servers._places.values())
            with trio.move_on_after(0.2):
                await caller(servers)("f")
            assert await eventually(lambda: first.fault)
            with trio.move_on_after(5):
                await caller(servers)("f")
            (second,) = (place.server for place in servers._places.values())
            assert second is not first
    (row, *_) = (row for row in logs if row["log_level"] == "error")
    assert ") hangs: it answered no ping within 0.5 seconds; correct the server" in row["why"]


@with_mcp
async def test_a_server_that_is_slow_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(mcp_servers, "PING_SECONDS", 5.0)
    async with serving(tmp_path, s=McpServer(command=WORDS)) as servers:
        call = caller(servers)
        assert (await call("remember", word="a")).value == "a"
        with trio.move_on_after(0.2):
            await call("wait", seconds=60)
        await trio.sleep(6)
        assert (await call("remember", word="b")).value == "a b"


@with_mcp
async def test_a_rollout_may_have_a_server_of_its_own(tmp_path):
    async with serving(tmp_path, s=McpServer(command=WORDS, per="rollout")) as servers:
        call = caller(servers)
        assert [(await call("remember", rollout, word="a")).value for rollout in ("r1", "r2", "r1")] == [
            "a",
            "a",
            "a a",
        ]
        pid = int((await call("process", "r1")).value.split()[0])
        servers.end("arithmetic", "r1")
        assert await eventually(lambda: not is_alive(pid))
        again = await call("remember", "r1", again=True, word="b")
        assert (again.value, again.note) == ("b", "The server was started again: its state is lost.")
        assert (await call("remember", "r2", again=True, word="b")).note == ""


@with_mcp
async def test_a_server_is_asked_by_http_and_one_that_is_gone_is_named(tmp_path):
    port = free_port()
    settings = McpServer(url=f"http://127.0.0.1:{port}/mcp", seconds=5)
    async with trio.open_nursery() as nursery:
        process = await nursery.start(trio.run_process, [*WORDS, str(port)])
        async with serving(tmp_path, s=settings) as servers:
            call = caller(servers)
            for _ in range(100):
                if (first := await call("remember", word="a")).outcome != "unavailable":
                    break
                await trio.sleep(0.2)
            assert first.value == "a"
            assert (await call("remember", word="b")).value == "a b"
            assert (await call("divide", a=1, b=0)).outcome == "error"
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                process.kill()
                await process.wait()
                last = await call("remember", word="c")
                assert (last.outcome, f"does not serve {settings.url}: " in last.stderr) == ("unavailable", True)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("./no-such-program",), "exit status 1 and wrote: './no-such-program' cannot be started: No such file"),
        ((*BAD, "dies"), "ended with exit status 1 and wrote: no configuration file; correct the server, or mcp.s of"),
        ((*BAD, "banner"), "wrote 'Welcome to my server!', which is no JSON-RPC message: not JSON (Expecting value at"),
        ((*BAD, "mute"), "did not list its tools within 2 seconds"),
        ((*BAD, "old"), "speaks revision '1999-01-01' of the protocol; this client speaks 2024-11-05, "),
        ((*BAD, "nameless"), "whose tools are no list of objects with names"),
    ],
)
async def test_a_server_that_cannot_serve_is_named_with_its_fault(tmp_path, monkeypatch, command, said):
    monkeypatch.setattr(mcp_servers, "START_SECONDS", 2.0 if "mute" in command else 60.0)
    monkeypatch.setattr(mcp_servers, "PAUSES", ())
    async with serving(tmp_path, s=McpServer(command=command)) as servers:
        with pytest.raises(TaskError) as caught:
            await servers.listings()
        assert str(caught.value).startswith(f"environment 'arithmetic': the MCP server 's' ({' '.join(command)})")
        assert said in str(caught.value)
        unavailable = await caller(servers)("f")
        assert (unavailable.outcome, said in unavailable.stderr) == ("unavailable", True)


@pytest.mark.parametrize(
    ("fault", "outcome", "said"),
    [
        ("list", "error", "The server 's' of this tool ended during the call."),
        ("deep", "error", "The server 's' of this tool ended during the call."),
        ("long", "error", "The server 's' of this tool ended during the call."),
        ("content", "error", "whose content is no list of objects"),
        ("no result", "error", "has neither a result nor an error"),
        ("error", "error", "the disk is full"),
        ("structured", "success", '{"a": "ä"}'),
    ],
)
async def test_any_answer_to_a_call_is_an_outcome(tmp_path, monkeypatch, fault, outcome, said):
    monkeypatch.setattr(mcp, "MESSAGE_BYTES", 1 << 16)
    async with serving(tmp_path, s=McpServer(command=(*BAD, fault))) as servers:
        output = await caller(servers)("f")
        assert (output.outcome, said in output.stderr + output.value) == (outcome, True)


async def test_arguments_that_a_server_refuses_are_a_malformed_call(tmp_path):
    servers = {"s": McpServer(command=(*BAD, "params")), "t": McpServer(command=(*BAD, "half"))}
    async with serving(tmp_path, **servers) as servers:
        for server, said in (("s", "Unknown tool"), ("t", "\ufffd is half")):
            with pytest.raises(BadArgumentError, match=said):
                await caller(servers, server)("f")


async def test_a_server_that_is_killed_is_started_again_and_its_calls_are_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr(mcp_servers, "PAUSES", (0.01, 0.01))
    settings = McpServer(command=(*BAD, "once", str(tmp_path / "served")))
    outputs = []

    async def call(servers: McpServers) -> None:
        outputs.append(await caller(servers)("f"))

    async with serving(tmp_path, s=settings) as servers, trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(call, servers)
    assert [(output.outcome, output.value) for output in outputs] == [("success", "well")] * 3


async def test_a_server_that_is_gone_for_good_is_named_after_a_few_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(mcp_servers, "PAUSES", (0.01, 0.01))
    settings = McpServer(command=(*BAD, "gone", str(tmp_path / "served")))
    waits: list[bool] = []

    @contextmanager
    def waiting() -> Iterator[None]:
        waits.append(True)
        yield

    with capture_logs() as logs:
        async with serving(tmp_path, s=settings) as servers:
            output = await servers.call("arithmetic", "s", "f", {}, rollout="r", again=False, waiting=waiting)
    assert output.outcome == "unavailable"
    assert output.stderr.startswith("environment 'arithmetic': the MCP server 's' (")
    assert output.stderr.endswith("wrote: no configuration file; correct the server, or mcp.s of the environment")
    assert len(waits) >= 2  # starting takes nothing of the call's deadline
    assert len(logs) >= 3


async def test_a_judgement_whose_server_does_not_start_is_asked_for_again(tmp_path, monkeypatch):
    class Asking(Environment):
        async def judge(self, problem, transcript, context):
            return await context.ask_server("s", "f", {})

    monkeypatch.setattr(mcp_servers, "PAUSES", ())
    asked = JudgementWanted("r", Problem("p", "", "", environment="arithmetic"), Transcript(()))
    async with serving(tmp_path, s=McpServer(command=(*BAD, "dies"))) as servers:
        services = Services(*(cast("Any", None),) * 4, Pause(), servers)
        context = ExecutorContext(services, asked, 60.0, log=structlog.get_logger(), name="n", key="k")
        reply = await judged(Asking(), asked, context)
    assert (reply.judgement, reply.fault) == (None, "")
    assert reply.unavailable.startswith("environment 'arithmetic': the MCP server 's' (")


async def test_an_answer_by_http_is_bounded(tmp_path, monkeypatch):
    class Endless(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", self.path[1:].replace("-", "/", 1))
            self.end_headers()
            with suppress(OSError):
                for _ in range(1 << 14):
                    self.wfile.write(b"a" * 1023 + b"\n")
                sent.append(self.path)

        def log_message(self, *_: object) -> None:
            """Be quiet."""

    sent: list[str] = []
    monkeypatch.setattr(mcp, "MESSAGE_BYTES", 1 << 16)
    with ThreadingHTTPServer(("127.0.0.1", 0), Endless) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        for kind in ("application-json", "text-event-stream"):
            settings = McpServer(url=f"http://127.0.0.1:{server.server_port}/{kind}", seconds=20)
            async with serving(tmp_path, s=settings) as servers:
                with pytest.raises(TaskError, match=r"the MCP server 's' .* answered with more than 65536 bytes; corr"):
                    await servers.listings()
        server.shutdown()
    assert sent == []


async def test_nothing_that_a_server_started_is_left(tmp_path):
    own = str(tmp_path)  # other tests run such servers meanwhile
    async with serving(tmp_path, s=McpServer(command=(*BAD, "stays", own))) as servers:
        await servers.listings()
        assert len(commands(own.encode())) == 2
    assert await eventually(lambda: not commands(own.encode()))


async def test_an_executor_runs_the_tools_and_a_call_that_never_returns_is_a_timeout(tmp_path):
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    (tmp_path / "s.tools.json").write_text(json.dumps([{"name": "f", "description": "G.", "inputSchema": schema}]))
    settings = McpServer(command=(*BAD, "never"), seconds=0.5, prefix="my_")
    topology = topology_with(tmp_path, s=settings)
    with capture_logs() as logs:
        async with executing(topology, tmp_path) as stage:
            result: ToolResult = await asker(stage)(tool_call({"a": "b"}, "my_f"))
            assert result.outcome == "timeout"
            assert await eventually(lambda: [row["why"] for row in logs if row["event"].startswith("an MCP server")])
    (why,) = (row["why"] for row in logs if row["event"].startswith("an MCP server"))
    assert "ended with exit status 5 and wrote: cancelled {'requestId': 3}" in why


@with_mcp
async def test_an_executor_ends_the_server_of_a_rollout_that_has_ended(tmp_path):
    settings = McpServer(command=WORDS, per="rollout")
    async with serving(tmp_path, s=settings) as servers:
        (listed,) = (await servers.listings()).values()
    (tmp_path / "s.tools.json").write_text(json.dumps(listed))
    topology = topology_with(tmp_path, s=settings)
    async with executing(topology, tmp_path) as stage:
        ask = asker(stage)
        first = await ask(tool_call({"word": "a"}, "remember"))
        second = await ask(tool_call({"word": "b"}, "remember", number="2.0", state=first.state))
        assert (first.value, second.value, second.note) == ("a", "a b", "")
        other = await ask(tool_call({"word": "c"}, "remember", rollout="s0-g000001/0/0"))
        assert other.value == "c"
        pid = int((await ask(tool_call({}, "process"))).value.split()[0])
        await ask(tool_call({}, "", ends=True))
        assert await eventually(lambda: not is_alive(pid))
        lost = await ask(tool_call({"word": "d"}, "remember", number="3.0", state=second.state))
        assert (lost.value, lost.note) == ("d", "The server was started again: its state is lost.")


async def test_an_executor_whose_server_lists_other_tools_is_refused(tmp_path):
    kept = [{"name": "f", "description": "F.", "inputSchema": {"type": "object", "properties": {}}}]
    (tmp_path / "s.tools.json").write_text(json.dumps(kept))
    async with serving(tmp_path, s=McpServer(command=(*BAD, "well"))) as servers:
        with pytest.raises(
            TaskError, match=r"mcp.s: the server does not list the tool 'f' as .*s.tools.json does; run"
        ):
            await servers.check()


async def test_a_server_ends_with_an_executor_that_is_killed(tmp_path):
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    async with trio.open_nursery() as nursery:
        owner = await nursery.start(partial(trio.run_process, check=False), command)
        started = tmp_path / "pid"
        assert await eventually(lambda: started.exists() and started.read_text())
        os.kill(owner.pid, signal.SIGKILL)
    assert await eventually(lambda: not is_alive(int(started.read_text())))


OWNER = """
import sys, trio
from pathlib import Path
from agent_rl.config.topology import McpServer
from tests.actors.test_mcp_servers import serving

async def main(folder):
    command = ("/bin/sh", "-c", f"trap '' HUP TERM; echo $$ >{folder}/pid; while :; do sleep 1; done")
    async with serving(folder, s=McpServer(command=command)) as servers:
        await servers.listings()

trio.run(main, Path(sys.argv[1]))
"""


def test_the_command_names_all_faults_and_writes_files_of_what_is_sound(tmp_path, capsys):
    path, _ = write_micro(tmp_path)
    plain = path.read_text()

    def listed(*faults: str) -> list[str]:
        tables = [
            f"[environments.mcp.{at}]\ncommand = {json.dumps([*BAD, fault])}"
            for at, fault in zip("st", faults, strict=False)
        ]
        path.write_text(plain.replace(ENVIRONMENT, "\n".join([ENVIRONMENT, *tables])))
        return [str(main(["mcp", str(path)])), *capsys.readouterr().err.splitlines()]

    assert listed("well", "pages") == ["0"]
    assert [each["name"] for each in json.loads((tmp_path / "t.tools.json").read_text())] == ["f", "g"]
    code, *lines = listed("dies", "array")
    assert code == "2"
    first, second = sorted(lines)
    assert first.startswith(f"{path}: environment 'arithmetic': mcp.t: the tool 'f': the parameters of its schema are")
    assert "the MCP server 's'" in second
    assert listed() == ["2", f"agent-rl: {path}: no environment names a server; write one as [environments.mcp.NAME]"]
