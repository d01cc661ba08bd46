"""The evaluator: stands where a learner would, in a run that trains nothing and asks a model its problems.

::

    model.path --> PolicyPublished(0, 0) --> generators answer --> filter judges --> EvaluationReady --> finished

The policy published is the one that engines serve as they start, so no weights are copied and torch is not loaded.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import PositiveFloat

from actors.base import Actor, Announce, Call, Push, Settings, ask
from agent_rl.config.topology import Topology
from agent_rl.figures import ActorFigures, LearnerFigures
from agent_rl.messages import (
    CheckpointSaved,
    EngineLoad,
    EvaluationReady,
    Policy,
    PolicyPublished,
    Recorded,
    StageEntered,
    StageRecorded,
    StepReady,
    StepTrained,
    TrainingGroup,
    TransferOffer,
    TransferWanted,
    WeightsPart,
    WeightsWanted,
)


class EvaluatorSettings(Settings):
    """How long the filter may take to answer."""

    record_timeout_seconds: PositiveFloat = 120.0
    """Of one answer of the filter."""


class Evaluator(Actor):
    """Enters the one stage there is, and waits for its result; the journal holds all there is to go on from."""

    concurrency = 1
    single = True
    drain_order = 30
    Settings = EvaluatorSettings
    receives = (
        Push(TrainingGroup, required=False),
        Push(StepReady, required=False),
        Push(EvaluationReady),
        Announce(EngineLoad, required=False),
        Call(WeightsWanted, WeightsPart, required=False),
        Call(TransferWanted, TransferOffer, required=False),
    )
    """A learner's. No weights are ever asked for: every host has the model that is evaluated."""
    links: ClassVar = {
        "policy": Announce(PolicyPublished),
        "stages": Call(StageEntered, StageRecorded, awaited_in_handler=False),
        "steps": Call(StepTrained, Recorded, awaited_in_handler=False),
        "checkpoints": Call(CheckpointSaved, Recorded, awaited_in_handler=False),
    }
    """A learner's, so that only the class line differs; nothing goes over the last two."""

    @classmethod
    def check(cls, topology: Topology, settings: EvaluatorSettings) -> list[str]:
        """There is one stage, an evaluation, of a model that is on disk."""
        del settings
        kinds = [stage.kind for stage in topology.stages]
        if kinds != ["evaluate"]:
            return [f"an evaluator takes one evaluate stage, and the stages are {', '.join(kinds)}; a learner trains"]
        if topology.model.path is None:
            return ["an evaluator needs a trained model: set model.path"]
        return []

    async def start(self) -> None:
        """Ask for the evaluation."""
        self._evaluation: EvaluationReady | None = None
        self.context.nursery.start_soon(self._evaluate)

    async def handle(self, message: Any) -> None:
        """Take the result."""
        match message:
            case EvaluationReady():
                self._evaluation = message
            case EngineLoad():
                pass
            case _:
                await super().handle(message)

    async def _evaluate(self) -> None:
        # Not restored: the epoch stays 0, and with it the policy is the one that engines serve as they start.
        entered = StageEntered(0, 0, 0, restored=False)
        timeout = self.context.settings.record_timeout_seconds
        recorded: StageRecorded = await ask(self.context.link("stages"), entered, timeout=timeout, log=self.log)
        uri = str(self.context.topology.model.path)
        self.context.link("policy").set(PolicyPublished(Policy(recorded.epoch, 0), uri, 0, 0))

    def status(self) -> tuple[str, ActorFigures]:
        """Finished once the result is there."""
        state = "running" if self._evaluation is None else "finished"
        return state, ActorFigures(learner=LearnerFigures(stages=1, stage=0))

    def waiting_for(self) -> str:
        """The evaluation, until it is there."""
        return "" if self._evaluation else "roc_filter: the evaluation"
