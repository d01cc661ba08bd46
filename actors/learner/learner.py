"""The learner: walks the recipe's stages, trains on groups as steps become ready, publishes every policy.

::

    stages --> sft: demonstrations --> Trainer
           --> evaluate, select: publish, wait for EvaluationReady
           --> rl: StepReady + its TrainingGroups --> Trainer.rl_step --> weights out --> PolicyPublished, StepTrained

The learner owns the position in the recipe. A checkpoint holds weights, optimizer and position. The learner saves a
checkpoint at the end of every stage. Within a stage, checkpoints come by steps (rl) or by time (sft).
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any, ClassVar

import trio

from actors.base import Actor, ActorContext, Announce, Call, Push, ask
from actors.learner.model import TrainedModel
from actors.weights.settings import LearnerSettings, settings_faults, try_loss_elsewhere
from agent_rl.config.placement import partners
from agent_rl.config.plugins import naming
from agent_rl.config.selection import SelectStage
from agent_rl.config.standard import DEVICE
from agent_rl.config.topology import Collapse, EvaluateStage, RlStage, SftStage, Topology
from agent_rl.figures import (
    ActorFigures,
    LearnerFigures,
    StageFigures,
    SupervisedFigures,
    TrainingFigures,
    from_object,
    row,
)
from agent_rl.learning.advantages import try_advantage
from agent_rl.learning.collapse import CollapseWatch, collapse_message
from agent_rl.learning.finite import NotFiniteError, SkippedSteps, TrainingStoppedError
from agent_rl.learning.forecast import Pace, forecast
from agent_rl.messages import (
    CheckpointSaved,
    DeviceTurn,
    EngineLoad,
    Evaluation,
    EvaluationReady,
    PolicyPublished,
    PolicyVersion,
    RanksState,
    RanksWanted,
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
from agent_rl.records.continuing import Mark
from agent_rl.records.health import LEAST_START, Health, too_low
from agent_rl.records.model_card import Measured
from transport import AnnounceLink, LinkEvent, PeerGone, PeerLeft


def still_on_device(unhandled: Collection[str], gone: Collection[str], sharing: Collection[str]) -> tuple[str, ...]:
    """The generators that still have a shared device: those there that have not handled the learner's turn."""
    return tuple(sorted(set(unhandled) & set(sharing) - set(gone)))


class DeviceTurns:
    """Asks the generators on the learner's devices for their turn, and gives it back."""

    def __init__(self, context: ActorContext, give_back: Callable[[], Awaitable[None]]) -> None:
        """``give_back`` frees what the learner's devices need not hold between two steps."""
        self._context = context
        self._give_back = give_back
        self._link: AnnounceLink | None = context.links.get(DEVICE)
        self._sharing = partners(context.topology, context.name)
        if self._link is not None:
            self._link.set(DeviceTurn(training=False))  # generators begin asleep
        self.waiting_for = ""
        """The reason why the learner waits before it trains; empty when it does not wait."""

    @asynccontextmanager
    async def taken(self, *, needed: bool = True) -> AsyncIterator[None]:
        """Train in this context: the engines are asleep. Without a shared device, or a need, nothing happens.

        A generator that is silent or lost is not waited for, and one that does not answer only for so long.
        """
        link = self._link
        if link is None or not needed:
            yield
            return
        link.set(DeviceTurn(training=True))
        try:
            await self._asleep(link)
            yield
            await self._give_back()
        finally:
            link.set(DeviceTurn(training=False))

    async def _asleep(self, link: AnnounceLink) -> None:
        began, seconds = self._context.now(), self._context.settings.engine_sleep_seconds
        self.waiting_for = self._context.wait(DeviceTurn, "engines on its devices to fall asleep")
        with trio.move_on_after(seconds):
            await link.acknowledged(by=self._sharing)
        self.waiting_for = ""
        log, waited = self._context.log, self._context.now() - began
        if late := still_on_device(link.unhandled, self._context.node.gone, self._sharing):
            log.warning("the learner trains beside engines that are not asleep", generators=list(late), seconds=waited)
        else:
            log.info("engines asleep", seconds=waited)


class Arrivals:
    """Filled by the learner's handler, and emptied by its recipe task, which waits for more."""

    def __init__(self) -> None:
        self.evaluations: dict[Evaluation, EvaluationReady] = {}
        self._groups: dict[str, TrainingGroup] = {}
        self.steps: dict[int, StepReady] = {}
        self._changed = trio.Event()

    def put(self, message: TrainingGroup | StepReady | EvaluationReady, version: int) -> None:
        """Keep a message. ``version`` is that of the next step: a step before it was trained already."""
        match message:
            case TrainingGroup():
                self._groups[message.group] = message
            case StepReady() if message.version >= version:
                self.steps[message.version] = message
            case EvaluationReady():
                self.evaluations[message.evaluation] = message
        self.wake()

    def wake(self) -> None:
        """End all waits: there may be something new to do."""
        self._changed.set()
        self._changed = trio.Event()

    async def wait(self, seconds: float) -> None:
        """Wait for the next message, at most so long."""
        with trio.move_on_after(seconds):
            await self._changed.wait()

    def step(self, version: int) -> tuple[StepReady | None, int]:
        """The step of a version, if it was closed, and how many of its groups are missing."""
        ready = self.steps.get(version)
        return ready, 0 if ready is None else sum(group not in self._groups for group in ready.groups)

    def take(self, ready: StepReady) -> list[TrainingGroup]:
        """The groups of a step of which none is missing, in its order. Step and groups are forgotten."""
        del self.steps[ready.version]
        return [self._groups.pop(group) for group in ready.groups]

    def missing(self, expected: Collection[Evaluation]) -> int:
        """How many of these evaluations have not arrived."""
        return sum(each not in self.evaluations for each in expected)

    def clear(self) -> None:
        """A stage ends: forget its groups and steps."""
        self._groups.clear()
        self.steps.clear()


class Learner(Actor):
    """`handle` only stores incoming messages. One task walks the recipe, and torch runs in one thread."""

    concurrency = 1
    single = True
    ranked = True
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
        DEVICE: Announce(DeviceTurn, required=False),
        "stages": Call(StageEntered, StageRecorded, awaited_in_handler=False),
        "steps": Call(StepTrained, Recorded, awaited_in_handler=False),
        "checkpoints": Call(CheckpointSaved, Recorded, awaited_in_handler=False),
        "ranks": Call(RanksWanted, RanksState, awaited_in_handler=False, required=False),
    }

    @classmethod
    def check(cls, topology: Topology, settings: LearnerSettings) -> list[str]:
        """The faults of these settings: missing packages, and generators that cannot reach published weights."""
        return settings_faults(topology, settings)

    @classmethod
    def probe(cls, topology: Topology, settings: LearnerSettings) -> list[str]:
        """Try the advantage on made-up groups, and a loss of the user's own on a made-up micro-batch."""
        del settings
        with naming("algorithm", "advantage"):
            try_advantage(topology.algorithm.advantage)
        with naming("algorithm", "loss"):
            try_loss_elsewhere(topology.algorithm)
        return []

    async def prepare(self) -> None:
        """Import what trains the model, which takes seconds. A former process has the weights until its end."""
        await self.context.in_thread(self._import)

    @staticmethod
    def _import() -> None:
        import agent_rl.learning.trainer  # noqa: F401

    async def start(self) -> None:
        """Load the newest whole checkpoint, or the model that the run starts from. Then start to walk the recipe."""
        await self.prepared()
        self._model = self._make_model()
        self._turns = DeviceTurns(self.context, self._model.give_memory_back)
        self._position, kept = await self._model.load()
        self._watched = kept.get("watch")
        self._watch = CollapseWatch(Collapse(), self._watched)
        self._pace: Pace | None = None
        self._mark = Mark.of(kept)
        self._measured = [Measured(**each) for each in kept.get("measured", [])]
        """The figures of the evaluations so far, for the cards of checkpoints."""
        self._supervised: dict[str, Any] = kept.get("supervised", {})
        """The rest of the position within a supervised stage."""
        self._epoch = self._publish_from = 0
        self._checkpoint_due = False
        self._waiting_for = ""
        self._arrivals = Arrivals()
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

    def _make_model(self) -> TrainedModel:
        return TrainedModel(self.context)

    def lacking(self) -> str:
        """The hosts that ranks wait for while they start."""
        model: TrainedModel | None = getattr(self, "_model", None)
        return "" if model is None else model.lacking

    async def stop(self) -> None:
        """Finish the current step and save a checkpoint."""
        self._stopping = True
        self._arrivals.wake()
        await self._ended.wait()
        await self._model.publisher.settled()
        await self._model.close()
        self._model.store.remove()

    async def handle(self, message: Any) -> Any:
        """Store an incoming message for the recipe task; answer requests for published weights."""
        match message:
            case WeightsWanted() | TransferWanted():
                return await self._model.hand_out(message, self.sender)
            case TrainingGroup() | StepReady() | EvaluationReady():
                self._arrivals.put(message, self._position.version)
            case EngineLoad():
                self._model.publisher.served(message.generator, message.policy)
            case _:
                await super().handle(message)
        return None

    def peer_changed(self, event: LinkEvent) -> None:
        """An engine that is lost or has left does not hold back what is kept for engines, and passes no weights on."""
        if isinstance(event, PeerGone | PeerLeft):
            self._model.gone(event.peer)

    async def _wait(self, expected: str, seconds: float) -> None:
        """Wait for any message, at most so long. ``expected`` is the message of the filter that is missing."""
        self._waiting_for = self.context.wait(StepReady, expected)
        await self._arrivals.wait(seconds)
        self._waiting_for = ""

    # The recipe

    async def _walk(self) -> None:
        stages = self.context.topology.stages
        self._state = "running"
        restored = True
        left: StageFigures | None = None
        while not self._stopping:
            position = self._position
            at = position.stage, position.stage_version, position.version
            entered = StageEntered(*at, restored, left, self._mark.run, self._mark.step)
            reply: StageRecorded = await self._ask("stages", entered)
            self._epoch, self._publish_from, restored = reply.epoch, reply.version, False
            self._mark = replace(self._mark, run=reply.run)
            self._figures = LearnerFigures(stages=len(stages), stage=position.stage)
            if position.stage >= len(stages):
                await self._publish()
                await self._model.publisher.settled()
                self._model.forget_reference()
                self._state = "finished"
                break
            stage = stages[position.stage]
            about = {"name": stage.name, "kind": stage.kind, "version": position.version, "step": position.step}
            self.log.info("stage", stage=position.stage, **about)
            began = self.context.now()
            self._sft_figures = None
            self._skipped = SkippedSteps()
            match stage:
                case SftStage() | SelectStage() | RlStage() if self._seconds_left() <= 0 and position.begins_stage:
                    done = True
                case SftStage():
                    async with self._turns.taken():
                        done = await self._sft(stage)
                case EvaluateStage() | SelectStage():
                    done = await self._evaluate(position.stage, limited=stage.kind == "select")
                case RlStage():
                    done = await self._rl(stage)
            if not done:
                break
            seconds = self.context.now() - began
            left = StageFigures(stage=position.stage, stage_seconds=seconds, supervised=self._sft_figures)
            await self._next_stage()
        if self._state != "finished" and not restored:  # `restored`: no step since the checkpoint
            current = [stage.kind for stage in stages[self._position.stage :]][:1]
            if self._position.step or current != ["sft"]:  # else the previous stage's checkpoint suffices
                await self._checkpoint()
        await self._model.saving.settled()
        self._ended.set()

    async def _next_stage(self) -> None:
        version = self._position.version
        self._arrivals.clear()
        self._position = Position(self._position.stage + 1, version, version)
        await self._checkpoint()

    async def _sft(self, stage: SftStage) -> bool:
        """Train on demonstrations, from the checkpoint's position on. False when the run stops before the end."""
        began_at = self._position.step
        drawn = self._supervised.get("drawn", [])
        stage, batches = await self._model.in_thread(partial(self._model.batches, stage, self._position, drawn))
        figures = SupervisedFigures()
        if began_at:
            self._skipped.count = self._supervised["skipped"]
            figures = self._sft_figures = from_object(SupervisedFigures, self._supervised["figures"])
        self._figures = replace(self._figures, step=began_at, steps=stage.steps)
        began = self.context.now()
        self._model.saving.begin()
        for step in range(began_at, stage.steps):
            if self._stopping:
                return False
            if self._seconds_left() <= 0.0:
                break
            try:
                figures = await self._model.in_thread(partial(self._model.sft_step, batches, stage, step))
                self._skipped.trained()
            except NotFiniteError as fault:
                await self._skip(stage, step, fault, self._position)
            figures = self._sft_figures = replace(figures, steps=step + 1, steps_skipped=self._skipped.count)
            self._position = replace(self._position, step=step + 1)
            self._supervised = {"drawn": batches.drawn, "skipped": self._skipped.count, "figures": asdict(figures)}
            pace = (self.context.now() - began) / (step + 1 - began_at)
            self._figures = replace(self._figures, step=step + 1, loss=figures.loss, seconds_per_step=pace)
            if (step + 1) % 20 == 0:
                self.log.info("sft step", step=step + 1, **row(figures))
            if self._model.saving.due() and not self._skipped.in_a_row and step + 1 < stage.steps:
                await self._checkpoint(beside=True)
        self._model.trainer.reset_optimizer()  # the moments of the supervised loss do not fit the next stage's loss
        self._position = replace(self._position, version=self._position.version + 1, step=0)
        return True

    async def _evaluate(self, index: int, *, limited: bool) -> bool:
        """Publish the policy, and wait until the generators have answered all problems of the stage."""
        await self._publish()
        began = self.context.now()
        if not await self._evaluated({Evaluation(index)}, limited=limited):
            return False
        ready = self._arrivals.evaluations.get(Evaluation(index))  # None: the time is up
        self._measure()
        if ready is not None and (figures := ready.figures or ready.selection):
            self.log.info("selection" if ready.selection else "evaluation", **figures.row())
            if ready.figures is not None:
                sampled = ready.figures.sampled
                self._alarm(dict(too_low(sampled.success, sampled.answered.reward, LEAST_START)))
                self._pace = Pace.of(ready.figures, self.context.now() - began)
        return True

    def _measure(self) -> None:
        """Keep what the cards of checkpoints say of this stage's evaluations, as far as they are complete."""
        known = {(each.name, each.version) for each in self._measured}
        arrived = self._arrivals.evaluations.items()
        for at, ready in sorted(arrived, key=lambda each: each[0].at_step or 0):
            version = self._position.stage_version + (at.at_step or 0)
            figures = ready.figures if at.stage == self._position.stage else None
            if figures is not None and (figures.name, version) not in known:
                ways = figures.ways().items()
                self._measured += [Measured.of(figures.name, version, way, answers) for way, answers in ways]

    async def _evaluated(self, expected: set[Evaluation], *, limited: bool) -> bool:
        """Wait for these results; ``limited`` by the run's time limit. False when the run stops meanwhile."""
        while (missing := self._arrivals.missing(expected)) and not (limited and self._seconds_left() <= 0.0):
            if self._stopping:
                return False
            await self._wait(f"{missing} evaluations", self._seconds_left() if limited else math.inf)
        return True

    async def _rl(self, stage: RlStage) -> bool:
        """Train the steps of GRPO-RoC. Each step starts as soon as the filter has closed it."""
        at_its_start = await self._model.begin_rl(self._position)
        # More steps than the stage has may be recorded: it was made shorter, or counted groups closed another one.
        self._publish_from = min(self._publish_from, self._position.stage_version + stage.steps)
        if stage.reset_optimizer and at_its_start:
            self._model.trainer.reset_optimizer()
        self._model.trainer.enter(self.context.topology.algorithm_of(stage))
        if at_its_start and self._pace is not None:
            algorithm, update_seconds = self.context.topology.algorithm_of(stage), self._model.trainer.update_seconds
            text = forecast(stage, algorithm, self._pace, update_seconds)
            self._figures = replace(self._figures, forecast=text)
        self._watch = CollapseWatch(stage.collapse, None if at_its_start else self._watched)
        self._health = Health(tools=self._model.tools)
        await self._publish()
        self._figures = replace(self._figures, step=self._position.step, steps=stage.steps)
        self._stage_began = self.context.now()
        self._stage_began_at = self._position.version - self._position.stage_version
        while self._position.version - self._position.stage_version < stage.steps and self._seconds_left() > 0.0:
            ready = await self._next_step()
            if ready is None:
                return not self._stopping
            await self._step(stage, ready)
        within = {Evaluation(self._position.stage, step) for step in stage.evaluation_steps}
        done = await self._evaluated(within, limited=True)
        self._measure()
        return done

    async def _next_step(self) -> StepReady | None:
        """The next step with all its groups; None when the run must stop or its time limit is reached."""
        waited_from = self.context.now()
        try:
            while not self._stopping and self._seconds_left() > 0.0:
                ready, missing = self._arrivals.step(self._position.version)
                if ready is not None and not missing:
                    return ready
                part = f", {missing} of its groups" if missing else ""
                await self._wait(f"step {self._position.version}{part}", self._seconds_left())
            return None
        finally:
            self._idle_seconds += self.context.now() - waited_from

    async def _step(self, stage: RlStage, ready: StepReady) -> None:
        at = self._position
        groups = self._arrivals.take(ready)
        step = at.version - at.stage_version
        fault: NotFiniteError | None = None
        async with self._turns.taken(needed=bool(groups)):
            began = self.context.now()
            try:
                figures = await self._model.in_thread(lambda: self._model.trainer.rl_step(groups, stage, step))
            except NotFiniteError as error:
                fault, figures = error, TrainingFigures(skipped=True)
            self._position = replace(at, version=at.version + 1)
            await self._publish()
        seconds, published = self.context.now() - began, self._model.publisher.take_figures()
        figures = replace(figures, train_seconds=seconds, idle_seconds=self._idle_seconds, published=published)
        await self._ask("steps", StepTrained(at.stage, at.version, ready.groups, figures))
        self._mark = replace(self._mark, step=max(at.version, self._mark.step))
        self._trained_tokens += figures.trained_tokens
        self._alarm(dict(self._health.step(ready.figures, figures)))
        trained = bool(groups) and fault is None
        self._figures = replace(
            self._figures,
            step=step + 1,
            trained_tokens=self._trained_tokens,
            success=ready.figures.sampled.success,
            reward=ready.figures.sampled.reward,
            staleness_mean=ready.figures.staleness_mean if trained else None,
            staleness_max=ready.figures.staleness_max if trained else None,
            entropy=figures.entropy,
            kl=figures.kl,
            train_seconds=seconds,
            seconds_per_step=(self.context.now() - self._stage_began) / (step + 1 - self._stage_began_at),
            environments=ready.figures.environments,
        )
        self.log.info("step", version=at.version, **row(ready.figures) | row(figures))
        if fault is not None:
            await self._skip(stage, step, fault, at)
        elif trained:
            self._skipped.trained()
        if collapsed := self._watch.step(step + 1, ready.figures.sampled, figures.entropy):
            await self._model.saving.settled()
            checkpoints = self._model.checkpoints
            best = checkpoints.of_version(self._watch.best_version) or checkpoints.newest()
            await self._checkpoint(keep_all=True)
            raise TrainingStoppedError(collapse_message(stage.name, step + 1, collapsed, best))
        self._checkpoint_due |= self._position.version % self.context.topology.run.checkpoint_every == 0
        if self._checkpoint_due and not self._skipped.in_a_row and not self._model.saving.beside:
            await self._checkpoint(beside=True)  # not after a skipped step: a stopped run resumes before the first

    def _alarm(self, alarms: dict[str, str]) -> None:
        """These alarms hold from now on; those that begin are logged."""
        for name in alarms.keys() - self._figures.alarms.keys():
            self.log.warning("alarm", alarm=name, text=alarms[name])
        self._figures = replace(self._figures, alarms=alarms)

    async def _skip(self, stage: SftStage | RlStage, step: int, fault: NotFiniteError, at: Position) -> None:
        """Count a skipped step; ``at`` is the position before it. Raises TrainingStoppedError at the third in a row."""
        self.log.warning("step skipped", stage=stage.name, step=step + 1, fault=str(fault))
        if not self._skipped.in_a_row:
            self._before_skipped = at
        if not self._skipped.skipped(step + 1, fault):
            return
        if isinstance(stage, RlStage):
            await self._checkpoint(self._before_skipped, keep_all=True)
        raise TrainingStoppedError(self._skipped.message(stage.name, self._model.checkpoints.newest()))

    # The model

    async def _publish(self) -> None:
        """Publish the present policy and the position in the recipe. Waits only until the weights are copied.

        A restored learner publishes nothing while it trains recorded steps again: engines would sample with policies
        that are too old for the next step.
        """
        if self._position.version < self._publish_from:
            return
        await self._model.publish(PolicyVersion(self._epoch, self._position.version), self._position)

    async def _checkpoint(self, at: Position | None = None, *, keep_all: bool = False, beside: bool = False) -> None:
        """Save weights and optimizer for position ``at`` (default: the present one). Delete all but the newest few.

        ``beside``: return as soon as they are copied, and write while training goes on.
        """
        position, model = at or self._position, self._model
        self._checkpoint_due = False
        await model.saving.settled()
        if position in model.checkpoints.positions():  # a position that is reached again has the same weights
            await self._saved(position, keep_all=keep_all)
            return
        self._watch.saved(position.version)
        extra = {"watch": self._watch.state(), **self._mark.kept()}
        self._measure()
        extra["measured"] = [asdict(each) for each in self._measured]
        extra |= {"supervised": self._supervised} if position.step else {}
        after = partial(self._saved, position, keep_all=keep_all)
        await model.save(position, extra, after, beside=beside)

    async def _saved(self, position: Position, *, keep_all: bool) -> None:
        checkpoints = self._model.checkpoints
        if not keep_all:
            checkpoints.remove_all_but(self.context.topology.run.keep_checkpoints, self._watch.best_version)
        await self._model.describe(position, tuple(self._measured))
        oldest = min(saved.version for saved in checkpoints.positions())
        await self._ask("checkpoints", CheckpointSaved(str(checkpoints.path(position)), position.version, oldest))

    async def _ask(self, link: str, message: Any) -> Any:
        """Tell the filter something to record. The call is repeated when the filter restarts."""
        timeout = self.context.settings.record_timeout_seconds
        beside = isinstance(message, CheckpointSaved) and self._model.saving.beside  # the recipe does not wait for it
        if not beside:
            self._waiting_for = self.context.wait(type(message), f"the answer to {type(message).__name__}")
        try:
            return await ask(self.context.link(link), message, timeout=timeout, log=self.log)
        finally:
            self._waiting_for = self._waiting_for if beside else ""

    def _seconds_left(self) -> float:
        """Seconds until the run's time limit; infinite without a limit."""
        limit = self.context.topology.run.max_minutes or math.inf
        return max(0.0, self.context.started_at + limit * 60.0 - self.context.wall())

    def status(self) -> tuple[str, ActorFigures]:
        """The position and the last step's figures."""
        return self._state, ActorFigures(learner=replace(self._figures, compute_bits=self._model.trainer.compute_bits))

    def detail(self) -> str:
        """The first update while it is computed, which may take minutes."""
        return self._model.trainer.under_way

    def busy_seconds(self) -> float:
        """Seconds in torch: training, and reading and copying weights."""
        return self._model.busy_seconds()

    def waiting_for(self) -> str:
        """The step or the evaluation that the learner waits for."""
        return self._turns.waiting_for or self._waiting_for
