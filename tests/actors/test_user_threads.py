"""Code of users that blocks an actor's event loop is interrupted, and its place is named."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from actors import user_threads
from actors.tool_executor import ToolExecutor
from actors.user_threads import Watchdog, interruptible
from agent_rl.environments.base import BlockedError, Observation
from agent_rl.environments.tools import tool
from agent_rl.messages import Judgement, JudgementReply, ObserveTurn, Transcript
from agent_rl_contract import builders
from agent_rl_contract.builders import tool_call
from agent_rl_contract.stage import running, stand_ins
from examples.quickstart.arithmetic import Arithmetic
from tests.actors.test_tool_executor import Ask, asker
from tests.actors.topologies import micro
from tests.builders import wanted


@pytest.fixture(autouse=True)
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
        with contextlib.suppress(Exception):
            await sleeps()


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
    assert "(test_user_threads.py, line " in said


@pytest.mark.real_time
async def test_only_code_of_users_is_interrupted_and_only_where_it_does_not_turn_the_loop() -> None:
    turns = 0
    async with watched():
        await trio.sleep(0.2)
        time.sleep(0.4)  # noqa: ASYNC251  an actor's own work, which loads a model perhaps
        with interruptible(0.15):
            until = trio.current_time() + 0.4
            while trio.current_time() < until:
                await trio.lowlevel.checkpoint()
                turns += 1
    assert turns > 10


class Blocks(Arithmetic):
    """Blocks the executor wherever it is asked, when the rollout says so."""

    observes = True

    async def judge(self, problem: Any, transcript: Any, context: Any) -> Judgement:
        if transcript.text == "block":
            time.sleep(1e9)  # noqa: ASYNC251
        return Judgement(1, success=True)

    async def observe(self, problem: Any, transcript: Any, state: bytes, context: Any) -> Observation:
        while True:
            pass


@tool(name="blocks")
async def blocks() -> str:
    """Block."""
    time.sleep(1e9)  # noqa: ASYNC251
    return ""


@pytest.mark.real_time
async def test_an_executor_outlives_judges_observers_and_tools_that_block_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Arithmetic, "judge", Blocks.judge)
    monkeypatch.setattr(Arithmetic, "observe", Blocks.observe)
    monkeypatch.setattr(Arithmetic, "tools", (blocks,))
    monkeypatch.setattr("actors.user_threads.PAUSE_SECONDS", 0.1)
    topology = micro(tmp_path, tool_executor={"judge_seconds": 0.15, "observe_seconds": 0.15, "wall_seconds": 0.15})
    replies: dict[str, JudgementReply] = {}

    async def judged(ask: Ask, text: str, number: int) -> None:
        asked = replace(wanted("4", "4", f"{text}-{number}"), transcript=Transcript((text,)))
        replies[asked.rollout] = await ask(asked)

    async with (
        stand_ins(topology, "tool_executor") as stage,
        running(ToolExecutor, topology, "tool_executor", tmp_path, stage),
    ):
        await stage.started("tool_executor.0")
        ask = asker(stage)
        async with watched():
            async with trio.open_nursery() as asking:
                for number in range(3):
                    for text in ("block", "sound"):
                        asking.start_soon(partial(judged, ask, text, number))
            turns = stage["rollout_generator"].call("turns", "tool_executor.0")
            observed = await turns(ObserveTurn("r/0/0", builders.problem(), Transcript(("a",)), b"", 7))
            result = await ask(tool_call({}, "blocks"))
    said = "fails with BlockedError: it held the event loop for 0.15 s without an await"
    for number in range(3):
        assert replies[f"block-{number}"].fault.startswith(f"Arithmetic.judge {said}")
        assert "(test_user_threads.py, line " in replies[f"block-{number}"].fault
        assert replies[f"sound-{number}"].judgement == Judgement(1.0, success=True)
    assert f"observe {said}" in observed.fault
    assert "(test_user_threads.py, line " in observed.fault
    assert result.outcome == "timeout"


@pytest.mark.real_time
async def test_what_blocks_from_the_start_on_is_reported_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An actor that is started again gets at once what blocked it before, and its thread may never come to look."""
    monkeypatch.setattr("actors.user_threads.TICK_SECONDS", 60.0)
    with (tmp_path / "report").open("w+") as file:
        async with watched(silent_seconds=3.0, report=file.fileno()):
            await trio.testing.wait_all_tasks_blocked()
            time.sleep(1.2)  # noqa: ASYNC251
        file.seek(0)
        assert "test_user_threads.py" in file.read()
