"""The tool executor among stand-ins, with its real sandbox: calls, sessions, bad input, fairness."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from actors.sandbox.isolation import control_groups
from actors.sandbox.owner import interpreter
from actors.sandbox.owner.functions import FunctionSandbox
from actors.tool_executor import ToolExecutor
from agent_rl.config.topology import Topology
from agent_rl.environments.base import CheckError
from agent_rl.environments.python_tools import NOTEBOOK_TOOL, PYTHON_TOOL, notebook
from agent_rl.messages import ActorStatus, Judgement, JudgementReply, ToolCall, Transcript
from agent_rl.observe.prometheus import MetricsBoard
from agent_rl_contract.builders import tool_call
from agent_rl_contract.stage import Stage, running, stand_ins
from examples.quickstart.arithmetic import Arithmetic
from tests import builders
from tests.actors.ends import told_at_the_end
from tests.actors.sandbox.running import eventually, living, named
from tests.actors.topologies import micro

pytestmark = pytest.mark.real_time
Ask = Callable[..., Awaitable[Any]]


@asynccontextmanager
async def executing(topology: Topology, folder: Path, cls: type[ToolExecutor] = ToolExecutor) -> AsyncIterator[Stage]:
    """The peers of an executor, which has started."""
    async with stand_ins(topology, "tool_executor") as stage, running(cls, topology, "tool_executor", folder, stage):
        await stage.started("tool_executor.0")
        yield stage


@asynccontextmanager
async def serving(folder: Path, *, cls: type[ToolExecutor] = ToolExecutor, **settings: Any) -> AsyncIterator[Ask]:
    """A way to send a message to an executor."""
    async with executing(micro(folder, tool_executor=settings), folder, cls) as stage:
        yield asker(stage)


async def mistake(folder: Path, **settings: Any) -> str:
    """What the user is told of why an executor does not start."""
    with told_at_the_end() as told:
        async with serving(folder, **settings):
            await trio.sleep_forever()
    return told[0]


def asker(stage: Stage) -> Ask:
    async def ask(message: Any) -> Any:
        return await stage["rollout_generator"].call("tools", "tool_executor.0")(message, timeout=30)

    return ask


def call(arguments: Any, *, tool: str = PYTHON_TOOL, session: str = "r", cell: int = 1, **more: Any) -> ToolCall:
    return tool_call(arguments, tool, rollout=session, number=str(cell), **more)


def cells(*codes: str) -> bytes:
    """The state of a notebook."""
    return json.dumps(codes).encode()


@pytest.fixture
def notebooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool is a notebook."""
    monkeypatch.setattr(Arithmetic, "tools", (notebook,))


BAD = [
    ({"arguments": {}}, "malformed", "the arguments do not fit: code: Field required"),
    ({"arguments": {"code": 1}}, "malformed", "code: Input should be a valid string"),
    ({"arguments": {"code": "1", "input": 3}}, "malformed", "input: Input should be a valid string"),
    ({"arguments": {"code": "#" * 2001}}, "malformed", "the arguments are larger than 2000 bytes"),
    ({"arguments": {"code": "#" + "é" * 1500}}, "malformed", "the arguments are larger than 2000 bytes"),
    ({"arguments": {"code": "1", "input": "x" * 2001}}, "malformed", "are larger than 2000 bytes"),
    ({"arguments": {"code": "1", "timeout": 4.5}}, "malformed", "a call may take up to 4 seconds, not 4.5"),
    ({"arguments": {"code": "1", "timeout": 0}}, "malformed", "timeout: Input should be greater than 0"),
    ({"arguments": {"code": "1", "timeout": True}}, "malformed", "timeout: Input should be a valid number"),
    ({"arguments": {"code": "1"}, "tool": "shell"}, "unknown_tool", "there is no tool 'shell'; there is python_code"),
    ({"arguments": {"code": "1"}, "tool": NOTEBOOK_TOOL}, "unknown_tool", "there is no tool 'jupyter_code'"),
    ({"arguments": {"code": "1"}, "tool": "x" * 10_000}, "unknown_tool", "there is no tool"),
]


async def test_bad_calls_have_a_clear_outcome_and_the_good_ones_among_them_run(tmp_path: Path) -> None:
    async with serving(tmp_path, code_bytes=2000) as ask, trio.open_nursery() as nursery:

        async def pair(index: int, given: dict[str, Any], outcome: str, reason: str) -> None:
            bad = await ask(call(**given))
            assert (bad.outcome, reason in bad.stderr, len(bad.stderr) < 300) == (outcome, True, True)
            good = await ask(call({"code": f"print({index})", "language": "python"}))
            assert (good.outcome, good.stdout) == ("success", f"{index}\n")

        for index, each in enumerate(BAD):  # a batch, as it were
            nursery.start_soon(pair, index, *each)


async def test_a_call_may_ask_for_less_time(tmp_path: Path) -> None:
    async with serving(tmp_path, wall_seconds=25.0, cpu_seconds=25.0) as ask:
        result = await ask(call({"code": "while True: pass", "timeout": 0.3}))
        assert (result.outcome, result.run_seconds < 15) == ("timeout", True)


@pytest.mark.usefixtures("notebooks")
async def test_a_cell_that_is_asked_for_twice_runs_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as ask:
        await ask(call({"code": "x = 1"}, tool=NOTEBOOK_TOOL, cell=1))
        for _ in range(2):
            second = call({"code": "x += 1; print(x)"}, tool=NOTEBOOK_TOOL, cell=2, state=cells("x = 1"))
            assert (await ask(second)).stdout == "2\n"


@pytest.mark.usefixtures("notebooks")
async def test_a_rollout_that_is_over_leaves_nothing(tmp_path: Path) -> None:
    over = call({}, tool="", cell=0, ends=True)
    calls = [call({"code": code}, tool=NOTEBOOK_TOOL, cell=1) for code in (f"{named('over')}x = 1", "x")]
    async with serving(tmp_path) as ask:
        assert (await ask(calls[0])).outcome == "success"
        assert living("over") == 1
        assert (await ask(over)).outcome == "success"
        assert await eventually(lambda: living("over") == 0)
        assert (await ask(over)).outcome == "success"
        anew = await ask(calls[1])
        assert (anew.outcome, "NameError" in anew.stderr) == ("error", True)  # the same call of a new rollout


@pytest.mark.parametrize(("kind", "children"), [("calls", 2), ("checks", 1)])
async def test_a_storm_of_one_rollout_or_group_does_not_starve_another(
    tmp_path: Path, kind: str, children: int
) -> None:
    order: list[str] = []
    async with serving(tmp_path, children=children) as ask, trio.open_nursery() as nursery:

        async def one(name: str, number: int) -> None:
            if kind == "calls":
                await ask(call({"code": "import time; time.sleep(0.05)"}, session=name, cell=number))
            else:
                await ask(builders.wanted("x^2+2x+1", "(x+1)^2", f"{name}/{number}"))
            order.append(name)

        for number in range(40):
            nursery.start_soon(one, "storm", number)
        await trio.testing.wait_all_tasks_blocked()  # all forty have come: in order of arrival, they would be first
        for number in range(4):
            nursery.start_soon(one, "calm" if number % 2 else "quiet", number)
    assert max(index for index, name in enumerate(order) if name != "storm") < 20


@pytest.mark.usefixtures("notebooks")
async def test_what_happened_is_counted_in_the_status_and_for_prometheus(tmp_path: Path) -> None:
    topology = micro(tmp_path, tool_executor={"sessions": 1})
    scraped = topology.run.model_copy(update={"metrics_port": 9100})  # the supervisor's; an actor only sends figures
    topology = topology.model_copy(update={"run": scraped})

    def session(name: str, cell: int, code: str, *earlier: str) -> ToolCall:
        return call({"code": code}, tool=NOTEBOOK_TOOL, session=name, cell=cell, state=cells(*earlier))

    async with executing(topology, tmp_path) as stage:
        ask = asker(stage)
        await ask(session("a", 1, "x = 1"))
        await ask(session("b", 1, "1/0"))  # the other makes room for it
        await ask(session("a", 2, "x", "x = 1"))
        await ask(call({"code": "1"}, tool="shell"))
        await ask(call({"code": "while True: pass", "timeout": 0.2}, tool=NOTEBOOK_TOOL, session="c"))
        for gold in ("42", "x^2"):
            await ask(builders.wanted(gold, "42", gold))
        status: ActorStatus | None = None
        while not (status and status.figures.executor and status.figures.executor.checks == 2):
            status = await stage["supervisor.local"].receive(ActorStatus)
    assert status.detail.startswith("isolation ")
    assert status.figures.executor.calls_per_s > 0
    board = MetricsBoard()
    board.observe(status, 0.0)
    families = {family.name: family.samples for family in text_string_to_metric_families(board.text(0.0))}

    def value(name: str, **labels: str) -> float:
        samples = [s for s in families[name.removesuffix("_total").removesuffix("_count")] if s.name == name]
        (found,) = (s.value for s in samples if labels.items() <= s.labels.items())
        return float(found)

    outcomes = {s.labels["outcome"]: s.value for s in families["agent_rl_tool_calls"] if s.value}
    assert outcomes == {"success": 2, "error": 1, "unknown_tool": 1, "timeout": 1}
    assert value("agent_rl_tool_call_queue_seconds_count") == value("agent_rl_tool_call_run_seconds_count") == 5
    over_tenth = value("agent_rl_tool_call_run_seconds_count") - next(
        s.value for s in families["agent_rl_tool_call_run_seconds"] if s.labels.get("le") == "0.1"
    )
    assert over_tenth >= 1  # the one that ran into its time
    assert value("agent_rl_answer_checks_total", method="judged") == 2
    assert value("agent_rl_answer_check_seconds_count") == 2
    assert value("agent_rl_tool_sessions_evicted_total") == 3  # a for b, b for a, a for c
    assert value("agent_rl_tool_sessions_rebuilt_total") == 1
    assert value("agent_rl_tool_sessions") == value("agent_rl_tool_children") == 0
    assert value("agent_rl_warm_interpreters", runs="checks") == 1
    assert value("agent_rl_tool_isolation", level=status.detail.removeprefix("isolation ")) == 1


async def test_an_executor_that_died_runs_code_again_before_its_checks_are_warm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most of the time lost by its death was the warm-up of the checks. An answer that comes early waits for it."""

    class Restarted(ToolExecutor):
        def __init__(self, context: Any) -> None:
            super().__init__(replace(context, restarted=True))

    warm, run = trio.Event(), FunctionSandbox.run

    async def late(self: FunctionSandbox, **options: Any) -> None:
        await warm.wait()
        await run(self, **options)

    monkeypatch.setattr(FunctionSandbox, "run", late)
    judged: list[JudgementReply] = []

    async def judge(ask: Ask) -> None:
        judged.append(await ask(builders.wanted("\\frac{1}{2}", "0.5")))

    async with serving(tmp_path, cls=Restarted) as ask, trio.open_nursery() as nursery:
        nursery.start_soon(judge, ask)
        ran = await ask(call({"code": "print(6 * 7)"}))
        assert (ran.outcome, ran.stdout) == ("success", "42\n")
        assert not judged
        warm.set()
    assert judged[0].judgement is not None
    assert judged[0].judgement.success


async def test_a_check_without_end_ends_as_not_equal_is_counted_and_holds_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import time\nfrom agent_rl.environments.maths import rewards\ndef check(gold, prediction, problem):\n"
    code += "    while prediction == 'endless': time.sleep(0.1)\n    return rewards.check(gold, prediction, problem)\n"
    (tmp_path / "slow_check.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("agent_rl.environments.maths.environment.CHECK", "slow_check:check")
    monkeypatch.setattr(Arithmetic, "checks", ("slow_check:check",))
    monkeypatch.setattr("actors.sandbox.owner.functions.SHORT_SECONDS", 2.0)
    ended: dict[str, JudgementReply] = {}

    async def one(ask: Ask, name: str, gold: str, prediction: str) -> None:
        ended[name] = await ask(builders.wanted(gold, prediction, name))

    async with serving(tmp_path, check_seconds=6) as ask, trio.open_nursery() as nursery:
        for name in ("a", "b"):
            nursery.start_soon(one, ask, name, "7", "endless")
        await trio.sleep(0.1)
        await one(ask, "good", "\\frac{1}{2}", "0.5")
        assert set(ended) == {"good"}
    judgements = {name: reply.judgement for name, reply in ended.items()}
    assert [judgements[name].success for name in ("a", "b", "good")] == [False, False, True]
    assert {judgements[name].note for name in ("a", "b")} <= {"timeout", "memory_limit"}


async def test_an_isolation_that_cannot_be_had_is_a_mistake_of_the_topology(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(self: Any, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        raise interpreter.NoIsolationError("unshare: Operation not permitted")

    monkeypatch.setattr(interpreter.Interpreter, "run", refuse)
    message = await mistake(tmp_path, isolation="strong")
    assert 'isolation = "strong" is not available on this host: unshare: Operation not permitted' in message
    assert 'isolation = "filtered"' in message


async def test_control_groups_that_cannot_be_had_are_a_mistake_of_the_topology_only_where_they_are_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_groups, "hierarchies", lambda *_: [])
    async with serving(tmp_path, control_groups="host") as ask:
        assert (await ask(call({"code": "1"}))).outcome == "success"
    said = 'control_groups = "required" is not available on this host: memory: no mounted hierarchy has this controller'
    assert (await mistake(tmp_path, control_groups="required")).startswith(f"{said}; pids: ")


async def judge(self: Arithmetic, problem: Any, transcript: Any, context: Any) -> Any:
    """As the rollout's text says."""
    match transcript.text:
        case "raises":
            raise ZeroDivisionError("no")
        case "hangs":
            await trio.sleep_forever()
        case "dies":
            raise CheckError("memory_limit")
        case "none":
            return None
    return Judgement(1, success=True)


async def test_a_judge_that_raises_hangs_or_returns_rubbish_is_a_fault_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Arithmetic, "judge", judge)
    faults = {
        "raises": "fails with ZeroDivisionError: no (test_tool_executor.py, line",
        "hangs": "took longer than judge_seconds = 0.5 (test_tool_executor.py, line",
        "none": "returned None; it must return a Judgement (test_tool_executor.py, line",
    }

    wanted = builders.wanted("4", "4")
    async with serving(tmp_path, judge_seconds=0.5) as ask:
        replies: dict[str, JudgementReply] = {
            text: await ask(replace(wanted, transcript=Transcript((text,)))) for text in (*faults, "dies", "sound")
        }
    for text, said in faults.items():
        assert replies[text].judgement is None
        assert said in replies[text].fault
    assert replies["dies"].judgement == Judgement(0.0, success=False, note="memory_limit")
    assert replies["sound"].judgement == Judgement(1.0, success=True)
