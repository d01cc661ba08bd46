"""Environments that answer turns in real executors: within a deadline, with their faults told, and wherever a rollout
goes on.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.tool_executor import ToolExecutor
from actors.weights.files import model_directory
from agent_rl.config.topology import EnvironmentEntry, Topology
from agent_rl.environments.base import Observation
from agent_rl.messages import EnvironmentMessage, ObserveTurn, Sampling, Trajectory, Transcript, TurnObserved
from agent_rl_contract.generator_bench import Talkative
from agent_rl_contract.stage import running, stand_ins
from tests import builders
from tests.actors.test_rollout_generator import scripted
from tests.actors.topologies import micro

EXECUTOR, GENERATOR = "tool_executor.0", "rollout_generator.0"
GAME = builders.problem(environment="game")


class Keeper(Talkative):
    """Keeps what the model wrote in its snapshot; asked about the second turn for the first time, it never answers."""

    held: trio.Event
    asked = 0

    async def observe(self, problem: Any, transcript: Any, state: bytes, context: Any) -> Observation:
        turn = len(transcript.texts)
        if turn == 2:
            Keeper.asked += 1
            if Keeper.asked == 1:
                Keeper.held.set()
                await trio.sleep_forever()
        kept = state + transcript.texts[-1].encode()
        return Observation([{"role": "user", "content": f"so far: {kept.decode()}"}], kept, done=turn == 3)


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


def with_game(topology: Topology, cls: type, *, executors: int = 1) -> Topology:
    entry = EnvironmentEntry(**{"class": f"{__name__}:{cls.__name__}", "name": "game"})
    actor = topology.actors["tool_executor"].model_copy(update={"replicas": executors})
    actors = {**topology.actors, "tool_executor": actor}
    return topology.model_copy(update={"environments": (entry,), "actors": actors})


@pytest.mark.real_time
async def test_what_an_environment_does_wrong_is_told_with_its_place(tmp_path: Path) -> None:
    topology = with_game(micro(tmp_path, tool_executor={"observe_seconds": 0.5}), Odd)
    answers: dict[str, TurnObserved] = {}
    async with (
        stand_ins(topology, "tool_executor") as stage,
        running(ToolExecutor, topology, "tool_executor", tmp_path, stage),
    ):
        await stage.started(EXECUTOR)
        turns = stage["rollout_generator"].call("turns", EXECUTOR)
        for text in ("raise", "hang", "text", "large", "code", "deadline", "end"):
            asked = ObserveTurn("s0-g000000/0/0", GAME, Transcript(("a", text)), b"kept", 7)
            answers[text] = await turns(asked)
    start = "environment 'game': "
    assert answers["raise"].fault.startswith(
        f"{start}observe fails with ValueError: no such room (test_observing.py, line "
    )
    assert answers["hang"].fault.startswith(f"{start}observe took longer than its deadline (test_observing.py, line ")
    assert answers["text"].fault.startswith(f"{start}observe returned 'go on'; return an Observation")
    assert "(test_observing.py, line " in answers["text"].fault
    assert answers["large"].fault.startswith(f"{start}the state of an Observation is 70000 bytes")
    assert answers["code"] == TurnObserved((EnvironmentMessage(2, "user", "42\n"),), b"kept")
    assert answers["deadline"].messages[0].content.endswith(" 7 s0-g000000/0/0")
    assert answers["end"] == TurnObserved(state=b"kept", done=True)


@pytest.mark.real_time
async def test_a_rollout_goes_on_at_another_executor_with_the_same_state(tmp_path: Path) -> None:
    """The executor that was asked about the second turn is killed; the other one knows all that the first one knew."""
    topology = with_game(micro(tmp_path), Keeper, executors=2)
    model = model_directory(topology, tmp_path)

    generates = scripted(model, lambda number, _: "abc"[number - 1])

    @asynccontextmanager
    async def executor(stage: Any, replica: int) -> Any:
        async with running(ToolExecutor, topology, "tool_executor", tmp_path, stage, replica=replica, kill=True):
            await stage.started(f"tool_executor.{replica}")
            yield

    Keeper.held, Keeper.asked = trio.Event(), 0
    with trio.fail_after(60):
        async with (
            stand_ins(topology, "rollout_generator", "tool_executor") as stage,
            executor(stage, 1),
            running(generates, topology, "rollout_generator", tmp_path, stage),
        ):
            stage["learner"].announce("policy", GENERATOR).set(builders.published(3))
            async with executor(stage, 0):
                push = stage["kv_scheduler"].push("requests", GENERATOR)
                await push.send(builders.request(problem=GAME, sampling=Sampling(1.0, 900, 5)))
                await Keeper.held.wait()
            made: Trajectory = await stage["roc_filter"].receive(Trajectory)
    assert (made.status, made.transcript.texts) == ("finished", ("a", "b", "c"))
    assert [reply.content for reply in made.transcript.replies] == ["so far: a", "so far: ab", "so far: abc"]
    assert Keeper.asked == 2
