"""The learner's torch side: supervised steps, GRPO-RoC steps, copies of weights, checkpoints in Hugging Face format.

All methods are synchronous and use no sockets; the learner actor calls them in a separate thread.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoTokenizer

from agent_rl.config.topology import Algorithm, Lora, RlStage, SftStage
from agent_rl.figures import SupervisedFigures, TrainingFigures
from agent_rl.files.disk import whole
from agent_rl.learning.advantages import named_advantage
from agent_rl.learning.batching import microbatches, split_evenly
from agent_rl.learning.checkpoints import load_checkpoint, save_checkpoint
from agent_rl.learning.finite import NotFiniteError, named, not_finite, refuse_not_finite
from agent_rl.learning.losses.base import LossSums, MicroBatch, named_loss, reduced
from agent_rl.learning.mismatch import OlderWeights, measure
from agent_rl.learning.optimizer import Optimizer
from agent_rl.learning.policy_model import ModelOptions, PolicyModel
from agent_rl.messages import TrainingGroup
from agent_rl.records.checkpoint_files import Position


@dataclass(slots=True)
class _Sequence:
    """One trajectory in training: arrays over its n response tokens, ``tokens`` over prompt and response."""

    name: str
    tokens: Tensor
    prompt: int
    mask: Tensor
    """bool: the tokens that the model wrote."""
    turns: Tensor
    behaviour: Tensor
    versions: Tensor
    reward: float
    advantage: float
    proximal: Tensor | None = None


class Trainer:
    """A model, its optimizer, and the steps that change them."""

    def __init__(
        self,
        model_path: Path,
        *,
        dtype: str,
        device: str,
        algorithm: Algorithm,
        threads: int,
        seed: int,
        options: ModelOptions | None = None,
        lora: Lora | None = None,
        tokenizer: Any = None,
        mismatch_tokens: int = 1024,
    ) -> None:
        """``tokenizer`` is saved with the model (default: the model's own)."""
        torch.set_num_threads(threads)
        torch.manual_seed(seed)
        self.tokenizer = AutoTokenizer.from_pretrained(model_path) if tokenizer is None else tokenizer
        self.model = PolicyModel(
            model_path, dtype=dtype, device=device, options=options or ModelOptions(), lora=lora, seed=seed
        )
        self.device = self.model.device
        self.max_length = self.model.max_length
        self.loss, self.settings = named_loss(algorithm)
        self._advantage = named_advantage(algorithm.advantage)
        self.older = OlderWeights()
        self._mismatch_tokens = mismatch_tokens
        self.enter(algorithm)
        self.optimizer = Optimizer(self.model.named_parameters(), weight_decay=algorithm.weight_decay)

    def enter(self, algorithm: Algorithm) -> None:
        """A stage begins: from now on its algorithm is in force."""
        self.algorithm = algorithm
        _, self.settings = named_loss(algorithm)
        self.older.keep = algorithm.max_staleness if self._mismatch_tokens else 0

    # Supervised -------------------------------------------------------------------------------------------------------

    def sft_step(self, batch: Sequence[tuple[list[int], list[int]]], stage: SftStage, step: int) -> SupervisedFigures:
        """One supervised step on (tokens, loss mask) pairs: mean cross-entropy over the masked-in tokens.

        Raises NotFiniteError, with weights and optimizer as before, when loss or gradient is not finite.
        """
        rate = stage.learning_rate * _schedule(step, stage.steps, stage.warmup_steps, stage.schedule)
        self.model.module.train()
        self.optimizer.zero_grad()
        sequences = [torch.tensor(tokens) for tokens, _ in batch]
        places = [torch.tensor([0, *mask[1:]], dtype=torch.bool) for _, mask in batch]
        total = max(1, sum(int(each.sum()) for each in places))
        loss_sum = 0.0
        lengths = [len(tokens) for tokens in sequences]
        for indices in microbatches(lengths, max_tokens=self.algorithm.microbatch_tokens):
            logprobs, _ = self.model.logprobs(
                [sequences[index] for index in indices],
                [places[index] for index in indices],
                temperature=1.0,
                with_entropy=False,
            )
            loss = -logprobs.sum() / total
            loss.backward()
            loss_sum += float(loss.detach())
            if not math.isfinite(loss_sum):
                raise NotFiniteError(f"the loss is {loss_sum} on a micro-batch of {len(indices)} demonstrations")
        norm = self.optimizer.step(rate, self.algorithm.gradient_clip)
        return SupervisedFigures(loss=loss_sum, gradient_norm=norm, tokens=total)

    # Reinforcement ----------------------------------------------------------------------------------------------------

    def rl_step(self, groups: Sequence[TrainingGroup], stage: RlStage, stage_step: int) -> TrainingFigures:
        """One step of GRPO-RoC on the kept groups, in the given order.

        The proximal log-probabilities are the learner's before the first update. Raises NotFiniteError, with weights
        and optimizer as before the step, when the loss or gradient of any update is not finite.
        """
        sequences = [sequence for group in groups for sequence in self._sequences(group)]
        if not sequences:
            return TrainingFigures()
        _refuse_not_finite_inputs(sequences)
        rate = stage.learning_rate * _schedule(stage_step, stage.steps, stage.warmup_steps, stage.schedule)
        self.model.module.train()
        totals: defaultdict[str, float] = defaultdict(float)
        batches = split_evenly(range(len(sequences)), self.algorithm.updates_per_step)
        if len(batches) > 1:  # with one update, its forward pass gives the proximal log-probabilities
            self._fill_proximal(sequences)
        # A single update fails before it changes anything. With several, an earlier update may have been applied.
        before = self.optimizer.snapshot() if len(batches) > 1 else None
        try:
            gradient_norms = [
                self._update([sequences[index] for index in indices], totals, rate) for indices in batches
            ]
        except NotFiniteError:
            self.optimizer.zero_grad()
            if before is not None:
                before.put_back()
            raise
        loss = totals.pop("loss") / len(batches)
        trained_tokens = sum(int(s.mask.sum()) for s in sequences)
        means: dict[str, Any] = {name: total / max(1, trained_tokens) for name, total in totals.items()}
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
            gradient_norm=float(np.mean(gradient_norms)),
            learning_rate=rate,
            mismatch=mismatch,
        )
        return replace(figures, **means)

    def _sequences(self, group: TrainingGroup) -> list[_Sequence]:
        advantages = self._advantage(group.rewards, divide_by_std=self.algorithm.advantage_std)
        return [
            _Sequence(
                name=f"{group.group}, sample {t.sample}",
                tokens=torch.from_numpy(np.concatenate([t.prompt_tokens, t.tokens]).astype(np.int64)),
                prompt=len(t.prompt_tokens),
                mask=torch.from_numpy(t.loss_mask > 0),
                # A turn begins where the model's tokens begin; between two turns there are tokens of others.
                turns=torch.from_numpy((np.diff(t.loss_mask > 0, prepend=False) & (t.loss_mask > 0)).cumsum() - 1),
                behaviour=torch.from_numpy(np.where(t.loss_mask > 0, t.logprobs, np.float32(0.0))),
                versions=torch.from_numpy(t.policies[:, 1].astype(np.int64)),
                reward=float(reward),
                advantage=float(advantage),
            )
            for t, reward, advantage in zip(group.trajectories, group.rewards, advantages, strict=True)
        ]

    def _fill_proximal(self, sequences: Sequence[_Sequence]) -> None:
        with torch.no_grad():
            for batch in self._microbatches(sequences):
                logprobs, _ = self._response_logprobs(batch, with_entropy=False)
                _keep_proximal(batch, logprobs)

    def _update(self, sequences: Sequence[_Sequence], totals: defaultdict[str, float], rate: float) -> float:
        """Make one optimizer update; return its gradient norm. Raises NotFiniteError before any weight changes.

        Adds to ``totals`` the loss and, by the names of `TrainingFigures`, sums over tokens.
        """
        self.optimizer.zero_grad()
        tokens = max(1, sum(int(s.mask.sum()) for s in sequences))
        loss_sum = 0.0
        for batch in self._microbatches(sequences):
            logprobs, entropy = self._response_logprobs(batch)
            if batch[0].proximal is None:
                proximal = logprobs.detach()
                _keep_proximal(batch, proximal)
            else:
                proximal = self._stack([s.proximal for s in batch if s.proximal is not None])
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
            )
            loss, sums = reduced(given, self.loss(given, self.settings))
            if self.settings.entropy_coefficient:
                loss = loss - self.settings.entropy_coefficient * entropy.sum() / tokens
            loss.backward()
            loss_sum += float(loss.detach())
            if not math.isfinite(loss_sum):
                raise NotFiniteError(f"the loss is {loss_sum}, {_cause(batch, logprobs.detach())}")
            totals["entropy"] += float(entropy.detach().sum())
            for field in fields(LossSums):
                totals[field.name] += float(getattr(sums, field.name))
        totals["loss"] += loss_sum
        return self.optimizer.step(rate, self.algorithm.gradient_clip)

    def _microbatches(self, sequences: Sequence[_Sequence]) -> list[list[_Sequence]]:
        lengths = [len(sequence.tokens) for sequence in sequences]
        batches = microbatches(lengths, max_tokens=self.algorithm.microbatch_tokens)
        return [[sequences[index] for index in batch] for batch in batches]

    def _response_logprobs(self, batch: Sequence[_Sequence], *, with_entropy: bool = True) -> tuple[Tensor, Tensor]:
        """Log-probabilities [rows, longest response], 0 where masked, and entropies of the model's tokens."""
        places = [torch.cat([torch.zeros(s.prompt, dtype=torch.bool), s.mask]) for s in batch]
        logprobs, entropy = self.model.logprobs(
            [s.tokens for s in batch], places, temperature=self.algorithm.temperature, with_entropy=with_entropy
        )
        mask = self._stack([s.mask for s in batch])
        return torch.zeros(mask.shape, device=self.device).masked_scatter(mask, logprobs), entropy

    def _stack(self, rows: Sequence[Tensor]) -> Tensor:
        """Rows padded on the right with zeros to one width."""
        return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True).to(self.device)

    # Weights and checkpoints ------------------------------------------------------------------------------------------

    def copy_weights(self, version: int, device: str = "cpu") -> dict[str, Tensor]:
        """Copy the weights of ``version``, under the model's names; training may then continue.

        The copy is in host memory or on another ``device``. It is complete when this method returns, so other threads
        and streams may read it.
        """
        weights = {name: tensor.to(device, copy=True).contiguous() for name, tensor in self.model.weights().items()}
        trained = self.model.trained()
        if self.model.adapted:
            self.older.remember(version, {name: tensor.to("cpu", copy=True) for name, tensor in trained.items()})
        else:
            self.older.remember(version, {name: weights[name].to("cpu") for name in trained})
        if device != "cpu":
            torch.cuda.synchronize(device)
        return weights

    def save(self, directory: Path, position: Position, extra: Mapping[str, Any] | None = None) -> None:
        """Write a checkpoint that `from_pretrained` loads and `restore` continues. See `save_checkpoint`."""
        save_checkpoint(
            directory,
            position,
            model=self.model,
            optimizer=self.optimizer,
            tokenizer=self.tokenizer,
            extra=extra or {},
        )

    def restore(self, directory: Path) -> tuple[Position, dict[str, Any]]:
        """Restore a checkpoint; return its position and extra data. See `load_checkpoint`."""
        return load_checkpoint(directory, model=self.model, optimizer=self.optimizer)


def write_weights(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write weights to one safetensors file, completely or not at all.

    Raises TrainingStoppedError and writes nothing when a weight is not finite.
    """
    refuse_not_finite(weights, path)
    with whole(path) as partial:
        save_file(dict(weights), partial)


def _keep_proximal(batch: Sequence[_Sequence], logprobs: Tensor) -> None:
    for sequence, row in zip(batch, logprobs.cpu(), strict=True):
        sequence.proximal = row[: len(sequence.mask)]


def _refuse_not_finite_inputs(sequences: Sequence[_Sequence]) -> None:
    """Check the log-probabilities too: the capped correction may hide an infinite one, so that the loss is finite."""
    faults = []
    for sequence in sequences:
        parts = {
            "advantage": torch.tensor(sequence.advantage),
            "log-probabilities by the engine": sequence.behaviour[sequence.mask],
        }
        faults += [f"{name} of {sequence.name}" for name in not_finite(parts.items())]
    if faults:
        raise NotFiniteError(f"not finite: {named(faults)}")


def _cause(batch: Sequence[_Sequence], logprobs: Tensor) -> str:
    """The cause of a loss that is not finite: the model's log-probabilities, and of which rollouts."""
    rows = [(s.name, logprobs[row, : len(s.mask)].cpu()[s.mask]) for row, s in enumerate(batch)]
    wrong = not_finite(rows)
    if wrong:
        return f"not finite: the learner's log-probabilities of {named(wrong)}"
    return "but all values it is computed from are finite"


def _schedule(step: int, steps: int, warmup: int, kind: str) -> float:
    if step < warmup:
        return (step + 1) / warmup
    if kind == "constant":
        return 1.0
    return 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))
