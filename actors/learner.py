"""The learner: walks the recipe's stages, trains on groups as steps become ready, publishes every policy.

::

    stages --> sft: demonstrations --> Trainer
           --> evaluate: publish, wait for EvaluationReady
           --> rl: StepReady + its TrainingGroups --> Trainer.rl_step --> weights out --> PolicyPublished, StepTrained

The learner owns the position in the recipe. A checkpoint holds weights, optimizer and position. The learner saves a
checkpoint at the end of every stage. Within a stage, checkpoints come by steps (rl) or by time (sft).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import Any, ClassVar

import trio

from actors.base import Announce, Call, Push
from actors.weights.keeper import LearnerSettings, ModelKeeper
from agent_rl.config.topology import EvaluateStage, RlStage, SftStage
from agent_rl.data.conversations import endless
from agent_rl.figures import (
    ActorFigures,
    LearnerFigures,
    StageFigures,
    SupervisedFigures,
    TrainingFigures,
    from_object,
    row,
)
from agent_rl.learning.batching import Masked, SupervisedBatches
from agent_rl.learning.collapse import CollapseWatch
from agent_rl.learning.collapse import message as collapse_message
from agent_rl.learning.finite import NotFiniteError, SkippedSteps, TrainingStoppedError
from agent_rl.messages import (
    CheckpointSaved,
    EngineLoad,
    Evaluation,
    EvaluationReady,
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
from agent_rl.records.checkpoint_files import Position


class Learner(ModelKeeper):
    """`handle` only stores incoming messages. One task walks the recipe, and torch runs in one thread."""

    concurrency = 1
    single = True
    drain_order = 30
    drain_seconds = 120.0
    Settings = LearnerSettings
    receives = (
        Push(TrainingGroup),
        Push(StepReady),
        Push(EvaluationReady),
        Announce(EngineLoad),
        Call(WeightsWanted, WeightsPart, required=False),
        Call(TransferWanted, TransferOffer, required=False),
    )
    links: ClassVar = {
        "policy": Announce(PolicyPublished),
        "stages": Call(StageEntered, StageRecorded, awaited_in_handler=False),
        "steps": Call(StepTrained, Recorded, awaited_in_handler=False),
        "checkpoints": Call(CheckpointSaved, Recorded, awaited_in_handler=False),
    }

    async def start(self) -> None:
        """Load the newest whole checkpoint, or the model that the run starts from. Then start to walk the recipe."""
        await self._start_model()
        self._groups: dict[str, TrainingGroup] = {}
        self._steps: dict[int, StepReady] = {}
        self._evaluations: dict[Evaluation, EvaluationReady] = {}
        self._arrived = trio.Event()
        self._stopping = False
        self._ended = trio.Event()
        self._state = "starting"
        self._sft_figures: SupervisedFigures | None = None
        self._figures = LearnerFigures(stages=len(self.context.topology.stages))
        self._skipped = SkippedSteps()
        self._before_skipped = self._position
        self._idle_seconds = 0.0
        self._trained_tokens = 0
        self.context.nursery.start_soon(self._walk)

    async def stop(self) -> None:
        """Finish the current step and save a checkpoint."""
        self._stopping = True
        self._wake()
        await self._ended.wait()
        await self._publisher.settled()
        self._weights.remove()

    async def handle(self, message: Any) -> Any:
        """Store an incoming message for the recipe task; answer requests for published weights."""
        match message:
            case WeightsWanted() | TransferWanted():
                return await self._hand_out(message)
            case TrainingGroup():
                self._groups[message.group] = message
            case StepReady():
                if message.version >= self._position.version:
                    self._steps[message.version] = message
            case EvaluationReady():
                self._evaluations[message.evaluation] = message
            case EngineLoad():
                self._publisher.served(message.generator, message.policy)
                return None
            case _:
                await super().handle(message)
        self._wake()
        return None

    def _wake(self) -> None:
        self._arrived.set()
        self._arrived = trio.Event()

    # The recipe

    async def _walk(self) -> None:
        stages = self.context.topology.stages
        self._state = "running"
        restored = True
        left: StageFigures | None = None
        while not self._stopping:
            position = self._position
            reply: StageRecorded = await self._ask(
                "stages",
                StageEntered(
                    position.stage,
                    position.stage_version,
                    position.version,
                    restored,
                    left,
                    self._mark.run,
                    self._mark.step,
                ),
            )
            self._epoch, restored = reply.epoch, False
            self._mark = replace(self._mark, run=reply.run)
            self._figures = LearnerFigures(stages=len(stages), stage=position.stage)
            if position.stage >= len(stages):
                await self._publish()
                await self._publisher.settled()
                self._state = "finished"
                break
            stage = stages[position.stage]
            self.log.info(
                "stage",
                stage=position.stage,
                name=stage.name,
                kind=stage.kind,
                version=position.version,
                step=position.step,
            )
            began = self.context.now()
            self._sft_figures = None
            self._skipped = SkippedSteps()
            match stage:
                case SftStage():
                    done = (self._past_limit() and not position.step) or await self._sft(stage)
                case EvaluateStage():
                    done = await self._evaluate(position.stage)
                case RlStage():
                    done = await self._rl(stage)
            if not done:
                break
            left = StageFigures(
                stage=position.stage, stage_seconds=self.context.now() - began, supervised=self._sft_figures
            )
            await self._next_stage()
        if self._state != "finished" and not restored and not self._begins_sft():  # `restored`: no step since then
            await self._checkpoint()
        self._ended.set()

    def _begins_sft(self) -> bool:
        """Whether a supervised stage has done no step yet, so that the previous stage's checkpoint suffices."""
        position, stages = self._position, self.context.topology.stages
        return not position.step and position.stage < len(stages) and stages[position.stage].kind == "sft"

    async def _next_stage(self) -> None:
        version = self._position.version
        self._groups.clear()
        self._steps.clear()
        self._position = Position(self._position.stage + 1, version, version)
        await self._checkpoint()

    async def _sft(self, stage: SftStage) -> bool:
        """Train on demonstrations, from the checkpoint's position on. False when the run stops before the end."""
        began_at = self._position.step
        batches = await self._in_thread(partial(self._batches, stage))
        figures = SupervisedFigures()
        if began_at:
            self._skipped.count = self._supervised["skipped"]
            figures = self._sft_figures = from_object(SupervisedFigures, self._supervised["figures"])
        self._figures = replace(self._figures, step=began_at, steps=stage.steps)
        began = self._going_since = self._saved_at = self.context.now()
        for step in range(began_at, stage.steps):
            if self._stopping:
                return False
            if self._past_limit():
                break
            try:
                figures = await self._in_thread(partial(self._sft_step, batches, stage, step))
                self._skipped.trained()
            except NotFiniteError as fault:
                await self._skip(stage, step, fault, self._position)
            figures = self._sft_figures = replace(figures, steps=step + 1, steps_skipped=self._skipped.count)
            self._position = replace(self._position, step=step + 1)
            self._supervised = {
                "drawn": batches.drawn,
                "skipped": self._skipped.count,
                "figures": asdict(figures),
            }
            self._figures = replace(
                self._figures,
                step=step + 1,
                loss=figures.loss,
                seconds_per_step=(self.context.now() - began) / (step + 1 - began_at),
            )
            if (step + 1) % 20 == 0:
                self.log.info("sft step", step=step + 1, **row(figures))
            if self._due_in_time() and not self._skipped.in_a_row and step + 1 < stage.steps:
                await self._checkpoint()
        self._trainer.optimizer.reset()  # the moments of the supervised loss do not fit the next stage's loss
        at = self._position
        self._position = Position(at.stage, at.stage_version, at.version + 1)
        return True

    def _batches(self, stage: SftStage) -> SupervisedBatches[Any]:
        """The stage's batches, from the present position on."""
        topology = self.context.topology
        rng = random.Random(f"{topology.run.seed}/sft/{self._position.stage}")
        conversations: Iterator[Any]
        encode: Callable[[Any], Masked] = self._chat.conversation_tokens
        if stage.data:
            conversations, longest = endless(stage.data, self.context.base, rng), float(self._trainer.max_length)
        else:
            conversations, longest = self._environments.tasks().demonstrations(rng), math.inf
            encode = self._chat.demonstration_tokens
        batches = SupervisedBatches(conversations, encode, batch=stage.batch, longest=longest, rng=rng)
        if self._position.step:
            batches.skip(self._position.step, self._supervised["drawn"])
        return batches

    def _sft_step(self, batches: Iterator[list[Masked]], stage: SftStage, step: int) -> SupervisedFigures:
        return self._trainer.sft_step(next(batches), stage, step)

    async def _evaluate(self, index: int) -> bool:
        """Publish the policy, and wait until the generators have answered all held-out problems."""
        await self._publish()
        while Evaluation(index) not in self._evaluations:
            if self._stopping:
                return False
            self._waiting_for = "roc_filter: the evaluation"
            await self._arrived.wait()
            self._waiting_for = ""
        self.log.info("evaluation", **self._evaluations[Evaluation(index)].figures.row())
        return True

    async def _rl(self, stage: RlStage) -> bool:
        """Train the steps of GRPO-RoC. Each step starts as soon as the filter has closed it."""
        at_its_start = self._position.version == self._position.stage_version
        if stage.reset_optimizer and at_its_start:
            self._trainer.optimizer.reset()
        self._watch = CollapseWatch(stage.collapse, None if at_its_start else self._watched)
        await self._publish()
        self._figures = replace(self._figures, step=self._position.step, steps=stage.steps)
        self._stage_began, self._stage_began_at = (
            self.context.now(),
            self._position.version - self._position.stage_version,
        )
        while self._position.version - self._position.stage_version < stage.steps and not self._past_limit():
            ready = await self._next_step()
            if ready is None:
                return not self._stopping
            await self._step(stage, ready)
        return await self._interim_evaluations(stage)

    async def _interim_evaluations(self, stage: RlStage) -> bool:
        """Wait for the unfinished evaluations of this rl stage. False when the run stops meanwhile."""
        expected = {Evaluation(self._position.stage, step) for step in stage.evaluation_steps}
        while not expected <= self._evaluations.keys() and not self._past_limit():
            if self._stopping:
                return False
            self._waiting_for = f"roc_filter: {len(expected - self._evaluations.keys())} evaluations within the stage"
            with trio.move_on_after(self._seconds_left()):
                await self._arrived.wait()
            self._waiting_for = ""
        return True

    async def _next_step(self) -> StepReady | None:
        """The next step with all its groups; None when the run must stop or its time limit is reached."""
        waited_from = self.context.now()
        try:
            while not self._stopping and not self._past_limit():
                ready = self._steps.get(self._position.version)
                if ready is not None and all(group in self._groups for group in ready.groups):
                    return ready
                here = 0 if ready is None else sum(group in self._groups for group in ready.groups)
                missing = "" if ready is None else f", {len(ready.groups) - here} of its groups"
                self._waiting_for = f"roc_filter: step {self._position.version}{missing}"
                with trio.move_on_after(self._seconds_left()):
                    await self._arrived.wait()
            return None
        finally:
            self._waiting_for = ""
            self._idle_seconds += self.context.now() - waited_from

    async def _step(self, stage: RlStage, ready: StepReady) -> None:
        at = self._position
        groups = [self._groups.pop(group) for group in ready.groups]
        del self._steps[ready.version]
        began = self.context.now()
        step = at.version - at.stage_version
        fault: NotFiniteError | None = None
        try:
            figures = await self._in_thread(lambda: self._trainer.rl_step(groups, stage, step))
        except NotFiniteError as error:
            fault, figures = error, TrainingFigures(skipped=True)
        self._position = Position(at.stage, at.stage_version, at.version + 1)
        await self._publish()
        seconds = self.context.now() - began
        figures = replace(
            figures,
            train_seconds=seconds,
            idle_seconds=self._idle_seconds,
            published=self._publisher.take_figures(),
        )
        await self._ask("steps", StepTrained(at.stage, at.version, ready.groups, figures))
        self._mark = replace(self._mark, step=max(at.version, self._mark.step))
        self._trained_tokens += figures.trained_tokens
        trained = bool(groups) and fault is None
        self._figures = replace(
            self._figures,
            step=step + 1,
            trained_tokens=self._trained_tokens,
            success=ready.figures.sampled.success,
            staleness_mean=ready.figures.staleness_mean if trained else None,
            staleness_max=ready.figures.staleness_max if trained else None,
            entropy=figures.entropy,
            train_seconds=seconds,
            seconds_per_step=(self.context.now() - self._stage_began) / (step + 1 - self._stage_began_at),
            environments=ready.figures.environments,
        )
        self.log.info("step", version=at.version, **row(ready.figures) | row(figures))
        if fault is not None:
            await self._skip(stage, step, fault, at)
        elif trained:
            self._skipped.trained()
        collapsed = self._watch.step(step + 1, ready.figures.sampled, figures.entropy)
        if collapsed:
            await self._collapsed(stage, step + 1, collapsed)
        self._checkpoint_due |= self._position.version % self.context.topology.run.checkpoint_every == 0
        if self._checkpoint_due and not self._skipped.in_a_row:  # a stopped run resumes before the first
            await self._checkpoint()

    async def _skip(self, stage: SftStage | RlStage, step: int, fault: NotFiniteError, at: Position) -> None:
        """Count a skipped step; ``at`` is the position before it. Raises TrainingStoppedError at the third in a row."""
        self.log.warning("step skipped", stage=stage.name, step=step + 1, fault=str(fault))
        if not self._skipped.in_a_row:
            self._before_skipped = at
        if not self._skipped.skipped(step + 1, fault):
            return
        if isinstance(stage, RlStage):
            await self._checkpoint(self._before_skipped, keep_all=True)
        raise TrainingStoppedError(self._skipped.message(stage.name, self._checkpoints.newest()))

    async def _collapsed(self, stage: RlStage, step: int, fault: str) -> None:
        """Save a checkpoint, keep all older ones, and stop the run with TrainingStoppedError."""
        best = self._checkpoints.of_version(self._watch.best_version) or self._checkpoints.newest()
        await self._checkpoint(keep_all=True)
        began_with = "the model the run began with"
        raise TrainingStoppedError(collapse_message(stage.name, step, fault, str(best or began_with)))

    def _past_limit(self) -> bool:
        return self._seconds_left() <= 0.0

    def _seconds_left(self) -> float:
        """Seconds until the run's time limit; infinite without a limit."""
        limit = self.context.topology.run.max_minutes
        if limit is None:
            return math.inf
        return max(0.0, self.context.started_at + limit * 60.0 - self.context.wall())

    def status(self) -> tuple[str, ActorFigures]:
        """The position and the last step's figures."""
        return self._state, ActorFigures(learner=self._figures)

    def waiting_for(self) -> str:
        """The step or the evaluation that the learner waits for."""
        return self._waiting_for
