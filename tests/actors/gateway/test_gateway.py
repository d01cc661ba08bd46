"""Agents at the gateway: their conversations as trees of tokens, what is trained, and what bad requests get."""

from __future__ import annotations

import json
import socket
import sys
import textwrap
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from actors.gateway import Gateway, gateway
from actors.rollout_generator import harness
from actors.rollout_generator.agent_loop import EnvironmentFaultError
from actors.rollout_generator.harness import Harnesses
from actors.rollout_generator.tool_calls import ToolsUnavailableError
from agent_rl.config.topology import Container, Harness
from agent_rl.environments.harness import outcome_of
from agent_rl.messages import Sampling, ToolCall, ToolResult
from agent_rl.rollout.episode import Episode
from agent_rl_contract import builders
from tests.actors.gateway.stand import Stand, stand
from tests.actors.sandbox.container_stand import state
from tests.actors.sandbox.running import require
from transport import PeerReplaced

__all__ = ["state"]

pytestmark = pytest.mark.real_time

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
CALL = 'I look. <tool_call>{"name": "look", "arguments": {"where": "here",  "deep": false}}</tool_call>'


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def trained(episode: Episode) -> list[int]:
    body = episode.trajectory(generator="g", seconds=0.0).unpack()
    return [int(token) for token in body.tokens[body.loss_mask == 1]]


def written(at: Stand) -> list[int]:
    return [token for turns in at.engine.written.values() for turn in turns for token in turn]


async def test_a_path_or_method_that_is_none_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    async with stand(tmp_path, lambda *_: "turn") as at, at.rollout() as (key, _):
        status, reply = await at.post(key, {"messages": [user("x")]}, "/v1/completions")
        assert (status, "/v1/chat/completions" in str(reply)) == (404, True)
        for method, path, status in (("HEAD", "/v1/models", 200), ("GET", "/v1/models", 200), ("PUT", "/x", 404)):
            assert (await trio.to_thread.run_sync(at.status, method, path)) == status


async def test_who_waits_when_a_rollout_ends_is_told(tmp_path: Path) -> None:
    begun, told = trio.Event(), trio.Event()

    def script(*_: Any) -> str:
        begun.set()
        return "a long turn " * 500

    async with stand(tmp_path, script) as at, trio.open_nursery() as nursery:
        replies: list[Any] = []

        async def ask(key: str) -> None:
            replies.append(await at.post(key, {"messages": [user("Go.")]}))
            told.set()

        async with at.rollout() as (key, _):
            nursery.start_soon(ask, key)
            await begun.wait()
        with trio.fail_after(20):
            await told.wait()
        assert replies[0][0] == 409


async def test_a_client_that_leaves_and_one_that_is_slow_harm_nobody(tmp_path: Path) -> None:
    async with stand(tmp_path, lambda *_: "a long turn " * 20, body_bytes=5000) as at, at.rollout() as each:
        key, episode = each
        host, port = at.url.removeprefix("http://").split(":")

        def leave(data: bytes) -> None:
            with socket.create_connection((host, int(port))) as client:
                client.sendall(data)

        body = b'{"stream": true, "messages": [{"role": "user", "content": "Go."}]}'
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n".encode()
        for data in (b"", b"\x00\xff\r\n\r\n", head, head + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)):
            await trio.to_thread.run_sync(leave, data)
        status, _ = await at.post(key, {"messages": [user("x" * 6000)]})
        assert status == 413
        status, text = await at.post(key, {"stream": True, "messages": [user("Go.")]})
        assert (status, text.count("[DONE]")) == (200, 1)
        assert trained(episode) == written(at)


HARNESS = """
import json, os, sys, urllib.request
assert "SECRET" not in os.environ and not os.listdir(".")
body = json.dumps({"model": os.environ["AGENT_RL_MODEL"], "messages": [{"role": "user", "content": sys.argv[1]}]})
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body.encode(), headers)
print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"], sys.argv[2])
"""


def harnessed(at: Stand, **given: Any) -> tuple[Callable[[], Awaitable[None]], Episode]:
    """A run of the harness, and its episode."""
    generator = at.generator
    environment = next(iter(generator._environments.values()))
    environment.harness = Harness(**given)
    episode = Episode(
        builders.request(sampling=Sampling(1.0, 1000, 10)), generator._chat, generator._engine.longest, begun=False
    )
    given_to = generator._loop, generator._served_rollouts, generator.context.nursery
    harnesses = Harnesses(*given_to, url=at.url, base=Path(__file__).parent, log=generator.log)
    return partial(harnesses.run, environment, episode), episode


async def test_a_harness_runs_alone_and_its_output_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    async with stand(tmp_path, lambda *_: "a turn") as at:
        run, episode = harnessed(at, command=(sys.executable, "-c", HARNESS, "{prompt}", "with {model}"))
        await run()
        assert (episode.ended, episode.turns) == ("finished", 1)
        assert episode.transcript.replies[-1].content == "a turn with agent-rl\n"


CUT = """
import json, os, pathlib, sys, urllib.request
body = {"stream": True, "messages": [{"role": "user", "content": "Go."}]}
def ask(**more):
    data = json.dumps({**body, **more}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    return urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", data, headers))
said = json.load(ask(stream=False))["choices"][0]["message"]
body["messages"] += [said, {"role": "user", "content": "And?"}]
starts = pathlib.Path(sys.argv[1])
starts.write_text(starts.read_text() + "x")
reply = ask()
if starts.read_text() == "x":
    reply.fp.read1(10)
    sys.exit("the reply was cut")
print(said["content"].strip(), "[DONE]" in reply.read().decode())
"""


@pytest.mark.parametrize("lost", [True, False])
async def test_a_program_whose_reply_was_cut_goes_on_with_its_turns_where_a_gateway_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    """One that cuts a reply by itself is judged: else it could get rid of a losing rollout."""
    monkeypatch.setattr(harness, "SILENT_SECONDS", harness.SILENT_SECONDS if lost else 0.5)
    starts = tmp_path / "starts"
    starts.write_text("")
    async with stand(tmp_path, lambda number, _: f"turn {number} " * 40) as at:
        run, episode = harnessed(at, isolation="off", command=(sys.executable, "-c", CUT, str(starts)), seconds=60)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            if lost:
                while starts.read_text() != "x":  # noqa: ASYNC110 - the program writes the file
                    await trio.sleep(0.05)
                await trio.sleep(1.5)  # it has left: a gateway that is lost is known later
                at.generator.peer_changed(PeerReplaced("gateway.0", 1))
        outcome = outcome_of(episode.transcript)
        assert outcome is not None
        found = starts.read_text(), episode.ended, outcome.status
        assert found == (("xx", "finished", "status 0") if lost else ("x", "finished", "status 1"))
        if lost:
            assert (episode.turns, [len(each) for each in at.engine.written.values()]) == (2, [2])
            assert outcome.output == "turn 1 " * 40 + "True\n"
            assert trained(episode) == written(at)


@pytest.mark.parametrize(
    ("sources", "key", "fault"),
    [
        (["live"], "", ""),
        (["command"], "", ""),
        (["live", "command"], "", "session_key: the gateway is reached by programs, which could begin sessions"),
        (["live", "command"], "secret", ""),
    ],
)
def test_programs_begin_no_sessions_beside_those_of_users(
    monkeypatch: pytest.MonkeyPatch, sources: list[str], key: str, fault: str
) -> None:
    monkeypatch.setattr(gateway, "unreachable", lambda _: ())
    environments = [SimpleNamespace(harness=SimpleNamespace(source=source)) for source in sources]
    topology: Any = SimpleNamespace(environments=environments)
    (said,) = Gateway.check(topology, Gateway.Settings(session_key=key)) or [""]
    assert said.startswith(fault)
    assert bool(said) == bool(fault)


ASK = """
import json, os, pathlib, sys, time, urllib.request
def ask(text):
    body = json.dumps({"messages": [{"role": "user", "content": text}]})
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body.encode(), headers)
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
"""
FRAGILE = f"""{ASK}
starts = pathlib.Path(sys.argv[1])
starts.write_text(starts.read_text() + "x")
if sys.argv[2] == "asks":
    ask("Go.")
if len(starts.read_text()) <= int(sys.argv[3]):
    time.sleep(0.5)
    sys.exit(1)  # as a client does whose connection is reset
"""


@pytest.mark.parametrize(
    ("lost", "asks", "failing", "starts", "ends"),
    [
        (True, "asks", 1, 2, "status 0"),
        (False, "asks", 9, 1, "status 1"),
        (True, "asks", 9, 4, ToolsUnavailableError("came to no end of its own: status 1")),
        (True, "nothing", 9, 4, ToolsUnavailableError("came to no end of its own: status 1")),
        (False, "nothing", 9, 1, EnvironmentFaultError("asked for no turn; it ended with status 1")),
    ],
)
async def test_whose_fault_the_end_of_a_program_is(
    tmp_path: Path, lost: bool, asks: str, failing: int, starts: int, ends: str | Exception
) -> None:
    (tmp_path / "starts").write_text("")
    async with stand(tmp_path, lambda *_: "fine") as at:
        command = (sys.executable, "-c", FRAGILE, str(tmp_path / "starts"), asks, str(failing))
        run, episode = harnessed(at, isolation="off", command=command)

        async def lose() -> None:
            while lost:
                at.generator.peer_changed(PeerReplaced("gateway.0", 1))
                await trio.sleep(0.2)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lose)
            with nullcontext() if isinstance(ends, str) else pytest.raises(type(ends), match=str(ends)):
                await run()
            nursery.cancel_scope.cancel()
        assert len((tmp_path / "starts").read_text()) == starts
        outcome = outcome_of(episode.transcript)
        assert (outcome and outcome.status) == (ends if isinstance(ends, str) else None)
        assert episode.turns == (asks == "asks"), "the same turn is given again"


async def test_secrets_that_an_agent_says_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCH_KEY", "hunter2-hunter2")
    names = ("OPENAI_API_KEY", "SEARCH", "SIZE")
    code = f"{ASK}\nask(' '.join(os.environ[name] for name in {names}))"
    async with stand(tmp_path, lambda *_: "fine") as at:
        environment = {"SEARCH": "env:SEARCH_KEY", "SIZE": "512"}
        run, episode = harnessed(at, isolation="off", command=(sys.executable, "-c", code), environment=environment)
        await run()
        told = at.generator._chat.decode(episode.tokens) + str(episode.transcript)
        assert ("hunter2" in told, "sk-rollout" in told) == (False, False)
        assert "(a secret) (a secret) 512" in told


async def test_requests_of_other_sites_and_of_no_tokens_are_refused(tmp_path: Path) -> None:
    async with stand(tmp_path, lambda *_: "fine") as at, at.rollout() as (key, episode):
        body = {"messages": [user("Go.")]}
        for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
            assert (await at.post(key, body, headers=headers))[0] == 403
        tokens = {"token_ids": [5, 1_000_000], "sampling_params": {"max_tokens": 5}}
        status, said = await at.post(key, tokens, "/inference/v1/generate")
        assert (status, "the token 1000000 is none of the" in said["error"]["message"]) == (400, True)
        large = {"messages": [user("x" * 100_000)]}
        assert (await at.post("sk-rollout-0-guessed", large))[0] == 401
        assert (await at.post(key, large))[0] == 400, "it leaves no room in a sequence"
        assert (await at.post(key, {**body, "stop": ["a"] * 17}))[0] == 400
        status, said = await at.post(key, b'{"task_id": "\\ud800"}', "/rl/start_session")
        assert (status, "surrogate" in said["error"]["message"]) == (400, True)
        assert (await at.post(key, body))[0] == 200
        assert (episode.turns, episode.ended) == (1, None)


@pytest.fixture
def jails() -> None:
    require("strong")


@pytest.mark.usefixtures("jails")
async def test_addresses_that_a_program_asks_for_in_vain_are_in_its_outcome(tmp_path: Path) -> None:
    asks = "import urllib.request as r\ntry: r.urlopen('https://pypi.org')\nexcept OSError as e: print(e)\n"
    command = (sys.executable, "-c", asks + HARNESS, "{prompt}", "done")
    async with stand(tmp_path, lambda *_: "a turn") as at:
        run, episode = harnessed(at, command=command, isolation="strong", network=("localhost:1",))
        await run()
        outcome = outcome_of(episode.transcript)
        assert outcome is not None
        assert (list(outcome.refused), outcome.status) == (["pypi.org:443"], "status 0")
        assert outcome.output == "<urlopen error Tunnel connection failed: 403 Forbidden>\na turn done\n"


IN_CONTAINER = f"""
import os
print(os.environ["PATH"], os.environ["HOME"], open("/etc/hostname").name)
{HARNESS.replace('and not os.listdir(".")', "")}
os.mkdir("deep"); open("deep/answer", "w").write(os.environ["OPENAI_API_KEY"])
"""


@pytest.mark.slow
@pytest.mark.usefixtures("state")
async def test_a_harness_runs_in_a_container_as_in_a_jail(tmp_path: Path) -> None:
    command = ("/usr/bin/python3", "-c", IN_CONTAINER, "{prompt}", "with {model}")
    check = ("sh", "-c", "cat deep/answer; mkdir {logs}/verifier; echo 1 >{logs}/verifier/reward.txt")
    async with stand(tmp_path, lambda *_: "a turn") as at:
        given = {"command": command, "check": check, "collect": ("**/answer",), "network": ("localhost:1",)}
        run, episode = harnessed(at, container=Container(image="agent:1"), **given)
        await run()
        outcome = outcome_of(episode.transcript)
        assert outcome is not None
        assert outcome.status == "status 0", outcome.output
        assert outcome.output.splitlines()[1:] == ["a turn with agent-rl"]
        assert (dict(outcome.files), outcome.check_output, outcome.check_reward) == (
            {"deep/answer": "(a secret)"},
            "(a secret)",
            "1\n",
        )
    assert not list((tmp_path / "state").glob("*.json"))


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("no-such-program",), "status 127, and wrote: 'no-such-program' cannot be started: No such file"),
        (
            (sys.executable, "-c", "print('hello'); exit(3)"),
            "asked for no turn; it ended with status 3, and wrote: hello",
        ),
        ((sys.executable, "-c", "import time; time.sleep(60)"), "no end within 1 s"),
        ((sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"), "ended with SIGKILL, and wrote: nothing"),
        ((sys.executable, "-c", "while True: print('x' * 9999)"), "ended with more output than `output_mib` allows"),
        (
            (sys.executable, "-c", "[open(str(n), 'wb').write(bytes(1 << 20)) for n in range(9)]"),
            "OSError: [Errno 28] No space left on device",
        ),
        ((sys.executable, "-c", "import os\nwhile True: os.fork()"), "BlockingIOError"),
    ],
)
async def test_a_harness_at_fault_loses_its_rollout(tmp_path: Path, command: Any, message: str) -> None:
    async with stand(tmp_path, lambda *_: "a turn") as at:
        least = {"output_mib": 1, "disk_mib": 2, "processes": 8}
        run, _ = harnessed(at, command=command, seconds=1.0 if "sleep" in command[-1] else 60.0, **least)
        with pytest.raises(EnvironmentFaultError) as raised:
            await run()
        said = str(raised.value)
        assert said.startswith("environment 'arithmetic': its harness asked for no turn; it ended with ")
        assert message in said
        assert said.endswith("; mend the program, or correct `environments.harness`")


async def test_a_program_may_be_loaded_once_and_forked(tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    (tmp_path / "slow_to_load.py").write_text("import os\nLOADED = os.getpid()\n")
    main = textwrap.indent(f"import os\nassert slow_to_load.LOADED != os.getpid()\n{HARNESS}", "    ")
    script.write_text(f"import slow_to_load\nif __name__ == '__main__':\n{main}")
    async with stand(tmp_path, lambda *_: "a turn") as at:
        run, episode = harnessed(at, command=(sys.executable, str(script), "{prompt}", "with {model}"), fork=True)
        await run()
        assert episode.transcript.replies[-1].content.endswith("a turn with agent-rl\n")
        script.write_text("raise SystemExit('broken')")
        run, _ = harnessed(at, command=(sys.executable, str(script)), fork=True)
        with pytest.raises(EnvironmentFaultError, match=r"could not be loaded by .*, which wrote: broken"):
            await run()


@pytest.mark.parametrize("streams", [False, True])
async def test_where_a_request_lists_no_tools_the_models_calls_are_run_here(tmp_path: Path, streams: bool) -> None:
    def ran(call: ToolCall) -> ToolResult:
        return ToolResult(call.call, "success", f"saw {call.arguments['where']}", "", "", 0.0, 0.0)

    tools = json.dumps(TOOLS)
    async with (
        stand(tmp_path, lambda number, _: CALL if number == 1 else "All is well.") as at,
        at.rollout(tools=tools) as each,
    ):
        key, episode = each
        at.stage["tool_executor"].reply = ran
        status, body = await at.post(key, {"model": "agent-rl", "messages": [user("Go.")], "stream": streams})
        assert status == 200
        shown = 'look({"where": "here", "deep": false})\nsaw here\n'
        if streams:
            parts = [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: {")]
            deltas = [part["choices"][0]["delta"] for part in parts if part["choices"]]
            assert "".join(delta.get("content") or "" for delta in deltas) == "I look.All is well."
            assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == shown
        else:
            said = body["choices"][0]["message"]
            assert (said["content"], said["reasoning_content"]) == ("All is well.", f"I look.\n{shown}")
            assert body["choices"][0]["finish_reason"] == "stop"
        assert (episode.turns, len(episode.strands)) == (2, 1)
        records = episode.trajectory(generator="g", seconds=0.0).transcript.calls
        assert [record.response for record in records] == ["saw here"]


async def test_with_opens_any_request_is_a_session_of_its_own_and_waits_for_a_rollout(tmp_path: Path) -> None:
    async with stand(tmp_path, lambda *_: "Hello.", opens="true", session_key='"secret"') as at:
        sessions, body = at.generator._sessions, {"model": "agent-rl", "messages": [user("Hi.")]}
        assert (await at.post("wrong", body))[0] == 401
        assert (await at.post("secret", {"messages": 1}))[0] == 400
        async with at.rollout() as (_, episode):
            pass
        got: list[tuple[int, Any]] = []
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                got.append(await at.post("secret", body))

            nursery.start_soon(ask)
            await trio.sleep(0.3)
            assert not got
            assert await sessions.run(episode, "", 60.0, "[]")
        status, said = got[0]
        assert (status, said["choices"][0]["message"]["content"]) == (200, "Hello.")


async def test_a_session_whose_client_left_before_it_began_waits_for_another(tmp_path: Path) -> None:
    async with stand(tmp_path, lambda *_: "Hello.", session_key='"secret"') as at:
        async with at.rollout() as (_, episode):
            pass
        finished: list[bool] = []
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                finished.append(await at.generator._sessions.run(episode, "", 60.0, "[]"))

            nursery.start_soon(wait)
            await trio.sleep(0.1)
            head = "POST /rl/start_session HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\n\r\n"
            async with await trio.open_tcp_stream("127.0.0.1", int(at.url.rpartition(":")[2])) as stream:
                await stream.send_all(head.encode())
        assert finished == [False]
