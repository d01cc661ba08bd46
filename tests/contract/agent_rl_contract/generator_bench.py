"""The bench of the generator's contract: the generator under test, its scripted engine, and its peers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from actors.base import Actor
from agent_rl.environments.base import ChatMessages, Environment, Model, TaskSource, Tools
from agent_rl.environments.python_tools import PYTHON_TOOL
from agent_rl.messages import (
    Judgement,
    Problem,
    RolloutRequest,
    Sampling,
    ToolCall,
    ToolOutcome,
    ToolResult,
    Trajectory,
    Transcript,
)
from agent_rl_contract.base import RoleContract
from agent_rl_contract.builders import published, request
from agent_rl_contract.stage import Stage, stand_ins
from agent_rl_contract.sums import SumTasks

if TYPE_CHECKING:
    from agent_rl_contract.scripted import ScriptedEngine

GENERATOR = "rollout_generator.0"
TALKATIVE = "agent_rl_contract.generator_bench:Talkative"
OWN_LOOP = "agent_rl_contract.generator_bench:asks_twice"
Script = Callable[[int, Any], Any]
"""From a turn's number and the engine's request to the turn's text, or to an exception to raise."""


def result(call: ToolCall, outcome: ToolOutcome = "success", stdout: str = "4\n", stderr: str = "") -> ToolResult:
    """An executor's answer to a call."""
    return ToolResult(call.call, outcome, stdout, stderr, "", 0.0, 0.001)


class Talkative(Environment):
    """An environment that answers turns."""

    observes = True

    def __init__(self, *, seed: int, base: Path) -> None:
        """Any seed gives the same environment."""

    def problems(self) -> TaskSource:
        """Sums."""
        return SumTasks(0)

    def prompt(self, problem: Problem) -> ChatMessages:
        """The problem's text."""
        return [{"role": "user", "content": problem.text}]

    def judge_at_once(self, problem: Problem, transcript: Transcript) -> Judgement:
        """A rollout of two turns is right."""
        del problem
        return Judgement(float(len(transcript.texts) == 2), len(transcript.texts) == 2)


async def asks_twice(problem: Problem, model: Model, tools: Tools) -> None:
    """A loop of the environment's own: it asks twice whether the model is sure."""
    del tools
    messages = [{"role": "user", "content": problem.text}]
    for question in ("Are you sure?", "Really?"):
        messages.append({"role": "assistant", "content": await model(messages)})
        messages.append({"role": "user", "content": question})
    await model(messages)


class Bench:
    """The generator under test, its engine, and its peers."""

    def __init__(self, stage: Stage, actor: Actor, engine: ScriptedEngine) -> None:
        self.stage = stage
        self.actor = actor
        self.engine = engine
        self.acknowledged: list[str] = []

    async def ask(self, **changes: Any) -> RolloutRequest:
        """Send a request as the scheduler."""
        message = request(**{"sampling": Sampling(1.0, 160, 3), **changes})
        link = self.stage["kv_scheduler"].push("requests", GENERATOR)
        await link.send(message, on_ack=lambda: self.acknowledged.append(message.rollout))
        return message

    async def trajectory(self) -> Trajectory:
        """The next trajectory that the filter receives."""
        made: Trajectory = await self.stage["roc_filter"].receive(Trajectory)
        return made

    @property
    def trajectories(self) -> list[Trajectory]:
        """All trajectories that the filter has received."""
        return [message for message in self.stage["roc_filter"].log if isinstance(message, Trajectory)]


class GeneratorBench(RoleContract):
    """Runs the generator with a scripted engine, which its settings name."""

    role: ClassVar[str] = "rollout_generator"
    malformed: ClassVar[str | None] = "<tool_call>{not json}</tool_call>"
    """A malformed call; None when the format has none."""

    def call_text(self, code: str) -> str:
        """A call that runs this Python, as the model writes it."""
        return f"<tool_call>{json.dumps({'name': PYTHON_TOOL, 'arguments': {'code': code}})}</tool_call>"

    def answer_text(self, answer: str) -> str:
        """An answer as the model writes it: a turn without a call."""
        return f"<answer>\\boxed{{{answer}}}</answer>"

    def two_turns(self, number: int, _: Any) -> str:
        """A script: a call, then an answer."""
        return self.call_text("print(2+2)") if number == 1 else self.answer_text("4")

    @asynccontextmanager
    async def bench(
        self,
        folder: Path,
        script: Script | None = None,
        *,
        reply: Callable[[Any], Any] = result,
        version: int | None = 3,
        **changes: Any,
    ) -> AsyncIterator[Bench]:
        """A started generator. ``version`` is the policy published to it; ``changes`` are of its topology."""
        self._engines: list[ScriptedEngine] = []
        topology = self.topology(folder, script=script or self.two_turns, **changes)
        async with stand_ins(topology, self.role, concurrency={"tool_executor": 64, "roc_filter": 64}) as stage:
            stage["tool_executor"].reply = reply
            if version is not None:
                stage["learner"].announce("policy", GENERATOR).set(published(version))
            async with self.started(topology, stage) as actor:
                yield Bench(stage, actor, self._engines[-1])

    @asynccontextmanager
    async def started(
        self, topology: Any, stage: Stage, *, incarnation: int = 1, kill: bool = False
    ) -> AsyncIterator[Actor]:
        """Run the generator, and wait until it has started."""
        async with self.running(topology, stage, incarnation=incarnation, kill=kill) as actor:
            await stage.started(GENERATOR)
            yield actor

    def topology(self, folder: Path, *, script: Script | None = None, **changes: Any) -> Any:
        """A topology with the scripted engine in the generator's settings."""
        topology = super().topology(folder, **changes)
        engine = {"script": script or self.two_turns, "made": self._engines.append}
        entry = topology.actors[self.role]
        settings = {**entry.settings, "engine": "agent_rl_contract.scripted:ScriptedEngine", "engine_settings": engine}
        return topology.model_copy(
            update={"actors": {**topology.actors, self.role: entry.model_copy(update={"settings": settings})}}
        )


def sample(number: int) -> dict[str, Any]:
    """The fields of a request for one sample of the first group."""
    return {"rollout": f"s0-g000000/{number}/0", "sample": number, "seed": 100 + number}
