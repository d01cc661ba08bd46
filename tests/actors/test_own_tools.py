"""Tools and environments of the user's own in a real executor: on the host and in the sandbox, with state, and all that
can go wrong with them.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from actors import user_threads
from actors.tool_executor.user_code import LAST_CALLS, Unanswered
from actors.user_threads import Deadline, DeadlineError, Threads, Watchdog, interruptible
from agent_rl.config.topology import EnvironmentEntry
from agent_rl.environments.base import BlockedError, Context, Observation, ToolOutput
from agent_rl.environments.python_tools import PYTHON_TOOL, python
from agent_rl.environments.tools import tool
from agent_rl.messages import (
    ActorStatus,
    EnvironmentMessage,
    Judgement,
    JudgementReply,
    ObserveTurn,
    ToolResult,
    Transcript,
    TurnObserved,
)
from agent_rl_contract import builders
from agent_rl_contract.builders import problem, tool_call
from agent_rl_contract.generator_bench import Talkative
from examples.quickstart.arithmetic import Arithmetic
from tests.actors.sandboxed import in_the_sandbox
from tests.actors.test_tool_executor import Ask, asker, executing, serving
from tests.actors.topologies import micro
from tests.builders import wanted

HELD = threading.Event()


@tool
async def ask_the_problem(*, context: Context) -> dict[str, Any]:
    """What the context says."""
    ran = await context.execute("print(6 * 7)")
    checked = await context.check("builtins:str", "checked")
    return {
        "problem": context.problem.text,
        "seed": context.seed,
        "rollout": context.rollout,
        "ran": ran.stdout,
        "checked": checked,
        "in_time": 0 < context.deadline <= 4,
    }


@tool
def count(word: str, *, state: dict[str, int]) -> int:
    """Counts words."""
    state[word] = state.get(word, 0) + 1
    return state[word]


@tool
def misbehave(how: str, *, state: list[str]) -> Any:
    """Does what it is told to."""
    state.append(how)
    match how:
        case "raise":
            raise RuntimeError("on purpose")
        case "exit":
            sys.exit(3)
        case "leave":
            os._exit(7)
        case "none":
            return None
        case "nan":
            return {"x": float("nan")}
        case "huge":
            return "x" * 10**6
        case "output":
            return ToolOutput("success", value=7)  # type: ignore[arg-type]
        case "no json":
            state.append(object())  # type: ignore[arg-type]
        case "hang":
            HELD.wait(30)
    return "fine"


@tool(seconds=0.2)
async def wait_for_ever() -> str:
    """Waits."""
    await trio.sleep_forever()
    return ""


class Handwritten:
    """A tool that is no function."""

    name = "reverse"
    schema: ClassVar[dict[str, Any]] = {
        "type": "function",
        "function": {"name": "reverse", "description": "Reverses.", "parameters": {"type": "object", "properties": {}}},
    }
    runs, stateful, seconds = "host", False, None

    async def call(self, arguments: Any, state: bytes, context: Context) -> str:
        return str(arguments["text"])[::-1]

    def render(self, output: ToolOutput) -> str:
        return f"<{output.value}>"


OWN = (ask_the_problem, count, misbehave, wait_for_ever, in_the_sandbox, Handwritten(), python)


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Arithmetic, "tools", OWN)
    HELD.clear()


@pytest.mark.real_time
async def test_any_number_of_tools_at_once_with_state_context_and_sandbox(tmp_path: Path) -> None:
    async with serving(tmp_path) as ask:
        first = await ask(tool_call({"word": "a"}, "count"))
        second = await ask(tool_call({"word": "a"}, "count", state=first.state or b""))
        assert (first.value, first.state, second.value, second.state) == ("1", b'{"a": 1}', "2", b'{"a": 2}')
        assert json.loads((await ask(tool_call({}, "ask_the_problem"))).value) == {
            "problem": "What is 2 + 2?", "seed": 7, "rollout": "s0-g000000/0/0", "ran": "42\n", "checked": "checked",
            "in_time": True,
        }  # fmt: skip
        assert (await ask(tool_call({"text": "abc"}, "reverse"))).value == "cba"
        assert (await ask(tool_call({"code": "print(1)"}, PYTHON_TOOL))).stdout == "1\n"
        unknown = await ask(tool_call({"code": "print(1)"}, "nothing"))
        assert unknown.stderr == f"there is no tool 'nothing'; there is {', '.join(each.name for each in OWN)}"
        apart = await ask(tool_call({"path": str(tmp_path)}, "in_the_sandbox"))
        assert (apart.outcome, apart.stdout, apart.value[-1]) == ("success", "looking\n", "1")
        again = await ask(tool_call({"path": "/"}, "in_the_sandbox", state=apart.state or b""))
        assert (again.value, 0 < again.run_seconds < 4) == ("True 2", True)
        assert (await ask(tool_call({"path": 1}, "in_the_sandbox"))).outcome == "malformed"


@pytest.mark.real_time
async def test_what_a_tool_does_wrong_is_an_outcome_with_the_line_in_the_log(tmp_path: Path) -> None:
    wrong = ["raise", "exit", "leave", "none", "nan", "huge", "output", "no json"]

    with capture_logs() as logs:
        async with serving(tmp_path, output_bytes=5000) as ask:
            found: dict[str, ToolResult] = {
                how: await ask(tool_call({"how": how}, "misbehave", state=b'["before"]')) for how in (*wrong, "well")
            }
            found["apart"] = await ask(tool_call({"path": "raise"}, "in_the_sandbox"))
    assert found.pop("well").state == b'["before", "well"]'
    outcomes = {how: result.outcome for how, result in found.items()}
    assert outcomes == dict.fromkeys([*wrong, "apart"], "error") | {"huge": "output_limit"}
    assert found.pop("huge").value.endswith("[cut after 5000 bytes]\n")
    assert all(result.state is None for result in found.values())
    said = {how: result.stderr for how, result in found.items()}
    assert said["raise"] == "RuntimeError: on purpose"
    assert said["apart"] == "RuntimeError: on purpose\n"
    assert said["exit"] == "SystemExit: 3"
    assert said["leave"] == "SystemExit: os._exit(7) would end the whole actor"
    assert said["none"].startswith("TypeError: the tool returned None; it must return a text")
    assert said["nan"].startswith("ValueError: what the tool returned cannot be written as JSON")
    assert said["output"] == "TypeError: the tool returned a ToolOutput whose value is 7; it must be a text"
    assert said["no json"].startswith("ValueError: the state of the tool cannot be written as JSON")
    failed = {row["error"]: row["where"] for row in logs if row["event"] in {"a tool failed", "a tool raised an error"}}
    line = misbehave.function.__code__.co_firstlineno
    assert failed["RuntimeError: on purpose"].startswith("test_own_tools.py, line ")
    assert failed[said["none"]] == f"test_own_tools.py, line {line}"
    raised = [row["where"] for row in logs if row.get("error", "").startswith("RuntimeError: on purpose")]
    assert len(raised) == len(set(raised)) == 2  # each in its own function


@pytest.mark.real_time
async def test_calls_that_hang_are_given_up_and_the_threads_they_hold_are_bounded_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung: list[ToolResult] = []
    monkeypatch.setattr(Threads.__init__, "__defaults__", (0.3,))
    with capture_logs() as logs:
        monkeypatch.setattr(misbehave, "seconds", 0.5)
        async with serving(tmp_path, threads=2) as ask:

            async def hang(number: int) -> None:
                hung.append(await ask(tool_call({"how": "hang"}, "misbehave", rollout=f"r{number}", state=b'["x"]')))

            async with trio.open_nursery() as nursery:
                for number in range(2):
                    nursery.start_soon(hang, number)
            waiting = await ask(tool_call({}, "wait_for_ever"))
            assert (waiting.outcome, waiting.run_seconds) == ("timeout", pytest.approx(0.2))
            assert (await ask(tool_call({"code": "print(1)"}))).stdout == "1\n"  # what needs no thread goes on
            assert (await ask(tool_call({"word": "a"}, "count"))).outcome == "unavailable"
            HELD.set()
            with trio.fail_after(30):
                while (again := await ask(tool_call({"word": "a"}, "count"))).outcome == "unavailable":
                    pass
            assert again.outcome == "success"
    assert [(result.outcome, result.state) for result in hung] == [("timeout", None)] * 2
    where = [row["where"] for row in logs if row["event"] == "a tool was given up at its deadline"][:2]
    assert len(set(where)) == 1
    assert where[0].startswith("test_own_tools.py, line ")
    said, *_ = (row["why"] for row in logs if row["event"] == "no thread for a tool")
    assert said == f"all 2 threads for code that blocks are taken, 2 of them by calls that hang: misbehave ({where[0]})"


async def test_waiting_for_the_sandbox_does_not_count_for_the_deadline() -> None:
    deadline = Deadline(1.0)
    with deadline.enforced():
        await trio.sleep(0.6)
        with deadline.suspended(), deadline.suspended():
            await trio.sleep(100)
            assert deadline.left == pytest.approx(0.4)
        assert deadline.left == pytest.approx(0.4)
    deadline = Deadline(1.0)
    with pytest.raises(DeadlineError), deadline.enforced():
        await trio.sleep(1.2)


@pytest.mark.real_time
async def test_a_tool_that_holds_threads_is_told_to_the_supervisor(tmp_path: Path) -> None:
    topology = micro(tmp_path, tool_executor={"threads": 4, "wall_seconds": 3.0})
    with trio.fail_after(60):
        async with executing(topology, tmp_path) as stage:
            await asker(stage)(tool_call({"how": "hang"}, "misbehave", state=b'["x"]'))
            while not (status := await stage["supervisor.local"].next(ActorStatus)).missing:
                pass
            HELD.set()
    told = "25 % of the 4 threads or more for tools are held by calls that hang: misbehave (test_own_tools.py, line "
    assert status.missing.startswith(told)


@pytest.mark.real_time
async def test_tools_that_hold_threads_or_never_answer_are_told_with_place_and_share() -> None:
    """Once for as long as it lasts: the words change with the quarters that are held."""
    threads = Threads(8, trio.to_thread.run_sync)
    unanswered, held, said = Unanswered(threads), threading.Event(), []

    def hold(deadline: Deadline) -> None:
        trio.from_thread.run_sync(deadline._scope.cancel)  # its time is over once the thread is here
        held.wait()

    for _ in range(8):
        deadline = Deadline(60.0)
        with suppress(DeadlineError), deadline.enforced():
            await threads.run(partial(hold, deadline), deadline, "holder")
        if unanswered.alarm() not in said:
            said.append(unanswered.alarm())
    shares = [words.partition(" for tools are held by calls that hang: ")[0] for words in said]
    assert shares == ["", *(f"{n} % of the 8 threads or more" for n in (25, 50, 75)), "100 % of the 8 threads"]
    assert "holder (test_own_tools.py, line " in said[-1]
    held.set()
    while threads.hung:  # noqa: ASYNC110  threads come back by themselves
        await trio.sleep(0.01)
    assert unanswered.alarm() == ""
    for number in range(LAST_CALLS):
        unanswered.ended("search", "tools.py, line 7" if number % 2 else "")
    assert unanswered.alarm() == "half of the last calls of search, or more, were given up (tools.py, line 7)"
    unanswered.ended("search")
    unanswered.ended("search")
    assert unanswered.alarm() == ""


class Odd(Talkative):
    """What it does with a turn stands in the turn."""

    async def observe(self, problem: Any, transcript: Any, state: bytes, context: Any) -> Any:
        match transcript.texts[-1]:
            case "raise":
                raise ValueError("no such room")
            case "hang":
                await trio.sleep_forever()
            case "text":
                return "go on"
            case "large":
                return Observation([{"role": "user", "content": "x"}], bytes(70_000))
            case "code":
                ran = await context.execute("print(6 * 7)")
                return Observation([{"role": "user", "content": ran.stdout}])
            case "deadline":
                return Observation(
                    [{"role": "user", "content": f"{context.deadline:.0f} {context.seed} {context.rollout}"}]
                )
        return None


@pytest.mark.real_time
async def test_what_an_environment_does_wrong_with_a_turn_is_told_with_its_place(tmp_path: Path) -> None:
    entry = EnvironmentEntry(**{"class": f"{__name__}:Odd", "name": "game"})
    topology = micro(tmp_path, tool_executor={"observe_seconds": 0.5}).model_copy(update={"environments": (entry,)})
    game, answers = problem(environment="game"), dict[str, TurnObserved]()
    async with executing(topology, tmp_path) as stage:
        turns = stage["rollout_generator"].call("turns", "tool_executor.0")
        for text in ("raise", "hang", "text", "large", "code", "deadline", "end"):
            answers[text] = await turns(ObserveTurn("s0-g000000/0/0", game, Transcript(("a", text)), b"kept", 7))
    start = "environment 'game': "
    assert answers["raise"].fault.startswith(
        f"{start}observe fails with ValueError: no such room (test_own_tools.py, line "
    )
    assert answers["hang"].fault.startswith(f"{start}observe took longer than its deadline (test_own_tools.py, line ")
    assert answers["text"].fault.startswith(f"{start}observe returned 'go on'; return an Observation")
    assert "(test_own_tools.py, line " in answers["text"].fault
    assert answers["large"].fault.startswith(f"{start}the state of an Observation is 70000 bytes")
    assert answers["code"] == TurnObserved((EnvironmentMessage(2, "user", "42\n"),), b"kept")
    assert answers["deadline"].messages[0].content.endswith(" 7 s0-g000000/0/0")
    assert answers["end"] == TurnObserved(state=b"kept", done=True)


# Code that blocks the event loop of an actor is interrupted, and its place is named ------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_threads, "TICK_SECONDS", 0.05)


@asynccontextmanager
async def watched(**options: Any) -> AsyncIterator[None]:
    """A watchdog runs."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Watchdog(**options).run)
        yield
        nursery.cancel_scope.cancel()


async def sleeps() -> None:
    time.sleep(1e9)  # noqa: ASYNC251


async def spins() -> None:
    while True:
        pass


async def sleeps_in_a_nursery() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleeps)


async def catches_each_exception() -> None:
    while True:
        with suppress(Exception):
            await sleeps()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "code", [sleeps, spins, sleeps_in_a_nursery, catches_each_exception], ids=lambda code: code.__name__
)
@pytest.mark.real_time
async def test_what_blocks_the_loop_is_interrupted_where_it_stands(code: Callable[[], Awaitable[None]]) -> None:
    async with watched():
        await trio.sleep(0.15)
        with pytest.raises(BlockedError) as caught, interruptible(0.15):
            await code()
        await trio.sleep(0.15)  # the loop turns on, and nothing else is interrupted
    said = str(caught.value)
    assert said.startswith("it held the event loop for 0.15 s without an await; await what takes long, or run it with ")
    assert "(test_own_tools.py, line " in said


@pytest.mark.real_time
@pytest.mark.usefixtures("quick")
async def test_only_code_of_users_is_interrupted_and_only_where_it_does_not_turn_the_loop() -> None:
    turns = 0
    async with watched():
        await trio.sleep(0.2)
        time.sleep(0.4)  # noqa: ASYNC251  an actor's own work, which loads a model perhaps
        with interruptible(0.15):
            until = trio.current_time() + 0.4
            while trio.current_time() < until or turns <= 10:
                await trio.lowlevel.checkpoint()
                turns += 1


async def judge(self: Arithmetic, problem: Any, transcript: Any, context: Any) -> Judgement:
    if transcript.text == "block":
        time.sleep(1e9)  # noqa: ASYNC251
    return Judgement(1, success=True)


async def observe(self: Arithmetic, problem: Any, transcript: Any, state: bytes, context: Any) -> Observation:
    while True:
        pass


@tool(name="blocks")
async def blocks() -> str:
    """Block."""
    time.sleep(1e9)  # noqa: ASYNC251
    return ""


@pytest.mark.real_time
@pytest.mark.usefixtures("quick")
async def test_an_executor_outlives_judges_observers_and_tools_that_block_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Arithmetic, "judge", judge)
    monkeypatch.setattr(Arithmetic, "observe", observe)
    monkeypatch.setattr(Arithmetic, "tools", (blocks,))
    monkeypatch.setattr(user_threads, "PAUSE_SECONDS", 0.1)
    topology = micro(tmp_path, tool_executor={"judge_seconds": 0.15, "observe_seconds": 0.15, "wall_seconds": 0.15})
    replies: dict[str, JudgementReply] = {}

    async def judged(ask: Ask, text: str, number: int) -> None:
        asked = replace(wanted("4", "4", f"{text}-{number}"), transcript=Transcript((text,)))
        replies[asked.rollout] = await ask(asked)

    async with executing(topology, tmp_path) as stage:
        ask = asker(stage)
        async with watched():
            async with trio.open_nursery() as asking:
                for number in range(3):
                    for text in ("block", "sound"):
                        asking.start_soon(judged, ask, text, number)
            turns = stage["rollout_generator"].call("turns", "tool_executor.0")
            observed = await turns(ObserveTurn("r/0/0", builders.problem(), Transcript(("a",)), b"", 7))
            result = await ask(tool_call({}, "blocks"))
    said = "fails with BlockedError: it held the event loop for 0.15 s without an await"
    for number in range(3):
        assert replies[f"block-{number}"].fault.startswith(f"Arithmetic.judge {said}")
        assert "(test_own_tools.py, line " in replies[f"block-{number}"].fault
        assert replies[f"sound-{number}"].judgement == Judgement(1.0, success=True)
    assert f"observe {said}" in observed.fault
    assert "(test_own_tools.py, line " in observed.fault
    assert result.outcome == "timeout"


@pytest.mark.real_time
async def test_what_blocks_from_the_start_on_is_reported_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An actor that is started again gets at once what blocked it before, and its thread may never come to look."""
    monkeypatch.setattr(user_threads, "TICK_SECONDS", 60.0)
    with (tmp_path / "report").open("w+") as file:
        async with watched(silent_seconds=3.0, report=file.fileno()):
            await trio.testing.wait_all_tasks_blocked()
            until = time.monotonic() + 30
            while not (tmp_path / "report").read_text() and time.monotonic() < until:
                time.sleep(0.05)  # noqa: ASYNC251
        file.seek(0)
        assert "test_own_tools.py" in file.read()
