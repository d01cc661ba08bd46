"""The model in training: torch in one thread, checkpoints, published policies."""

from __future__ import annotations

import math
import random
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from actors.base import ActorContext
from actors.learner.other_ranks import OTHER_SECONDS, OtherRanks, RankLostError
from actors.learner.rank import address_of, build
from actors.weights import transfer
from actors.weights.fetch import LINK, host_directory
from actors.weights.files import Checkpoints, PublishedWeights, model_directory
from actors.weights.kept import KeptWeights
from actors.weights.publish import Publisher
from agent_rl.config.addresses import run_digest
from agent_rl.config.topology import RlStage, SftStage
from agent_rl.data.conversations import Conversation
from agent_rl.data.shuffle import Rows, rows_of_epochs, shuffled
from agent_rl.environments.load import Environments
from agent_rl.figures import SupervisedFigures
from agent_rl.files.disk import remove
from agent_rl.files.leftovers import Claim
from agent_rl.learning.batching import SupervisedBatches
from agent_rl.learning.finite import TrainingStoppedError
from agent_rl.messages import PolicyVersion, TransferOffer, TransferWanted, WeightsPart, WeightsWanted
from agent_rl.records.checkpoint_files import Position
from agent_rl.records.model_card import Measured, card, read_base, write_card
from agent_rl.rollout.supervised import Masked, demonstrated, sequences

if TYPE_CHECKING:
    from torch import Tensor

    from agent_rl.environments.base import Demonstration
    from agent_rl.learning.checkpoints import StagedCheckpoint
    from agent_rl.learning.exporting import Shares
    from agent_rl.learning.trainer import Trainer
    from agent_rl.rollout.prompts import ChatFormat

SAVING_SHARE = 0.05
"""The largest share of a supervised stage's time that checkpoints may take. Large models are saved minutes apart."""
SOONEST = 1.0
"""Seconds of a supervised stage before a new process saves its first checkpoint."""


class Saving:
    """The checkpoints of one process of the learner. At most one is in memory."""

    def __init__(self, context: ActorContext) -> None:
        self._context = context
        self._seconds = 0.0
        """Seconds that the last checkpoint took, from its copies until it was whole."""
        self._settled = trio.Event()
        self._settled.set()
        self.begin()

    def begin(self) -> None:
        """A supervised stage begins: its time is counted from now on."""
        self._going_since = self._saved_at = self._context.now()

    def due(self) -> bool:
        """Whether to save a checkpoint within a supervised stage: little work may be lost, and saving must stay cheap.

        A new process saves early, then after twice the time, up to ``checkpoint_seconds``. So a process that is always
        killed early also makes progress.
        """
        now = self._context.now()
        least = min(self._context.topology.run.checkpoint_seconds, max(SOONEST, self._saved_at - self._going_since))
        return not self.beside and now - self._saved_at >= max(least, self._seconds / SAVING_SHARE)

    @property
    def beside(self) -> bool:
        """Whether a checkpoint is being written beside training."""
        return not self._settled.is_set()

    async def settled(self) -> None:
        """Wait until no checkpoint is being written beside training."""
        await self._settled.wait()

    async def save(
        self,
        stage: Callable[[], Awaitable[StagedCheckpoint]],
        write: Callable[[StagedCheckpoint], Awaitable[None]],
        after: Callable[[], Awaitable[None]],
        *,
        beside: bool,
    ) -> None:
        """Copy by ``stage``, ``write``, and do ``after``. The caller has waited for `settled`.

        ``beside``: return when all is copied; an error of what follows ends the actor.
        """
        began = self._context.now()
        staged = await stage()
        copied = self._context.now()

        async def finish() -> None:
            await write(staged)
            self._saved_at = self._context.now()
            self._seconds = self._saved_at - began
            self._context.log.info("checkpoint", copied_seconds=copied - began, saved_seconds=self._seconds)
            await after()
            self._settled.set()

        if beside:
            self._settled = trio.Event()
            self._context.nursery.start_soon(finish)
        else:
            await finish()


class Busy:
    """Seconds in which at least one task had work in the thread."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._tasks = 0
        self._seconds = 0.0
        self._since = 0.0

    @contextmanager
    def working(self) -> Iterator[None]:
        """A task has work in the thread."""
        if not self._tasks:
            self._since = self._now()
        self._tasks += 1
        try:
            yield
        finally:
            self._tasks -= 1
            if not self._tasks:
                self._seconds += self._now() - self._since

    def seconds(self) -> float:
        """Seconds so far, with those of the work under way."""
        return self._seconds + (self._now() - self._since if self._tasks else 0.0)


T = TypeVar("T")


class TrainedModel:
    """The learner's trainer, its checkpoints, and the policies that it publishes. The learner knows the recipe."""

    def __init__(self, context: ActorContext) -> None:
        """Raises TrainingStoppedError when this host cannot send weights as ``weights_in`` says."""
        refuse_unavailable(context)
        self._context = context
        self._thread = trio.CapacityLimiter(1)
        self._busy = Busy(context.now)
        self._writer = trio.CapacityLimiter(1)
        self.saving = Saving(context)
        self.store, self._claim = _store(context, self._write)
        self.checkpoints = Checkpoints(context.directory / "checkpoints")
        self._references = context.directory / "reference"
        self.publisher = Publisher(context, self.store, context.log)
        self._others: OtherRanks | None = None
        """The other ranks, where there are several."""
        self._place: socket.socket | None = None
        """Where ranks meet, made with them."""
        self._touch = trio.CancelScope()
        self.trainer: Trainer
        """Made by `load`."""

    async def load(self) -> tuple[Position, dict[str, Any]]:
        """Load the newest complete checkpoint, or the model that the run starts from.

        Returns the position in the recipe, and what the checkpoint holds of the learner. Raises TrainingStoppedError,
        and ContractError for a loss that does not fit.
        """
        if self._context.topology.actors[self._context.role].ranks > 1:
            await self._start_ranks()
        loaded = await self.in_thread(self._load)
        if self._others is not None:
            self._context.nursery.start_soon(self._stay_in_touch)
        self.saving.begin()
        self._context.nursery.start_soon(self.publisher.run)
        return loaded

    async def _start_ranks(self) -> None:
        """Let all other ranks begin, once they are heard."""
        from agent_rl.learning.ranks import meeting_place

        context = self._context
        self._place = meeting_place(address_of(context.topology, context.topology.actors[context.role], 0))
        self._others = OtherRanks(context, self._place.getsockname()[1])
        await self._others.begin()
        context.nursery.start_soon(self._others.watch)

    @property
    def lacking(self) -> str:
        """The ranks that rank 0 waits for, in words; empty: none."""
        return "" if self._others is None else self._others.lacking

    def _load(self) -> tuple[Position, dict[str, Any]]:
        from actors.learner.orders import LeadTrainer
        from agent_rl.learning.trainer import Trainer
        from agent_rl.topology_checks.contracts import chat_format

        context, topology, settings = self._context, self._context.topology, self._context.settings
        kind, directory, base = LeadTrainer if self._others else Trainer, context.directory, context.base
        self.trainer = build(
            kind, topology, settings, actor=context.name, directory=directory, base=base, place=self._place
        )
        context.log.info("matrix products", **self.trainer.model.compute.row())
        if not self.trainer.model.block and any(isinstance(stage, RlStage) for stage in topology.stages):
            context.log.info("shared prompts are computed with each sequence: only processors compute them once")
        if isinstance(self.store, KeptWeights):
            self.store.join(self.trainer.ranks, str(self.trainer.device))
        self._environments = Environments(topology, context.base)
        boxes = self._environments.toolboxes.items()
        self.tools = any(box for name, box in boxes if self._environments[name].harness is None)
        self._chat: ChatFormat = chat_format(topology, self.trainer.tokenizer, self._environments)
        self._base = read_base(topology, model_directory(topology, directory))
        restored = self.checkpoints.restore(
            self.trainer.restore, lambda fault: context.log.warning("damaged checkpoint", fault=fault)
        )
        return restored or (Position(0, 0, 0), {})

    @staticmethod
    def _write(weights: Any, path: Path) -> None:
        from agent_rl.learning.trainer import write_weights

        write_weights(weights, path)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run work in torch's only thread, without blocking the event loop."""
        with self._busy.working():
            return await self._together(work, self._thread)

    async def _together(self, work: Callable[[], T], thread: trio.CapacityLimiter) -> T:
        """Run work in which ranks wait for each other. When one of them is lost, the error names it."""
        given = {} if self._others is None else {"abandon_on_cancel": True}  # the thread may wait for a lost rank
        try:
            result: T = await self._context.in_thread(work, limiter=thread, **given)
            return result  # noqa: TRY300 - an else would come before the except all the same
        except RuntimeError as error:
            if self._others is None:
                raise
            several = len(self._context.topology.actors[self._context.role].rank_hosts) > 1
            silent = self._context.settings.rank_silent_seconds if several else 0.0  # a host may be lost
            await trio.sleep(silent + 2 * OTHER_SECONDS)  # cancelled when `watch` names a rank that has caused it
            if "timed out" not in str(error).lower():
                raise
            raise RankLostError(
                f"the ranks of the learner waited for each other longer than rank_timeout_seconds "
                f"({self._context.settings.rank_timeout_seconds:g} s), so one of them hangs"
            ) from error

    async def _stay_in_touch(self) -> None:
        """Let the other ranks hear of this one while it waits for rollouts."""
        trainer: Any = self.trainer
        with self._touch:
            while True:
                await trio.sleep(self._context.settings.rank_timeout_seconds / 4)
                await self.in_thread(trainer.stay_in_touch)

    async def close(self) -> None:
        """End the other ranks in order. No method may be called after this."""
        if self._others is not None:
            self._touch.cancel()
            self._others.leaving()
            trainer: Any = self.trainer
            if isinstance(self.store, KeptWeights):
                await self.in_thread(self.store.dismiss)
            await self.in_thread(trainer.dismiss)
            await self._others.ended()

    def busy_seconds(self) -> float:
        """Seconds in torch: training, and reading and copying weights."""
        return self._busy.seconds()

    def batches(self, stage: SftStage, position: Position, drawn: list[int]) -> tuple[SftStage, SupervisedBatches[Any]]:
        """A supervised stage with its number of steps, and its batches from ``position`` on.

        ``drawn`` is that of the batches up to there.
        """
        seed = f"{self._context.topology.run.seed}/sft/{position.stage}"
        rng = random.Random(seed)
        conversations: Iterator[Any]
        encode: Any
        if stage.data:
            rows, weights = Rows(stage.data, self._context.base, self._context.directory), stage.weights
            weights = weights or (1.0,) * len(stage.data)
            if stage.epochs:
                steps = math.ceil(rows_of_epochs(rows.counts, weights, stage.epochs) / stage.batch)
                stage = stage.model_copy(update={"steps": max(1, steps)})
            conversations, longest = shuffled(rows.counts, weights, seed), float(self.trainer.max_length)
            vocabulary = self.trainer.model.module.config.vocab_size
            encode = partial(rows.encoded, encode=self._sequences, vocabulary=vocabulary)
        else:
            conversations, longest = self._environments.tasks().demonstrations(rng), math.inf
            encode = self._demonstrated
        batches = SupervisedBatches(conversations, encode, batch=stage.batch, longest=longest, rng=rng)
        if position.step:
            batches.skip(position.step, drawn)
        return stage, batches

    def _sequences(self, said: Conversation) -> list[Masked]:
        return sequences(self._chat, *said)

    def _demonstrated(self, shown: Demonstration) -> list[Masked]:
        return demonstrated(self._chat, shown)

    def sft_step(self, batches: SupervisedBatches[Any], stage: SftStage, step: int) -> SupervisedFigures:
        """Train the next batch. Raises NotFiniteError, with nothing changed."""
        return self.trainer.sft_step(next(batches), stage, step)

    async def begin_rl(self, position: Position) -> bool:
        """Set the reference policy where it is that of the stage's start. Returns whether no step was trained yet."""
        from agent_rl.learning.reference import StageStart

        trainer = self.trainer
        path = self._references / f"stage-{position.stage:02d}.safetensors"
        new = position.version == position.stage_version
        if isinstance(trainer.reference, StageStart):
            if new:
                self.forget_reference()
            await self.in_thread(lambda: trainer.keep_reference(path) if new else trainer.load_reference(path))
        return new

    async def give_memory_back(self) -> None:
        """Free what the devices need not hold between two steps: gradients, and what torch's allocator has kept."""
        await self.in_thread(self.trainer.give_memory_back)

    def forget_reference(self) -> None:
        """Delete the reference policies of stages that are over."""
        for path in self._references.glob("*"):  # the folder may be a link to one that hosts share
            remove(path)

    # Published policies

    async def publish(self, policy: PolicyVersion, position: Position) -> None:
        """Publish the present weights as ``policy``. Waits only until they are copied, or written by several ranks."""
        weights: dict[str, Tensor] | Shares | Path | None = None
        if not self.publisher.knows(policy):
            store, version = self.store, policy.version
            if isinstance(store, KeptWeights):
                on_device = self._context.settings.weights_in == "nccl"
                weights = await self.in_thread(lambda: self.trainer.share_weights(version, on_device=on_device))
            elif self._others is not None:
                weights = store.path(policy)
                await self.in_thread(lambda: self.trainer.write_weights(version, store.path(policy)))
            else:
                weights = await self.in_thread(lambda: self.trainer.copy_weights(version))
        self.publisher.offer(policy, weights, position.stage, position.stage_version)

    async def hand_out(self, wanted: WeightsWanted | TransferWanted, asker: str) -> WeightsPart | TransferOffer:
        """A part of a published file or the generator to ask for it, or the offer of a transfer."""
        match wanted, self.store:
            case WeightsWanted(), PublishedWeights() as files:
                return await files.hand_out(wanted, asker, self._context.in_thread)
            case TransferWanted(), KeptWeights() as kept:
                return kept.offer(wanted)
        raise TypeError(f"{type(wanted).__name__} does not go with weights_in = {self._context.settings.weights_in}")

    def gone(self, generator: str) -> None:
        """A generator is lost, or has left: nothing is kept for its engine, and it passes no weights on."""
        self.publisher.gone(generator)
        self.store.gone(generator)

    async def save(
        self, position: Position, extra: Mapping[str, Any], after: Callable[[], Awaitable[None]], *, beside: bool
    ) -> None:
        """Save weights, optimizer and ``extra`` for a position, and do ``after``. See `Saving.save`."""
        path = self.checkpoints.path(position)
        await self.saving.save(
            lambda: self.in_thread(lambda: self.trainer.stage(path, position, extra)),
            lambda staged: self._together(staged.write, self._writer),
            after,
            beside=beside,
        )

    async def describe(self, position: Position, measured: Sequence[Measured]) -> None:
        """Write the card of the checkpoint of a position."""
        text = card(self._context.topology, position, self._base, measured)
        await self._context.in_thread(write_card, self.checkpoints.path(position), text)


def refuse_unavailable(context: ActorContext) -> None:
    """Raise TrainingStoppedError when this host cannot send weights as ``weights_in`` says."""
    way = context.settings.weights_in
    if way not in transfer.BACKENDS:
        return
    if fault := transfer.unavailable(way):
        raise TrainingStoppedError(f'weights_in = "{way}": {fault}; choose another weights_in')
    if way == "nccl":
        context.log.warning("this transfer method has not been tested on a GPU", weights_in=way)


def _store(
    context: ActorContext, write: Callable[[Any, Path], None]
) -> tuple[PublishedWeights | KeptWeights, Claim | None]:
    """The store for published policies, and the claim that keeps its directory while this process lives."""
    topology, settings = context.topology, context.settings
    if settings.weights_in in transfer.BACKENDS:
        address = topology.hosts[topology.actors[context.role].homes[0]].address
        return KeptWeights(context, settings.weights_in, address, settings.device, context.log), None
    fetched = any(context.role in entry.targets(LINK) for entry in topology.actors.values())
    if settings.weights_in == "run_directory":
        return PublishedWeights(context.directory / "weights", write, fetched=fetched), None
    directory, claim = host_directory("published", run_digest(topology))
    return PublishedWeights(directory, write, fetched=fetched), claim
