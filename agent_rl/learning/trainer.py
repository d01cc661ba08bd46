"""The learner's torch side: supervised steps, GRPO-RoC steps, copies of weights, checkpoints in Hugging Face format.

All methods are synchronous and use no sockets; the learner actor calls them in a separate thread.
"""

from __future__ import annotations

import copy
import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoTokenizer

from agent_rl.config.algorithm import Algorithm
from agent_rl.config.plugins import defined_at
from agent_rl.config.topology import Lora, RlStage, SftStage
from agent_rl.figures import SupervisedFigures, TrainingFigures
from agent_rl.files.disk import whole
from agent_rl.learning.advantages import named_advantage
from agent_rl.learning.batching import split_evenly
from agent_rl.learning.checkpoints import StagedCheckpoint, load_checkpoint
from agent_rl.learning.exporting import Shares, refuse_together, write_one
from agent_rl.learning.finite import NotFiniteError, refuse_not_finite
from agent_rl.learning.guard import Guard
from agent_rl.learning.guard_causes import Sampled
from agent_rl.learning.heap import GIVE_BACK_SECONDS, give_heap_back
from agent_rl.learning.losses.base import LossSums, MicroBatch, named_loss, reduced
from agent_rl.learning.mismatch import OlderWeights, measure
from agent_rl.learning.optimizer import Optimizer
from agent_rl.learning.policy_model import ModelOptions, PolicyModel
from agent_rl.learning.ranks import Ranks
from agent_rl.learning.rates import Type
from agent_rl.learning.reference import OtherModel, StageStart
from agent_rl.learning.sequences import (
    TrainingSequence,
    cause_of_loss,
    far_ratio,
    refuse_unsound_inputs,
    training_sequences,
)
from agent_rl.learning.spare_cores import SpareCores
from agent_rl.learning.step_size import Change, Moved, StepSize
from agent_rl.messages import TrainingGroup
from agent_rl.records.checkpoint_files import Position

MEASURED = 4096
"""Tokens of an update, or a quarter of them, on which it is measured how far it moved the policy."""
TRIES = 4
"""So often an update is taken back in part: a policy that fell apart is not where a line says."""
RATE = "rate_factor"
"""Where a checkpoint has it."""
SUMS = ("loss", "entropy", *(field.name for field in fields(LossSums)))
"""The sums of each rank over its tokens."""


class Trainer:
    """A model, its optimizer, and the steps that change them.

    Several ``ranks`` have a trainer each, whose methods are called with the same arguments in the same order. Results
    and errors are then the same on all of them.
    """

    def __init__(
        self,
        model_path: Path,
        *,
        dtype: Type,
        device: str,
        algorithm: Algorithm,
        threads: int,
        seed: int,
        most_threads: int = 0,
        compute: Literal["auto"] | Type = "auto",
        options: ModelOptions | None = None,
        lora: Lora | None = None,
        tokenizer: Any = None,
        mismatch_tokens: int = 1024,
        reference: Path | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        """``tokenizer`` is saved with the model (default: the model's own). ``reference`` is the model of a KL penalty.

        Raises TrainingStoppedError when a model cannot be trained, or the reference has another vocabulary.
        """
        self._cores = SpareCores(threads, most_threads if device == "cpu" else 0)
        self._cores.take()
        torch.manual_seed(seed)
        self.tokenizer = (
            AutoTokenizer.from_pretrained(model_path, trust_remote_code=False) if tokenizer is None else tokenizer
        )
        self._own_tokenizer: Any = None
        """The tokenizer of the thread that writes checkpoints."""
        self.ranks = ranks = ranks or Ranks()
        options = options or ModelOptions()
        self.model = PolicyModel(
            model_path,
            dtype=dtype,
            device=device,
            options=options,
            compute=compute,
            lora=lora,
            seed=seed,
            ranks=ranks,
        )
        self.device = self.model.device
        self.lends = self.device.type == "cpu" and ranks.size == 1
        """Whether a checkpoint is written from the weights themselves."""
        self.under_way = ""
        """The first update while it is computed, and how long it will take, in words; empty before and later."""
        self._first = True
        self._gave_back = time.monotonic()
        self.compute_bits = self.model.compute.bits
        """Of a value in matrix products."""
        self.max_length = self.model.max_length
        self.loss, self.settings = named_loss(algorithm)
        self._advantage = named_advantage(algorithm.advantage)
        self.older = OlderWeights()
        self._size = StepSize()
        self._mismatch_tokens = mismatch_tokens
        self._guard = Guard(self.model, self.older, model_path)
        self.enter(algorithm)
        self.reference: StageStart | OtherModel | None = None
        """The reference policy of the KL penalty; of a `StageStart` the caller says when the stage begins."""
        if algorithm.kl is not None and reference is None:
            self.reference = StageStart(self.model)
        elif algorithm.kl is not None and reference is not None:
            plain = ModelOptions(logits_mib=options.logits_mib, offload=options.offload)
            self.reference = OtherModel(
                reference,
                dtype=dtype,
                device=device,
                options=plain,
                compute=self.model.compute.type,
                tokenizer=self.tokenizer,
                ranks=ranks,
            )
        self.optimizer = Optimizer(
            self.model.named_parameters(),
            weight_decay=algorithm.weight_decay,
            ranks=ranks,
            half=dtype != "float32",
        )

    def enter(self, algorithm: Algorithm) -> None:
        """A stage begins: from now on its algorithm is in force."""
        self.algorithm = algorithm
        self._size.target = algorithm.target_kl or 0.0
        _, self.settings = named_loss(algorithm)
        self.older.keep = algorithm.max_staleness if self._mismatch_tokens else 0

    # Supervised -------------------------------------------------------------------------------------------------------

    def sft_step(self, batch: Sequence[tuple[list[int], list[int]]], stage: SftStage, step: int) -> SupervisedFigures:
        """One supervised step on (tokens, loss mask) pairs: mean cross-entropy over the masked-in tokens.

        Raises NotFiniteError, with weights and optimizer as before, when loss or gradient is not finite.
        """
        rate = stage.learning_rate * _schedule(step, stage.steps, stage.warmup_steps, stage.schedule)
        self.model.dropout(on=stage.dropout)
        self.optimizer.zero_grad()
        self._begin(sum(len(tokens) for tokens, _ in batch))
        sequences = [torch.tensor(tokens) for tokens, _ in batch]
        places = [torch.tensor([0, *mask[1:]], dtype=torch.bool) for _, mask in batch]
        total = max(1, sum(int(each.sum()) for each in places))
        loss_sum, fault = 0.0, ""
        for indices in self.model.microbatches(sequences, max_tokens=self.algorithm.microbatch_tokens):
            if not indices:
                self.model.keep_pace()
                continue
            self._cores.take()
            logprobs, _ = self.model.logprobs(
                [sequences[index] for index in indices],
                [places[index] for index in indices],
                temperature=1.0,
                with_entropy=False,
            )
            loss = -logprobs.sum() / total
            loss.backward()
            loss_sum += float(loss.detach())
            if not math.isfinite(loss_sum) and not fault:
                fault = f"the loss is {loss_sum} on a micro-batch of {len(indices)} demonstrations"
        self._refuse(fault)
        (loss_sum,) = self.ranks.total([loss_sum])
        norm = self.optimizer.step(rate, self.algorithm.gradient_clip)
        self._step_done()
        return SupervisedFigures(loss=loss_sum, gradient_norm=norm, tokens=total)

    # Reinforcement ----------------------------------------------------------------------------------------------------

    def rl_step(self, groups: Sequence[TrainingGroup], stage: RlStage, stage_step: int) -> TrainingFigures:
        """One step of GRPO-RoC on the kept groups, in the given order.

        The proximal log-probabilities are the learner's before the first update. Raises NotFiniteError, with weights
        and optimizer as before the step, when the loss or gradient of any update is not finite.
        """
        self.model.dropout(on=False)
        longest = stage.max_response_tokens
        of_groups = [training_sequences(each, self._advantage, self.algorithm, longest) for each in groups]
        sequences = [sequence for group in of_groups for sequence in group]
        if not sequences:
            return TrainingFigures()
        refuse_unsound_inputs(sequences, self.model.module.config.vocab_size)
        how = Sampled(self.algorithm.temperature, self.algorithm.top_p, self.algorithm.top_k or 0)
        fault = self._guard.check(sequences, how) if self._mismatch_tokens else ""
        schedule = _schedule(stage_step, stage.steps, stage.warmup_steps, stage.schedule)
        signal = sum(any(s.advantage for s in group) for group in of_groups) / self.algorithm.groups_per_step
        full = schedule * math.sqrt(min(1.0, signal)) if self._size.target else schedule
        rate, aim, factor = stage.learning_rate * full, self._size.target * full**2, self._size.factor
        self._begin(sum(len(sequence.tokens) for sequence in sequences))
        totals: defaultdict[str, float] = defaultdict(float)
        batches = split_evenly(range(len(sequences)), self.algorithm.updates_per_step)
        updates = [[sequences[index] for index in indices] for indices in batches]
        if self.reference is not None:
            with self.reference.model() as model:
                self._fill("reference", updates, model)
        if len(batches) > 1:  # with one update, its forward pass gives the proximal log-probabilities
            self._fill("proximal", updates, self.model)
        epochs = self.algorithm.epochs
        # A single update fails before it changes anything. With several, an earlier update may have been applied.
        put_back = self.optimizer.snapshot() if len(batches) * epochs > 1 else None
        try:
            made = [self._update(update, totals, rate, longest, aim) for _ in range(epochs) for update in updates]
        except NotFiniteError:
            self._size.factor = factor
            self.optimizer.zero_grad()
            if put_back is not None:
                put_back()
            raise
        self._step_done()
        summed = dict(zip(SUMS, self.ranks.total([totals[name] for name in SUMS]), strict=True))
        loss = summed.pop("loss") / (len(batches) * epochs)
        if self.algorithm.kl is None:
            del summed["kl"]
        trained_tokens = sum(int(s.mask.sum()) for s in sequences)
        means: dict[str, Any] = {name: total / (max(1, trained_tokens) * epochs) for name, total in summed.items()}
        mismatch = None
        if self._mismatch_tokens:
            mismatch = measure(
                self.model,
                sequences,
                self.older,
                temperature=self.algorithm.temperature,
                max_tokens=self._mismatch_tokens,
                microbatch_tokens=self.algorithm.microbatch_tokens,
            )
        figures = TrainingFigures(
            trained_tokens=trained_tokens,
            trained_rollouts=len(sequences),
            loss=loss,
            **_means(made),
            mismatch=mismatch,
            mismatch_cause=fault or None,
            lora_delta_kept=self.model.delta_kept(),
        )
        return replace(figures, **means)

    def _fill(
        self, field: Literal["proximal", "reference"], updates: Sequence[Sequence[TrainingSequence]], model: PolicyModel
    ) -> None:
        """Compute log-probabilities before the first update, on the ranks that need them in each update."""
        with torch.no_grad():
            for batch in [batch for sequences in updates for batch in self._microbatches(sequences)]:
                if not batch:
                    model.keep_pace()
                    continue
                logprobs, _ = self._response_logprobs(batch, model, with_entropy=False)
                _keep(field, batch, logprobs)

    def _update(
        self,
        sequences: Sequence[TrainingSequence],
        totals: defaultdict[str, float],
        rate: float,
        longest: int,
        aim: float,
    ) -> dict[str, float]:
        """Make one optimizer update; return figures of it. Raises NotFiniteError before any weight changes.

        Adds to ``totals`` the loss and, by the names of `TrainingFigures`, sums over tokens. ``longest`` is the most
        tokens that a response may have, ``aim`` how far the update should move the policy.
        """
        self.optimizer.zero_grad()
        tokens = max(1, sum(int(s.mask.sum()) for s in sequences))
        loss_sum, fault = 0.0, ""
        steered, rounds = self._size.target > 0.0, self.model.compute.type != "float32"
        every = max(10 if rounds else 4, math.ceil(sum(len(s.tokens) for s in sequences) / MEASURED))
        change = Change(self._logprobs_again, self.ranks, rounds=rounds)
        for batch in self._microbatches(sequences):
            if not batch:
                self.model.keep_pace()
                change.add((), torch.zeros(0))
                continue
            logprobs, entropy = self._response_logprobs(batch, self.model)
            change.add(batch[::every], logprobs.detach()[::every])
            if batch[0].proximal is None:
                proximal = logprobs.detach()
                _keep("proximal", batch, proximal)
            else:
                proximal = self._stack([s.proximal for s in batch if s.proximal is not None])
            reference = [s.reference for s in batch if s.reference is not None]
            given = MicroBatch(
                logprobs=logprobs,
                proximal=proximal,
                behaviour=self._stack([s.behaviour for s in batch]),
                mask=self._stack([s.mask for s in batch]),
                turns=self._stack([s.turns for s in batch]),
                advantages=torch.tensor([[s.advantage] for s in batch], device=self.device),
                rewards=torch.tensor([[s.reward] for s in batch], device=self.device),
                tokens=tokens,
                sequences=len(sequences),
                max_response_tokens=longest,
                reference=self._stack(reference) if reference else None,
            )
            loss, sums = reduced(given, self.loss(given, self.settings), self.settings)
            if self.settings.entropy_coefficient:
                loss = loss - self.settings.entropy_coefficient * entropy.sum() / tokens
            loss.backward()
            loss_sum += float(loss.detach())
            if not math.isfinite(loss_sum) and not fault:
                place = defined_at(self.loss)
                name = self.algorithm.loss + (f" ({place})" if place else "")
                fault = f"the loss is {loss_sum}, {cause_of_loss(batch, logprobs.detach(), name, self.settings)}"
            totals["entropy"] += float(entropy.detach().sum())
            for field in fields(LossSums):
                if (value := getattr(sums, field.name)) is not None:
                    totals[field.name] += float(value)
        self._refuse(fault)
        totals["loss"] += loss_sum
        if steered:
            change.begin()
            rate *= self._size.factor
        try:
            norm = self.optimizer.step(rate, self.algorithm.gradient_clip)
        except NotFiniteError as error:
            known = [s for s in sequences if s.proximal is not None]
            rows = [s.proximal[s.mask] for s in known if s.proximal is not None]
            far = self.ranks.agreed(far_ratio(known, rows, self.settings))
            raise NotFiniteError(f"{error}, {far}" if far else str(error)) from error
        return {"gradient_norm": norm, "learning_rate": rate} | (self._bounded(change, aim) if steered else {})

    def _bounded(self, change: Change, aim: float) -> dict[str, float]:
        """Measure how far the update moved the policy, and take back what is too far."""
        moved, kept = change.measured(), 1.0
        self._size.follow(moved, aim)
        for _ in range(TRIES):
            if (share := self._size.kept(moved, aim)) == 1.0:
                break
            # Of what is left of the update, which is `kept` of the whole.
            self.optimizer.take_back(kept * (1.0 - share))
            kept *= share
            moved = change.measured() if share else Moved(0.0)
        return {"update_kl": max(0.0, moved.nats), "update_kl_error": moved.doubt, "update_kept": kept}

    def _logprobs_again(self, part: Sequence[TrainingSequence], *, shaken: bool) -> Tensor:
        """Log-probabilities [rows, longest response] by the weights as they are; without rows all ranks keep pace."""
        with torch.no_grad(), self.model.shaken() if shaken else nullcontext():
            if part:
                return self._response_logprobs(part, self.model, with_entropy=False)[0]
            self.model.keep_pace()
            return torch.zeros(0)

    def update_seconds(self, tokens: int) -> float | None:
        """About how long an update on so many tokens takes, by the measured rate; None without one."""
        weights = sum(parameter.numel() for parameter in self.model.module.parameters())
        return self.model.compute.update_seconds(weights, tokens)

    def _begin(self, tokens: int) -> None:
        """An update begins: of the first, the estimate by the measured rate is said."""
        seconds = self.update_seconds(tokens) if self._first else None
        self._first = False
        if seconds is not None:
            weights = sum(parameter.numel() for parameter in self.model.module.parameters())
            self.under_way = f"first update of {weights / 1e6:,.0f}M weights: some {math.ceil(seconds):,} s"

    def _refuse(self, fault: str) -> None:
        """Raise NotFiniteError on all ranks when one has a fault. Until here all compute: sharded layers need all."""
        if found := self.ranks.agreed(fault):
            self.optimizer.zero_grad()
            raise NotFiniteError(found)

    def _microbatches(self, sequences: Sequence[TrainingSequence]) -> list[list[TrainingSequence]]:
        """The micro-batches of this rank, some of which may be empty."""
        most, tokens = self.algorithm.microbatch_tokens, [sequence.tokens for sequence in sequences]
        beside = [sequence.beside(shared_once=bool(self.model.block)) for sequence in sequences]
        batches = self.model.microbatches(tokens, max_tokens=most, beside=beside)
        return [[sequences[index] for index in batch] for batch in batches]

    def _response_logprobs(
        self, batch: Sequence[TrainingSequence], model: PolicyModel, *, with_entropy: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities [rows, longest response], 0 where masked, and entropies of the model's tokens."""
        self._cores.take()
        tokens, places = zip(*(path for s in batch for path in s.paths(s.mask)), strict=True)
        logprobs, entropy = model.logprobs(
            tokens, places, temperature=self.algorithm.temperature, with_entropy=with_entropy
        )
        mask = self._stack([s.mask for s in batch])
        return torch.zeros(mask.shape, device=self.device).masked_scatter(mask, logprobs), entropy

    def _stack(self, rows: Sequence[Tensor]) -> Tensor:
        """Rows padded on the right with zeros to one width."""
        return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True).to(self.device)

    def reset_optimizer(self) -> None:
        """Forget the moments, and what is known of rates, as a stage may ask."""
        self.optimizer.reset()
        self._size.factor = 1.0

    def _step_done(self) -> None:
        self.under_way = ""
        if self.device.type == "cpu" and time.monotonic() - self._gave_back >= GIVE_BACK_SECONDS:
            give_heap_back()
            self._gave_back = time.monotonic()

    def give_memory_back(self) -> None:
        """Free gradients, and the memory that the allocator has kept of the step, for whoever shares the device."""
        self.optimizer.zero_grad()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        else:
            give_heap_back()

    def keep_reference(self, path: Path) -> None:
        """Make the present policy the reference of a stage that begins. See `StageStart`."""
        assert isinstance(self.reference, StageStart)
        self.reference.keep(path)

    def load_reference(self, path: Path) -> None:
        """Take the reference of a stage that goes on. See `StageStart`."""
        assert isinstance(self.reference, StageStart)
        self.reference.load(path)

    # Weights and checkpoints ------------------------------------------------------------------------------------------

    def copy_weights(self, version: int) -> dict[str, Tensor]:
        """Copy the weights of ``version`` to host memory, under the model's names; training may then continue.

        For one rank: see `share_weights` and `write_weights` for several.
        """
        weights = {name: tensor.to("cpu", copy=True).contiguous() for name, tensor in self.model.served()}
        if self.model.adapted:
            self._remember(version)
        else:
            self.older.remember(version, {name: weights[name] for name in self.model.trained()})
        return weights

    def share_weights(self, version: int, *, on_device: bool) -> Shares:
        """Copy this rank's parts of the weights of ``version`` as engines load them; training may then continue.

        The copy is in host memory, or on this rank's device. It is complete when this method returns, so other threads
        and streams may read it. Raises TrainingStoppedError when a weight is not finite.
        """
        refuse_together(self.model.trained(), f"version {version}", self.ranks)
        shares = Shares.served(self.model, {}).copied(self.device if on_device else torch.device("cpu"))
        if self.model.adapted or self.ranks.size > 1:
            self._remember(version)
        else:
            self.older.remember(version, {name: shares.parts[name][1]().to("cpu") for name in self.model.trained()})
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return shares

    def write_weights(self, version: int, path: Path) -> None:
        """Write the weights of ``version`` to one safetensors file, completely or not at all; training waits for it.

        Each rank writes its own rows, so no process has the whole model. Raises DiskError, and TrainingStoppedError
        when a weight is not finite.
        """
        refuse_together(self.model.trained(), path, self.ranks)
        write_one(Shares.served(self.model, {}), path, self.ranks)
        self._remember(version)

    def _remember(self, version: int) -> None:
        trained = self.model.trained().items()
        self.older.remember(version, {name: tensor.to("cpu", copy=True) for name, tensor in trained})

    def save(self, directory: Path, position: Position, extra: Mapping[str, Any] | None = None) -> None:
        """Write a checkpoint that `from_pretrained` loads and `restore` continues. See `StagedCheckpoint`."""
        self.stage(directory, position, extra).write()

    def stage(self, directory: Path, position: Position, extra: Mapping[str, Any] | None = None) -> StagedCheckpoint:
        """What a checkpoint holds; training may then continue, and another thread write it.

        On a processor it is no copy: the next update waits until it is written, or copies what is not begun.
        """
        if self._own_tokenizer is None:
            self._own_tokenizer = copy.deepcopy(self.tokenizer)  # tokenizers refuse to be used by two threads at once
        staged = StagedCheckpoint(
            directory,
            position,
            model=self.model,
            optimizer=self.optimizer,
            tokenizer=self._own_tokenizer,
            extra={**(extra or {}), RATE: self._size.factor},
            lent=self.lends,
        )
        if self.lends:
            self.optimizer.lend(staged.give_back)
        return staged

    def restore(self, directory: Path) -> tuple[Position, dict[str, Any]]:
        """Restore a checkpoint; return its position and extra data. See `load_checkpoint`."""
        position, extra = load_checkpoint(directory, model=self.model, optimizer=self.optimizer)
        self._size.factor = extra.pop(RATE, 1.0)
        return position, extra


def write_weights(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write weights to one safetensors file, completely or not at all.

    Raises TrainingStoppedError and writes nothing when a weight is not finite.
    """
    refuse_not_finite(weights, path)
    with whole(path, flushed=False) as partial:
        save_file(dict(weights), partial)


def _keep(field: Literal["proximal", "reference"], batch: Sequence[TrainingSequence], logprobs: Tensor) -> None:
    for sequence, row in zip(batch, logprobs.cpu(), strict=True):
        setattr(sequence, field, row[: len(sequence.mask)])


def _means(rows: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Of each figure the mean over the rows."""
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def _schedule(step: int, steps: int, warmup: int, kind: str) -> float:
    if step < warmup:
        return (step + 1) / warmup
    if kind == "constant":
        return 1.0
    return 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))
