"""The learner: walks the recipe's stages, trains on groups as steps become ready, publishes every policy.

::

    stages --> sft: demonstrations --> Trainer
           --> evaluate: publish, wait for EvaluationReady
           --> rl: StepReady + its TrainingGroups --> Trainer.rl_step --> weights out --> PolicyPublished, StepTrained

It owns the position in the recipe: a checkpoint holds weights, optimizer and position, and a stage's end is always one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import trio
from pydantic import PositiveFloat, PositiveInt

from actors.base import Actor, Announce, Call, Push, Settings, ask
from actors.weights import Checkpoints, PublishedWeights, model_directory
from agent_rl.batching import Masked, bucketed, fitting
from agent_rl.chat_templates import load_tokenizer
from agent_rl.data.conversations import endless
from agent_rl.finite import SKIPPED_FIGURES, NotFiniteError, SkippedSteps, TrainingStoppedError
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
)
from agent_rl.tasks import load_tasks
from agent_rl.topology import EvaluateStage, RlStage, SftStage

if TYPE_CHECKING:
    from torch import Tensor

    from agent_rl.losses import LossSettings, LossSums
    from agent_rl.prompts import ChatFormat
    from agent_rl.training import Position, Trainer

T = TypeVar("T")


class LearnerSettings(Settings):
    """Where and with how many threads to train."""

    threads: PositiveInt = 1
    device: str = "cpu"
    activation_checkpointing: bool = False
    """Keep only each layer's input for the backward pass: a third more work, far less memory."""
    compile: bool = False
    """Compile the model with torch.compile; the first steps take minutes."""
    logits_mib: PositiveInt = 256
    """Memory for logits at once; at the peak three times as much is held."""
    record_timeout_seconds: PositiveFloat = 120.0
    """How long the filter may take to record a step; it is told again, by the restarted learner, after that."""


class Learner(Actor):
    """Messages only fill shelves; the recipe is walked by one task, and torch runs in one thread."""

    concurrency = 1
    single = True
    drain_order = 30
    drain_seconds = 120.0
    Settings = LearnerSettings
    receives = (Push(TrainingGroup), Push(StepReady), Push(EvaluationReady), Announce(EngineLoad))
    links: ClassVar = {
        "policy": Announce(PolicyPublished),
        "stages": Call(StageEntered, StageRecorded, awaited_in_handler=False),
        "steps": Call(StepTrained, Recorded, awaited_in_handler=False),
        "checkpoints": Call(CheckpointSaved, Recorded, awaited_in_handler=False),
    }

    def loss(
        self,
        logprobs: Tensor,
        proximal: Tensor,
        behaviour: Tensor,
        advantages: Tensor,
        mask: Tensor,
        *,
        normaliser: float,
        settings: LossSettings,
    ) -> tuple[Tensor, LossSums]:
        """The loss of one micro-batch (see `agent_rl.losses.Loss`): the one method a learner of your own overrides."""
        from agent_rl.losses import policy_loss

        return policy_loss(logprobs, proximal, behaviour, advantages, mask, normaliser=normaliser, settings=settings)

    async def start(self) -> None:
        """Load the newest whole checkpoint, or the model the run starts from; then walk the recipe."""
        self._thread = trio.CapacityLimiter(1)
        self._busy_seconds = 0.0
        self._trained_tokens = 0.0
        self._began: float | None = None
        self._waiting_for = ""
        self._groups: dict[str, TrainingGroup] = {}
        self._steps: dict[int, StepReady] = {}
        self._evaluations: dict[int, EvaluationReady] = {}
        self._arrived = trio.Event()
        self._stopping = False
        self._ended = trio.Event()
        self._state = "starting"
        self._stage_figures: dict[str, float] = {}
        self._figures: dict[str, float] = {"stages": float(len(self.context.topology.stages))}
        self._weights = PublishedWeights(self.context.directory / "weights")
        self._checkpoints = Checkpoints(self.context.directory / "checkpoints")
        self._position = await self._in_thread(self._load)
        await self._in_thread(self._try_loss)
        self._epoch = 0
        self._skipped = SkippedSteps()
        self._before_skipped = self._position
        self._checkpoint_due = False
        self._idle_seconds = 0.0
        self.context.nursery.start_soon(self._walk)

    async def stop(self) -> None:
        """Let the step under way end, and checkpoint."""
        self._stopping = True
        self._wake()
        await self._ended.wait()
        self._weights.remove()

    async def handle(self, message: Any) -> None:
        """Put what arrives on its shelf."""
        match message:
            case TrainingGroup():
                self._groups[message.group] = message
            case StepReady():
                if message.version >= self._position.version:
                    self._steps[message.version] = message
            case EvaluationReady():
                self._evaluations[message.stage] = message
            case EngineLoad():
                self._weights.served(message.generator, message.policy)
                return
            case _:
                await super().handle(message)
        self._wake()

    def _wake(self) -> None:
        self._arrived.set()
        self._arrived = trio.Event()

    async def _ask(self, link: str, message: Any) -> Any:
        """Tell the filter something it must record; a filter that restarts meanwhile is told again."""
        timeout = self.context.settings.record_timeout_seconds
        self._waiting_for = f"roc_filter: the answer to {type(message).__name__}"
        try:
            return await ask(self.context.link(link), message, timeout=timeout, log=self.log)
        finally:
            self._waiting_for = ""

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Run torch's work in the one thread there is for it; the event loop goes on."""
        self._began = self.context.now()
        try:
            done: T = await self.context.in_thread(work, limiter=self._thread)
            return done
        finally:
            self._busy_seconds += self.context.now() - self._began
            self._began = None

    # The recipe ----------------------------------------------------------------------------------------------------------

    async def _walk(self) -> None:
        stages = self.context.topology.stages
        self._state = "running"
        restored = True
        left: dict[str, float] = {}
        while not self._stopping:
            position = self._position
            reply: StageRecorded = await self._ask(
                "stages", StageEntered(position.stage, position.stage_version, position.version, restored, left)
            )
            self._epoch, restored = reply.epoch, False
            self._figures = {"stages": self._figures["stages"], "stage": float(position.stage)}
            if position.stage >= len(stages):
                await self._publish()
                self._state = "finished"
                break
            stage = stages[position.stage]
            self.log.info("stage", stage=position.stage, name=stage.name, kind=stage.kind, version=position.version)
            began = self.context.now()
            self._stage_figures = {}
            self._skipped = SkippedSteps()
            match stage:
                case SftStage():
                    done = self._past_limit() or await self._sft(stage)
                case EvaluateStage():
                    done = await self._evaluate(position.stage)
                case RlStage():
                    done = await self._rl(stage)
            if not done:
                break
            left = {"stage": float(position.stage), "stage_seconds": self.context.now() - began} | self._stage_figures
            await self._next_stage()
        if self._state != "finished" and not self._in_sft():
            await self._checkpoint()
        self._ended.set()

    def _in_sft(self) -> bool:
        """A supervised stage stopped on its way starts again from where it began: half of it is no place to go on from."""
        stages = self.context.topology.stages
        return self._position.stage < len(stages) and stages[self._position.stage].kind == "sft"

    async def _next_stage(self) -> None:
        from agent_rl.training import Position

        version = self._position.version
        self._groups.clear()
        self._steps.clear()
        self._position = Position(self._position.stage + 1, version, version)
        await self._checkpoint()

    async def _sft(self, stage: SftStage) -> bool:
        """Supervised steps on the task's demonstrations. False when stopped on the way; the stage then starts again."""
        from agent_rl.training import Position

        topology = self.context.topology
        rng = random.Random(f"{topology.run.seed}/sft/{self._position.stage}")
        if stage.data:
            sequences = fitting(
                map(self._chat.conversation_tokens, endless(stage.data, self.context.base, rng)),
                self._trainer.max_length,
            )
        else:
            tasks = load_tasks(topology.tasks, seed=topology.run.seed, base=self.context.base)
            sequences = (self._chat.demonstration_tokens(shown.messages) for shown in tasks.demonstrations(rng))
        batches = bucketed(sequences, stage.batch, rng)
        self._figures |= {"step": 0.0, "steps": float(stage.steps)}
        began = self.context.now()
        for step in range(stage.steps):
            if self._stopping:
                return False
            if self._past_limit():
                break
            try:
                self._stage_figures = await self._in_thread(partial(self._sft_step, batches, stage, step))
                self._skipped.trained()
            except NotFiniteError as fault:
                await self._skip(stage, step, fault, self._position)
            self._stage_figures["steps_skipped"] = float(self._skipped.count)
            self._figures |= {
                "step": step + 1.0,
                "loss": self._stage_figures.get("loss", math.nan),
                "seconds_per_step": (self.context.now() - began) / (step + 1),
            }
            if (step + 1) % 20 == 0:
                self.log.info("sft step", step=step + 1, **self._stage_figures)
        self._trainer.optimizer.reset()  # moments of the supervised loss say nothing about the next stage's
        at = self._position
        self._position = Position(at.stage, at.stage_version, at.version + 1)
        return True

    def _sft_step(self, batches: Iterator[list[Masked]], stage: SftStage, step: int) -> dict[str, float]:
        return self._trainer.sft_step(next(batches), stage, step)

    async def _evaluate(self, index: int) -> bool:
        """Publish, and wait until the generators have answered all held-out problems."""
        await self._publish()
        while index not in self._evaluations:
            if self._stopping:
                return False
            self._waiting_for = "roc_filter: the evaluation"
            await self._arrived.wait()
            self._waiting_for = ""
        self.log.info("evaluation", **self._evaluations[index].figures)
        return True

    async def _rl(self, stage: RlStage) -> bool:
        """Steps of GRPO-RoC, each as soon as the filter has closed it."""
        if stage.reset_optimizer and self._position.version == self._position.stage_version:
            self._trainer.optimizer.reset()
        await self._publish()
        step = float(self._position.version - self._position.stage_version)
        self._figures |= {"step": step, "steps": float(stage.steps)}
        self._stage_began, self._stage_began_at = (
            self.context.now(),
            self._position.version - self._position.stage_version,
        )
        while self._position.version - self._position.stage_version < stage.steps and not self._past_limit():
            ready = await self._next_step()
            if ready is None:
                return not self._stopping
            await self._step(stage, ready)
        return True

    async def _next_step(self) -> StepReady | None:
        """The next step with all its groups; None when the run is to stop, or its time is up."""
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
        from agent_rl.training import Position

        at = self._position
        groups = [self._groups.pop(group) for group in ready.groups]
        del self._steps[ready.version]
        began = self.context.now()
        step = at.version - at.stage_version
        fault: NotFiniteError | None = None
        try:
            figures = await self._in_thread(lambda: self._trainer.rl_step(groups, stage, step))
        except NotFiniteError as error:
            fault, figures = error, dict(SKIPPED_FIGURES)
        self._position = Position(at.stage, at.stage_version, at.version + 1)
        await self._publish()
        seconds = self.context.now() - began
        figures |= {"train_seconds": seconds, "idle_seconds": self._idle_seconds}
        await self._ask("steps", StepTrained(at.stage, at.version, ready.groups, figures))
        self._trained_tokens += figures.get("trained_tokens", 0.0)
        trained = bool(groups) and fault is None
        self._figures |= {
            "step": step + 1.0,
            "trained_tokens": self._trained_tokens,
            "success": ready.figures.get("success", math.nan),
            "staleness_mean": ready.figures.get("staleness_mean", 0.0) if trained else math.nan,
            "staleness_max": ready.figures.get("staleness_max", 0.0) if trained else math.nan,
            "entropy": figures.get("entropy", math.nan),
            "train_seconds": seconds,
            "seconds_per_step": (self.context.now() - self._stage_began) / (step + 1 - self._stage_began_at),
        }
        self.log.info("step", version=at.version, **{**ready.figures, **figures})
        if fault is not None:
            await self._skip(stage, step, fault, at)
        elif trained:
            self._skipped.trained()
        self._checkpoint_due |= self._position.version % self.context.topology.run.checkpoint_every == 0
        if self._checkpoint_due and not self._skipped.in_a_row:  # a run stopped for them goes on from before the first
            await self._checkpoint()

    async def _skip(self, stage: SftStage | RlStage, step: int, fault: NotFiniteError, at: Position) -> None:
        """Count a step that changed nothing, taken at position ``at``. Raises TrainingStoppedError at the third in a row."""
        self.log.warning("step skipped", stage=stage.name, step=step + 1, fault=str(fault))
        if not self._skipped.in_a_row:
            self._before_skipped = at
        if not self._skipped.skipped(step + 1, fault):
            return
        if isinstance(stage, RlStage):
            await self._checkpoint(self._before_skipped, keep_all=True)
        raise TrainingStoppedError(self._skipped.message(stage.name, self._checkpoints.newest()))

    def _past_limit(self) -> bool:
        return self._seconds_left() <= 0.0

    def _seconds_left(self) -> float:
        """Until the run's wall-clock limit; infinite without one."""
        limit = self.context.topology.run.max_minutes
        if limit is None:
            return math.inf
        return max(0.0, self.context.started_at + limit * 60.0 - self.context.wall())

    # Weights and checkpoints -----------------------------------------------------------------------------------------------

    async def _publish(self) -> None:
        """Write the weights of the present policy, once, and announce them with the position in the recipe."""
        policy = Policy(self._epoch, self._position.version)
        path = self._weights.path(policy)
        if not path.exists():
            await self._in_thread(lambda: self._trainer.write_weights(path))
        position = self._position
        self.context.link("policy").set(
            PolicyPublished(policy, path.absolute().as_uri(), position.stage, position.stage_version)
        )
        self._weights.clean(policy)

    async def _checkpoint(self, at: Position | None = None, *, keep_all: bool = False) -> None:
        """Save weights and optimizer as those of ``at`` (without it, the present position); delete the oldest but a few."""
        position = at or self._position
        if position not in self._checkpoints.positions():  # reached again, a position holds the same weights
            await self._in_thread(lambda: self._trainer.save(self._checkpoints.path(position), position))
        self._checkpoint_due = False
        if not keep_all:
            self._checkpoints.remove_all_but(self.context.topology.run.keep_checkpoints)
        oldest = min(saved.version for saved in self._checkpoints.positions())
        saved = CheckpointSaved(str(self._checkpoints.path(position)), position.version, oldest)
        await self._ask("checkpoints", saved)

    def _load(self) -> Position:
        from agent_rl.declared import chat_format
        from agent_rl.policy_model import ModelOptions
        from agent_rl.training import Position, Trainer

        topology = self.context.topology
        settings: LearnerSettings = self.context.settings
        directory = model_directory(topology, self.context.directory)
        self._trainer: Trainer = Trainer(
            directory,
            dtype=topology.model.dtype,
            device=settings.device,
            algorithm=topology.algorithm,
            threads=settings.threads,
            seed=topology.run.seed,
            loss=self.loss,
            options=ModelOptions(
                activation_checkpointing=settings.activation_checkpointing,
                compile=settings.compile,
                logits_mib=settings.logits_mib,
            ),
            lora=topology.model.lora,
            tokenizer=load_tokenizer(directory, topology, self.context.base),
        )
        self._chat: ChatFormat = chat_format(topology, self._trainer.tokenizer)
        newest = self._checkpoints.newest()
        return self._trainer.restore(newest) if newest else Position(0, 0, 0)

    def _try_loss(self) -> None:
        from agent_rl.losses import try_loss

        try_loss(self, self.loss, self._trainer.settings)

    def status(self) -> tuple[str, dict[str, float]]:
        """The position and the last step's figures."""
        return self._state, self._figures

    def waiting_for(self) -> str:
        """The step or the evaluation that is not there yet."""
        return self._waiting_for

    def busy_seconds(self) -> float:
        """Time in torch: training, and reading and writing of weights."""
        return self._busy_seconds + (self.context.now() - self._began if self._began is not None else 0.0)
