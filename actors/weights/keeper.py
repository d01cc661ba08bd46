"""The learner's model: torch in one thread, checkpoints, published weights."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import trio
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from actors.base import Actor, Settings, ask
from actors.weights import transfer
from actors.weights.fetch import LINK, SHARED_MEMORY, has_shared_memory, host_directory, read_part
from actors.weights.files import Checkpoints, PublishedWeights, model_directory
from actors.weights.publish import Publisher
from actors.weights.transfer import KeptWeights
from agent_rl.config.addresses import run_digest
from agent_rl.config.plugins import resolve
from agent_rl.config.topology import Collapse, Topology
from agent_rl.environments.load import Environments
from agent_rl.files.leftovers import Claim
from agent_rl.learning.advantages import try_advantage
from agent_rl.learning.collapse import CollapseWatch
from agent_rl.learning.finite import TrainingStoppedError
from agent_rl.messages import CheckpointSaved, Policy, TransferOffer, TransferWanted, WeightsPart, WeightsWanted
from agent_rl.records.checkpoint_files import Position
from agent_rl.records.history import Mark
from agent_rl.rollout.chat_templates import load_tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from agent_rl.learning.losses import Loss, LossSettings, LossSums
    from agent_rl.learning.trainer import Trainer
    from agent_rl.rollout.prompts import ChatFormat

T = TypeVar("T")

SAVING_SHARE = 0.05
"""The largest share of a supervised stage's time that checkpoints may take. Large models are saved minutes apart."""
SOONEST = 1.0
"""Seconds of a supervised stage before a new process saves its first checkpoint."""


class LearnerSettings(Settings):
    """Device and memory of training, and where policies are published."""

    threads: PositiveInt = 1
    """Threads of torch."""
    device: str = "cpu"
    """The device, as torch names it: ``cpu``, ``cuda``, ``cuda:1``."""
    activation_checkpointing: bool = False
    """Keep only the input of each layer for the backward pass: a third more work, far less memory."""
    compile: bool = False
    """Compile the model with torch.compile; the first steps take minutes."""
    logits_mib: PositiveInt = 128
    """Memory for one block of logits; the peak is three times as much."""
    weights_in: Literal["run_directory", "shared_memory", "nccl", "gloo"] = "run_directory"
    """Where policies are published. ``run_directory``: on disk. ``shared_memory``: in this host's memory, for its own
    generators and for links. ``nccl``, ``gloo``: the learner sends them to each engine, from GPU to GPU or without one."""
    mismatch_tokens: NonNegativeInt = 1024
    """Tokens of a step computed again with the weights that sampled them, to tell staleness from numerics; 0: none."""
    record_timeout_seconds: PositiveFloat = 120.0
    """Seconds the filter may take to record a step. After that, the learner restarts and reports the step again."""


def _out_of_reach(topology: Topology) -> list[str]:
    """A fault for each role on another host that loads policies and has no link to fetch them."""
    far = [
        role
        for role, entry in topology.actors.items()
        if LINK in getattr(resolve("actor", entry.class_path), "links", {})
        if entry.host != topology.main_host and not entry.targets(LINK)
    ]
    remedy = f'give it the link {LINK} = "learner", or leave weights_in at run_directory on a disk that the hosts share'
    return [f"weights_in: {role} is on another host, and cannot read this one's memory; {remedy}" for role in far]


def _not_to_be_sent(topology: Topology, settings: LearnerSettings) -> list[str]:
    """The faults that prevent sending weights to the generators."""
    way, faults = settings.weights_in, []
    gpu = f'{way} sends from GPU to GPU; set its device = "cuda", or weights_in = "gloo" or another way'
    if way == "nccl" and not settings.device.startswith("cuda"):
        faults.append(f"weights_in: the learner's device is {settings.device}, and {gpu}")
    for role, entry in topology.actors.items():
        cls = resolve("actor", entry.class_path)
        if LINK not in getattr(cls, "links", {}) and transfer.LINK not in getattr(cls, "links", {}):
            continue
        if transfer.LINK not in cls.links:
            faults.append(
                f"weights_in: {entry.class_path}, of {role}, has no link {transfer.LINK}, over which weights are sent; "
                "choose another way, or derive it from actors.rollout_generator:RolloutGenerator"
            )
        elif not entry.targets(transfer.LINK):
            faults.append(f'weights_in: {role} is not sent the weights; give it the link {transfer.LINK} = "learner"')
        device = str(entry.settings.get("device", "cpu"))
        if way == "nccl" and not device.startswith("cuda"):
            faults.append(f"weights_in: {role}'s device is {device}, and {gpu}")
    return faults


class ModelKeeper(Actor):
    """Holds the model, the position in the recipe, and the checkpoints."""

    @classmethod
    def check(cls, topology: Topology, settings: LearnerSettings) -> list[str]:
        """The faults of these settings: missing packages, and generators that cannot reach published weights."""
        faults = []
        if topology.model.lora is not None and find_spec("peft") is None:
            faults.append("model.lora needs peft: pip install 'agent-rl[lora]'")
        if settings.weights_in in transfer.BACKENDS:
            faults += _not_to_be_sent(topology, settings)
        if settings.weights_in == "shared_memory":
            faults += _out_of_reach(topology)
            if not has_shared_memory():
                faults.append(f"weights_in: this user cannot write to {SHARED_MEMORY} here; leave it at run_directory")
        return faults

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
        """The loss of one micro-batch (`agent_rl.learning.losses.Loss`). Your own learner class may override this."""
        made: tuple[Tensor, LossSums] = self._named_loss()(
            logprobs, proximal, behaviour, advantages, mask, normaliser=normaliser, settings=settings
        )
        return made

    def _named_loss(self) -> Loss:
        loss: Loss = resolve("loss", self.context.topology.algorithm.loss)
        return loss

    def _loss(self) -> Loss:
        """The method `loss` where a user's class overrides it, else the loss that ``algorithm.loss`` names."""
        return self.loss if type(self).loss is not ModelKeeper.loss else self._named_loss()

    @classmethod
    def probe(cls, topology: Topology, settings: LearnerSettings) -> list[str]:
        """Try the advantage on made-up groups. The loss is tried in the learner's process, which has torch."""
        del settings
        try_advantage(topology.algorithm.advantage)
        return []

    async def _start_model(self) -> None:
        """Load the newest complete checkpoint, or the model that the run starts from."""
        self._refuse_unavailable()
        self._thread = trio.CapacityLimiter(1)
        self._busy_seconds = 0.0
        self._began: float | None = None
        self._waiting_for = ""
        self._epoch = 0
        self._checkpoint_due = False
        self._going_since = self._saved_at = self.context.now()
        self._saving_seconds = 0.0
        self._weights, self._claim = self._published_weights()
        self._checkpoints = Checkpoints(self.context.directory / "checkpoints")
        self._publisher = Publisher(self.context, self._weights, self.log)
        self._position = await self._in_thread(self._load)
        await self._in_thread(self._try_loss)
        self.context.nursery.start_soon(self._publisher.run)

    def _refuse_unavailable(self) -> None:
        way = self.context.settings.weights_in
        if way not in transfer.BACKENDS:
            return
        if fault := transfer.unavailable(way):
            raise TrainingStoppedError(f'weights_in = "{way}": {fault}; choose another weights_in')
        if way == "nccl":
            self.log.warning("this transfer method has not been tested on a GPU", weights_in=way)

    def _published_weights(self) -> tuple[PublishedWeights | KeptWeights, Claim | None]:
        """The store for published policies, and the claim that keeps its directory while this process lives."""
        from agent_rl.learning.trainer import write_weights

        context, settings = self.context, self.context.settings
        topology = context.topology
        if settings.weights_in in transfer.BACKENDS:
            address = topology.hosts[topology.actors[context.role].host].address
            return KeptWeights(context, settings.weights_in, address, settings.device, self.log), None
        fetched = any(context.role in entry.targets(LINK) for entry in topology.actors.values())
        if settings.weights_in == "run_directory":
            return PublishedWeights(context.directory / "weights", write_weights, fetched=fetched), None
        directory, held = host_directory("published", run_digest(topology))
        return PublishedWeights(directory, write_weights, fetched=fetched), held

    async def _ask(self, link: str, message: Any) -> Any:
        """Tell the filter something to record. The call is repeated when the filter restarts."""
        timeout = self.context.settings.record_timeout_seconds
        self._waiting_for = f"roc_filter: the answer to {type(message).__name__}"
        try:
            return await ask(self.context.link(link), message, timeout=timeout, log=self.log)
        finally:
            self._waiting_for = ""

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Run work in torch's only thread, without blocking the event loop."""
        self._began = self.context.now()
        try:
            done: T = await self.context.in_thread(work, limiter=self._thread)
            return done
        finally:
            self._busy_seconds += self.context.now() - self._began
            self._began = None

    # Weights and checkpoints

    async def _publish(self) -> None:
        """Publish the present policy and the position in the recipe. Waits only until the weights are copied."""
        position, settings = self._position, self.context.settings
        policy = Policy(self._epoch, position.version)
        weights = None
        if not self._publisher.knows(policy):
            device = settings.device if settings.weights_in == "nccl" else "cpu"
            weights = await self._in_thread(lambda: self._trainer.copy_weights(policy.version, device))
        self._publisher.offer(policy, weights, position.stage, position.stage_version)

    async def _hand_out(self, wanted: WeightsWanted | TransferWanted) -> WeightsPart | TransferOffer:
        """A part of a published file, or the offer of a transfer."""
        match wanted, self._weights:
            case WeightsWanted(), PublishedWeights() as files:
                part: WeightsPart = await self.context.in_thread(read_part, files.path(wanted.policy), wanted.offset)
                return part
            case TransferWanted(), KeptWeights() as kept:
                return kept.offer(wanted)
        raise TypeError(f"{type(wanted).__name__} does not go with weights_in = {self.context.settings.weights_in}")

    def _due_in_time(self) -> bool:
        """Whether to save a checkpoint within a supervised stage: little work may be lost, and saving must stay cheap.

        A new process saves early, then after twice the time, up to ``checkpoint_seconds``. So a process that is always
        killed early also makes progress.
        """
        now = self.context.now()
        least = min(self.context.topology.run.checkpoint_seconds, max(SOONEST, self._saved_at - self._going_since))
        return now - self._saved_at >= max(least, self._saving_seconds / SAVING_SHARE)

    async def _checkpoint(self, at: Position | None = None, *, keep_all: bool = False) -> None:
        """Save weights and optimizer for position ``at`` (default: the present one). Delete all but the newest few."""
        position = at or self._position
        if position not in self._checkpoints.positions():  # a position that is reached again has the same weights
            self._watch.saved(position.version)
            kept = {"watch": self._watch.state(), **self._mark.kept()}
            if position.step:
                kept["supervised"] = self._supervised
            began = self.context.now()
            await self._in_thread(lambda: self._trainer.save(self._checkpoints.path(position), position, kept))
            self._saving_seconds = self.context.now() - began
        self._checkpoint_due = False
        self._saved_at = self.context.now()
        if not keep_all:
            self._checkpoints.remove_all_but(self.context.topology.run.keep_checkpoints, self._watch.best_version)
        oldest = min(saved.version for saved in self._checkpoints.positions())
        saved = CheckpointSaved(str(self._checkpoints.path(position)), position.version, oldest)
        await self._ask("checkpoints", saved)

    def _load(self) -> Position:
        from agent_rl.checks.declared import chat_format
        from agent_rl.learning.policy_model import ModelOptions
        from agent_rl.learning.trainer import Trainer

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
            loss=self._loss(),
            options=ModelOptions(
                activation_checkpointing=settings.activation_checkpointing,
                compile=settings.compile,
                logits_mib=settings.logits_mib,
            ),
            lora=topology.model.lora,
            mismatch_tokens=settings.mismatch_tokens,
            tokenizer=load_tokenizer(directory, topology, self.context.base),
        )
        self._environments = Environments(topology, self.context.base)
        self._chat: ChatFormat = chat_format(topology, self._trainer.tokenizer, self._environments)
        restored = self._checkpoints.restore(
            self._trainer.restore, lambda fault: self.log.warning("damaged checkpoint", fault=fault)
        )
        position, kept = restored or (Position(0, 0, 0), {})
        self._watched = kept.get("watch")
        self._mark = Mark.of(kept)
        self._supervised: dict[str, Any] = kept.get("supervised", {})
        """What a checkpoint within a supervised stage holds in addition to the position."""
        self._watch = CollapseWatch(Collapse(), self._watched)
        return position

    def _try_loss(self) -> None:
        from agent_rl.learning.losses import try_loss

        name = "" if type(self).loss is not ModelKeeper.loss else self.context.topology.algorithm.loss
        try_loss(self, self._loss(), self._trainer.settings, name)

    def busy_seconds(self) -> float:
        """Seconds in torch: training, and reading and copying weights."""
        return self._busy_seconds + (self.context.now() - self._began if self._began is not None else 0.0)
