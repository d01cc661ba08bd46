"""Substitutes for real runs of tests: half the answers right, a loss that fails, turns that always call a tool."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trio

from actors.engines.base import Engine, EngineError, ModelError, TurnRequest, TurnResult
from actors.learner import Learner
from actors.roc_filter import RoCFilter
from actors.rollout_generator import RolloutGenerator, RolloutGeneratorSettings
from actors.tool_executor import ToolExecutor, refused
from agent_rl.environments.python_tools import PYTHON_TOOL
from agent_rl.files.disk import whole
from agent_rl.messages import Judgement, PolicyVersion, ToolCall, ToolResult, TrainingGroup, Trajectory
from agent_rl_contract.scripted import ScriptedEngine
from tests.end_to_end.topologies import ANSWER
from transport import Registry, decode, encode

BAD_VERSIONS = "BAD_VERSIONS"
"""The environment's name for the versions at which the loss is NaN."""


class HalfRight(RoCFilter):
    """Every second sample says 4, so that groups about problems whose answer that is carry signal."""

    async def handle(self, message: Any) -> Any:
        if isinstance(message, Trajectory):
            answer = ANSWER if message.sample % 2 else "5"
            transcript = replace(message.transcript, texts=(f"<answer>\\boxed{{{answer}}}</answer>",))
            given = Judgement(float(answer == ANSWER), success=answer == ANSWER, answer=answer)
            message = replace(message, transcript=transcript, judgement=given)
        return await super().handle(message)


class SolvesEven(HalfRight):
    """In select stages, it finds problems with even numbers always right, and the others in every second sample."""

    async def handle(self, message: Any) -> Any:
        if isinstance(message, Trajectory) and message.purpose == "select" and not int(message.group[-6:]) % 2:
            right = Judgement(1.0, success=True, answer=ANSWER)
            return await RoCFilter.handle(self, replace(message, judgement=right))
        return await super().handle(message)


class AnyWeights(ScriptedEngine):
    """Serves whatever is published."""

    async def load_weights(self, path: Path, policy: PolicyVersion) -> None:
        await super().load_weights(Path("/weights"), policy)


class Refuses(AnyWeights):
    """Refuses every prompt."""

    def __init__(self, model_path: Path, **settings: Any) -> None:
        fault = EngineError("the device has fallen off the bus")
        super().__init__(model_path, script=lambda number, request: fault, **settings)


class Rubbish(AnyWeights):
    """Its log-probabilities are not finite."""

    def __init__(self, model_path: Path, **settings: Any) -> None:
        super().__init__(model_path, script=lambda number, request: "4", **settings)

    async def generate(self, request: TurnRequest) -> TurnResult:
        turn = await super().generate(request)
        return replace(turn, logprobs=turn.logprobs * np.float32("nan"))


class Dies(AnyWeights):
    """Starts, and dies of the first turn that it is asked for, every time."""

    def __init__(self, model_path: Path, **settings: Any) -> None:
        super().__init__(model_path, script=lambda number, request: "4", **settings)
        self._asked = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await self._asked.wait()
        raise EngineError("an illegal memory access was encountered")

    async def generate(self, request: TurnRequest) -> TurnResult:
        self._asked.set()
        return await trio.sleep_forever()


class Unservable(Dies):
    """Dies likewise; when it is started again, it finds that its device is gone."""

    def __init__(self, model_path: Path, **settings: Any) -> None:
        super().__init__(model_path, **settings)
        started = Path(os.environ["STARTED"])
        self._gone = started.exists()
        started.touch()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        if self._gone:
            raise ModelError("device: torch has no 'cuda' here")
        await super().run(task_status=task_status)


class NoTools(ToolExecutor):
    """Runs no call."""

    async def execute(self, call: ToolCall) -> ToolResult:
        return refused(call, "unavailable", "no interpreter")


class CallsTools(RolloutGenerator):
    """Its engine writes a call that takes a while, reads the result, and answers 4."""

    def _make_engine(self, directory: Path, settings: RolloutGeneratorSettings) -> Engine:
        code = "import time; time.sleep(0.2); print(2 + 2)"
        call = f'{{"name": "{PYTHON_TOOL}", "arguments": {{"code": "{code}"}}}}'
        turns = (f"<tool_call>{call}</tool_call>", f"<answer>\\boxed{{{ANSWER}}}</answer>")

        def script(_: int, request: TurnRequest) -> str:
            return turns["<tool_response>" in engine.decode(list(request.tokens))]

        engine = AnyWeights(directory, initial_policy=PolicyVersion(0, 0), script=script)
        return engine


class FaultyLearner(Learner):
    """Its loss is NaN in the steps that the environment names."""

    async def start(self) -> None:
        await super().start()
        trainer, loss = self._model.trainer, self._model.trainer.loss
        bad = {int(version) for version in os.environ.get(BAD_VERSIONS, "").split(",") if version}

        def faulty(batch: Any, settings: Any) -> Any:
            terms = loss(batch, settings)
            return replace(terms, objective=terms.objective * (torch.nan if self._position.version in bad else 1.0))

        trainer.loss = faulty


class RecordingLearner(Learner):
    """Keeps the groups of every step that it is about to train; those of a step that it had before must be the same."""

    async def _step(self, stage: Any, ready: Any) -> None:
        folder = self.context.directory / "given" / f"{ready.version:06}"
        given = [[bytes(frame) for frame in encode(self._arrivals._groups[group])] for group in ready.groups]
        if folder.exists():
            assert [frames_of(path) for path in sorted(folder.iterdir())] == given
        else:
            with whole(folder) as partial:
                for index, frames in enumerate(given):
                    part = partial / f"{index:04}"
                    part.mkdir(parents=True)
                    for number, frame in enumerate(frames):
                        (part / f"{number:04}").write_bytes(frame)
        await super()._step(stage, ready)


def frames_of(path: Path) -> list[bytes]:
    return [part.read_bytes() for part in sorted(path.iterdir())]


def groups_given(directory: Path) -> dict[int, list[TrainingGroup]]:
    """By version, in training order, what a run's `RecordingLearner` was given."""
    registry = Registry(TrainingGroup)
    return {
        int(folder.name): [
            decode([memoryview(frame) for frame in frames_of(path)], registry) for path in sorted(folder.iterdir())
        ]
        for folder in sorted((directory / "given").iterdir())
    }


async def branching(problem: Any, model: Any, tools: Any) -> None:
    """A loop whose rollouts are trees: a helper, two turns at once, a history that is rewritten."""
    asked = [{"role": "user", "content": problem.text}]
    said = await model(asked, max_tokens=6)
    helper = model.branch()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(model, asked, max_tokens=6))
        nursery.start_soon(partial(helper, [{"role": "user", "content": "Help."}], max_tokens=6))
    await model([*asked, {"role": "assistant", "content": f"I said {said}"}, {"role": "user", "content": "Sure?"}])
