"""The rollout generator among stand-ins, in virtual time: the agent loop, tool failures, cancellation, new policies."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from actors.engines.base import EngineError
from actors.engines.scripted import ScriptedEngine
from actors.rollout_generator import RolloutGenerator
from actors.testing import Stage, running, stand_ins
from actors.weights import model_directory
from agent_rl.messages import (
    EngineLoad,
    GroupsUnwanted,
    Policy,
    Sampling,
    ToolCall,
    ToolResult,
    Trajectory,
)
from tests import builders
from tests.actors.topologies import micro

CALL = (
    '<tool_call>{"name": "python_code_with_standard_io", "arguments": {"code": "print(2+2)", "input": ""}}</tool_call>'
)
ANSWER = "<answer>\\boxed{4}</answer>"
GENERATOR = "rollout_generator.0"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generator")
    return model_directory(micro(folder), folder)


def result(call: ToolCall, outcome: Any = "success", stdout: str = "4\n", stderr: str = "") -> ToolResult:
    return ToolResult(call.call, outcome, stdout, stderr, "", 0.0, 0.001)


@asynccontextmanager
async def generator(folder: Path, model: Path, script: Any, *, reply: Any = result, **settings: Any):
    """A generator with a scripted engine, a policy published, and an executor that answers with ``reply``."""
    topology = micro(folder, rollout_generator=settings)

    class Scripted(RolloutGenerator):
        def _make_engine(self, directory: Path, settings: Any) -> Any:
            return ScriptedEngine(model, initial_policy=Policy(0, 0), script=script)

    (folder / "model").symlink_to(model)
    async with stand_ins(topology, "rollout_generator", concurrency={"tool_executor": 8}) as stage:
        stage["tool_executor"].reply = reply
        stage["learner"].announce("policy", GENERATOR).set(builders.published(3))
        async with running(Scripted, topology, "rollout_generator", folder, stage) as actor:
            yield stage, actor


async def ask(stage: Stage, *, acks: list[str] | None = None, **changes: Any) -> None:
    request = builders.request(**{"sampling": Sampling(1.0, 120, 3), **changes})
    seen = acks if acks is not None else []
    await stage["kv_scheduler"].push("requests", GENERATOR).send(request, on_ack=lambda: seen.append(request.rollout))


def simulate(main: Any) -> None:
    """Threads load the tokenizer, so the clock moves by itself only once they are done."""
    trio.run(main, clock=MockClock(rate=50.0))


def two_turns(number: int, _: Any) -> str:
    return CALL if number == 1 else ANSWER


def test_a_rollout_calls_its_tool_and_answers(tmp_path: Path, model: Path) -> None:
    async def main() -> None:
        async with generator(tmp_path, model, two_turns) as (stage, actor):
            acks: list[str] = []
            await ask(stage, acks=acks)
            made: Trajectory = await stage["roc_filter"].receive(Trajectory)
            assert (made.status, made.turns, made.text) == ("finished", 2, f"{CALL}\n{ANSWER}")
            (call,) = stage["tool_executor"].log
            assert (call.tool, call.session) == ("python_code_with_standard_io", "s0-g000000/0/0")
            assert call.arguments == {"code": "print(2+2)", "input": ""}
            assert made.calls[0].outcome == "success"
            assert set(made.policies[:, 1].tolist()) == {3}
            second = actor._engine.requests[1]
            written = made.loss_mask.tolist().index(0)
            response = made.tokens[made.loss_mask == 0].tolist()
            assert list(second.tokens) == [*made.prompt_tokens, *made.tokens[:written], *response]
            assert actor._engine.released == ["s0-g000000/0/0"]
            await trio.sleep(5)
            assert acks == ["s0-g000000/0/0"]  # only after the filter had acknowledged the trajectory

    simulate(main)


NOTEBOOK = '<tool_call>{"name": "jupyter_code", "arguments": {"code": "CODE"}}</tool_call>'


def test_cells_of_a_notebook_are_numbered_run_in_order_and_know_what_the_state_consists_of(
    tmp_path: Path, model: Path
) -> None:
    def script(number: int, _: Any) -> str:
        turns = ["".join(NOTEBOOK.replace("CODE", code) for code in codes) for codes in ("ab", "c")]
        return [*turns, ANSWER][number - 1]

    def reply(call: ToolCall) -> ToolResult:
        kept = call.arguments["code"] != "b"  # that one ended its process
        return ToolResult(call.call, "success" if kept else "timeout", "4", "", "", 0.0, 0.001, kept)

    async def main() -> None:
        async with generator(tmp_path, model, script, reply=reply) as (stage, _):
            await ask(stage, sampling=Sampling(1.0, 400, 4))
            made: Trajectory = await stage["roc_filter"].receive(Trajectory)
            calls = stage["tool_executor"].log
            assert [(call.cell, call.arguments["code"], call.earlier) for call in calls] == [
                (1, "a", ()),
                (2, "b", ("a",)),
                (3, "c", ("a",)),
            ]
            assert [record.outcome for record in made.calls] == ["success", "timeout", "success"]

    simulate(main)


def test_several_calls_of_a_turn_run_at_once_and_come_back_in_order(tmp_path: Path, model: Path) -> None:
    calls = [CALL.replace("2+2", str(n)) for n in (1, 2)]

    async def main() -> None:
        both = trio.Event()
        under_way: list[str] = []

        async def slow_first(call: ToolCall) -> ToolResult:
            number = call.arguments["code"][6]
            under_way.append(number)
            if len(under_way) == 2:
                both.set()
            with trio.fail_after(30):
                await both.wait()
            return result(call, stdout=number)

        async def reply(call: ToolCall) -> ToolResult:
            return await slow_first(call)

        def script(number: int, _: Any) -> str:
            return "".join(calls) if number == 1 else ANSWER

        async with generator(tmp_path, model, script, reply=reply) as (stage, actor):
            await ask(stage, sampling=Sampling(1.0, 300, 3))
            made: Trajectory = await stage["roc_filter"].receive(Trajectory)
            assert len(made.calls) == 2
            response = actor._chat.decode(made.tokens[made.loss_mask == 0].tolist())
            assert response.index("<tool_response>1<") < response.index("<tool_response>2<")

    simulate(main)


def test_what_is_no_call_and_unknown_tools_go_back_to_the_model(tmp_path: Path, model: Path) -> None:
    turns = ["<tool_call>{not json}</tool_call>", CALL.replace("python_code_with_standard_io", "search"), ANSWER]

    def reply(call: ToolCall) -> ToolResult:
        return result(call, "unknown_tool", "", "there is no tool 'search'")

    async def main() -> None:
        async with generator(tmp_path, model, lambda number, _: turns[number - 1], reply=reply) as (stage, actor):
            await ask(stage, sampling=Sampling(1.0, 400, 4))
            made: Trajectory = await stage["roc_filter"].receive(Trajectory)
            assert [call.outcome for call in made.calls] == ["malformed", "unknown_tool"]
            assert made.status == "finished"
            assert "there is no tool 'search'" in actor._chat.decode(made.tokens.tolist())

    simulate(main)


def test_a_tool_service_that_cannot_run_a_call_fails_the_rollout_not_the_model(tmp_path: Path, model: Path) -> None:
    async def main() -> None:
        def reply(call: ToolCall) -> ToolResult:
            return result(call, "unavailable")

        async with generator(tmp_path, model, two_turns, reply=reply, tool_attempts=2) as (stage, _):
            await ask(stage)
            made: Trajectory = await stage["roc_filter"].receive(Trajectory)
            assert made.status == "failed"
            assert "no executor ran it in 2 attempts" in made.reason
            assert len(stage["tool_executor"].log) == 2

    simulate(main)


def test_an_engine_that_cannot_take_a_request_fails_the_rollout(tmp_path: Path, model: Path) -> None:
    async def main() -> None:
        async with generator(tmp_path, model, lambda *_: EngineError("900 tokens do not fit 256")) as (stage, _):
            await ask(stage)
            made: Trajectory = await stage["roc_filter"].receive(Trajectory)
            assert (made.status, made.reason) == ("failed", "900 tokens do not fit 256")

    simulate(main)


def test_a_rollout_asked_for_twice_is_sampled_once_and_answers_both(tmp_path: Path, model: Path) -> None:
    async def main() -> None:
        async with generator(tmp_path, model, two_turns) as (stage, actor):
            acks: list[str] = []
            await ask(stage, acks=acks)
            await ask(stage, acks=acks)
            await stage["roc_filter"].receive(Trajectory)
            await trio.sleep(5)
            assert len(acks) == 2
            assert len(actor._engine.requests) == 2  # two turns of one rollout
            assert sum(isinstance(message, Trajectory) for message in stage["roc_filter"].log) == 1

    simulate(main)


def test_rollouts_nobody_wants_are_cancelled_others_go_on(tmp_path: Path, model: Path) -> None:
    async def main() -> None:
        hold = trio.Event()

        async def reply(call: ToolCall) -> ToolResult:
            await hold.wait()
            return result(call)

        async with generator(tmp_path, model, two_turns, reply=reply) as (stage, _):
            for number in (0, 1):
                await ask(stage, rollout=f"s0-g{number:06d}/0/0", group=f"s0-g{number:06d}")
            await stage["tool_executor"].receive(ToolCall)
            stage["kv_scheduler"].announce("unwanted", GENERATOR).set(GroupsUnwanted(("s0-g000001",)))
            made: Trajectory = await stage["roc_filter"].receive(Trajectory)
            assert (made.group, made.status) == ("s0-g000001", "cancelled")
            hold.set()
            other: Trajectory = await stage["roc_filter"].receive(Trajectory)
            assert (other.group, other.status) == ("s0-g000000", "finished")

    simulate(main)


def test_a_policy_published_in_flight_shows_on_every_later_token(tmp_path: Path, model: Path) -> None:
    async def main() -> None:
        async def reply(call: ToolCall) -> ToolResult:
            stage["learner"].announce("policy", GENERATOR).set(builders.published(4))
            with trio.fail_after(30):
                await actor._engine.swapped.wait()
            return result(call)

        async with generator(tmp_path, model, two_turns, reply=reply) as (stage, actor):
            await ask(stage)
            made: Trajectory = await stage["roc_filter"].receive(Trajectory)
            versions = made.policies[made.loss_mask > 0, 1].tolist()
            assert versions == sorted(versions)
            assert set(versions) == {3, 4}
            while True:
                load: EngineLoad = await stage["kv_scheduler"].receive(EngineLoad)
                if load.policy == Policy(1, 4):
                    break

    simulate(main)
