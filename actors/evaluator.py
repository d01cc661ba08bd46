"""The evaluator: takes the learner's place in a run that only evaluates a model and trains nothing.

::

    model.path --> PolicyPublished(0, 0) --> generators answer --> filter judges --> EvaluationReady --> finished

Engines load this policy when they start. So no weights are copied, and torch is not loaded in the evaluator.
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
    PolicyPublished,
    PolicyVersion,
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
    """Time limits of the evaluator."""

    record_timeout_seconds: PositiveFloat = 120.0
    """Seconds to wait for one answer of the filter."""


class Evaluator(Actor):
    """Enter the only stage, and wait for its result. The journal holds the state that a restarted run needs."""

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
    """The same as a learner's. Nobody asks an evaluator for weights: every host has the evaluated model."""
    links: ClassVar = {
        "policy": Announce(PolicyPublished),
        "stages": Call(StageEntered, StageRecorded, awaited_in_handler=False),
        "steps": Call(StepTrained, Recorded, awaited_in_handler=False),
        "checkpoints": Call(CheckpointSaved, Recorded, awaited_in_handler=False),
    }
    """The same as a learner's, so that only the class line of a topology differs. The last two are unused."""

    @classmethod
    def check(cls, topology: Topology, settings: EvaluatorSettings) -> list[str]:
        """The topology must have exactly one stage, an evaluation, and a model that is on disk."""
        del settings
        kinds = [stage.kind for stage in topology.stages]
        if kinds != ["evaluate"]:
            return [f"an evaluator takes one evaluate stage, and the stages are {', '.join(kinds)}; a learner trains"]
        if topology.model.path is None:
            return ["an evaluator needs a trained model: set model.path"]
        return []

    async def start(self) -> None:
        """Start the evaluation."""
        self._evaluation: EvaluationReady | None = None
        self.context.nursery.start_soon(self._evaluate)

    async def handle(self, message: Any) -> None:
        """Store the result."""
        match message:
            case EvaluationReady():
                self._evaluation = message
            case EngineLoad():
                pass
            case _:
                await super().handle(message)

    async def _evaluate(self) -> None:
        # restored=False keeps the epoch at 0: engines serve the policy of epoch 0 and version 0 when they start.
        entered = StageEntered(0, 0, 0, restored=False)
        timeout = self.context.settings.record_timeout_seconds
        recorded: StageRecorded = await ask(self.context.link("stages"), entered, timeout=timeout, log=self.log)
        uri = str(self.context.topology.model.path)
        self.context.link("policy").set(PolicyPublished(PolicyVersion(recorded.epoch, 0), uri, 0, 0))

    def status(self) -> tuple[str, ActorFigures]:
        """``finished`` once the result has arrived."""
        state = "running" if self._evaluation is None else "finished"
        return state, ActorFigures(learner=LearnerFigures(stages=1, stage=0))

    def waiting_for(self) -> str:
        """The evaluation, until its result has arrived."""
        return "" if self._evaluation else self.context.wait(EvaluationReady, "the evaluation")
