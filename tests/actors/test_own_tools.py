"""Tools of the user's own in a real executor: on the host and in the sandbox, with state, and all that can go wrong
with them.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest
import trio
from structlog.testing import capture_logs

from actors.tool_executor import ToolExecutor
from actors.tool_executor.user_code import LAST_CALLS, Unanswered
from actors.user_threads import Deadline, DeadlineError, NoThreadError, Threads
from agent_rl.environments.base import SNAPSHOT_BYTES, Context, ToolOutput
from agent_rl.environments.python_tools import PYTHON_TOOL, python
from agent_rl.environments.tools import tool
from agent_rl.messages import ActorStatus, ToolResult
from agent_rl_contract.builders import tool_call
from agent_rl_contract.stage import running, stand_ins
from examples.quickstart.arithmetic import Arithmetic
from tests.actors.sandboxed import in_the_sandbox
from tests.actors.test_tool_executor import asker, serving
from tests.actors.topologies import micro

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
        case "surrogate":
            return "\ud800"
        case "output":
            return ToolOutput("success", value=7)  # type: ignore[arg-type]
        case "state":
            state.append("x" * SNAPSHOT_BYTES)
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
    wrong = ["raise", "exit", "leave", "none", "nan", "huge", "surrogate", "output", "state", "no json"]

    with capture_logs() as logs:
        async with serving(tmp_path, output_bytes=5000) as ask:
            found: dict[str, ToolResult] = {
                how: await ask(tool_call({"how": how}, "misbehave", state=b'["before"]')) for how in (*wrong, "well")
            }
            found["apart"] = await ask(tool_call({"path": "raise"}, "in_the_sandbox"))
    assert found.pop("well").state == b'["before", "well"]'
    outcomes = {how: result.outcome for how, result in found.items()}
    assert outcomes == dict.fromkeys([*wrong, "apart"], "error") | {"huge": "output_limit", "surrogate": "success"}
    assert found.pop("surrogate").value == "?"
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
    assert said["state"].startswith("The state of the tool would take 65")
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
        async with serving(tmp_path, threads=2, wall_seconds=0.5) as ask:

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
            await trio.sleep(0.1)
            assert (await ask(tool_call({"word": "a"}, "count"))).outcome == "success"
    assert [(result.outcome, result.state) for result in hung] == [("timeout", None)] * 2
    where = [row["where"] for row in logs if row["event"] == "a tool was given up at its deadline"][:2]
    assert len(set(where)) == 1
    assert where[0].startswith("test_own_tools.py, line ")
    (said,) = (row["why"] for row in logs if row["event"] == "no thread for a tool")
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
    topology = micro(tmp_path, tool_executor={"threads": 4, "wall_seconds": 0.2})
    with trio.fail_after(60):
        async with stand_ins(topology, "tool_executor") as stage:
            async with running(ToolExecutor, topology, "tool_executor", tmp_path, stage):
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
    for _ in range(8):
        deadline = Deadline(0.02)
        with suppress(DeadlineError), deadline.enforced():
            await threads.run(held.wait, deadline, "holder")
        if unanswered.alarm() not in said:
            said.append(unanswered.alarm())
    shares = [words.partition(" for tools are held by calls that hang: ")[0] for words in said]
    assert shares == ["", *(f"{n} % of the 8 threads or more" for n in (25, 50, 75)), "100 % of the 8 threads"]
    assert said[-1].endswith("holder")
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


@pytest.mark.real_time
async def test_a_thread_that_comes_back_is_no_hung_one_any_more() -> None:
    threads = Threads(1, trio.to_thread.run_sync, wait_seconds=0.05)
    deadline = Deadline(0.1)
    with pytest.raises(DeadlineError, match=r"test_own_tools.py, line \d+"):
        with deadline.enforced():
            await threads.run(lambda: time.sleep(0.4), deadline, "sleeper")
    with pytest.raises(NoThreadError, match=r"all 1 threads .* 1 of them by calls that hang: sleeper \(test_own"):
        await threads.run(lambda: None, Deadline(5.0), "next")
    await trio.sleep(0.5)
    assert threads.hung == {}
    assert await threads.run(lambda: 7, Deadline(5.0), "next") == 7
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 // 0, Deadline(5.0), "next")
