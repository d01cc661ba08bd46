"""The learner's torch side: supervised steps, GRPO-RoC steps, weights out, checkpoints in Hugging Face format.

Synchronous and free of sockets; the learner actor runs it in a thread of its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_rl.advantages import group_advantages
from agent_rl.batching import microbatches, split_evenly
from agent_rl.disk import remove, whole
from agent_rl.finite import NotFiniteError, Snapshot, TrainingStoppedError, named, not_finite
from agent_rl.losses import Loss, LossSettings, policy_loss, token_logprobs
from agent_rl.messages import TrainingGroup
from agent_rl.topology import Algorithm, RlStage, SftStage

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
STATE_FILE = "trainer.json"
OPTIMIZER_FILE = "optimizer.safetensors"


@dataclass(frozen=True, slots=True)
class Position:
    """Where a run stands: the stage, the version it began at, and the version (RL steps) reached."""

    stage: int
    stage_version: int
    version: int


@dataclass(slots=True)
class _Sequence:
    """One trajectory as the trainer sees it; arrays over its n response tokens, ``tokens`` over prompt and response."""

    name: str
    tokens: Tensor
    prompt: int
    mask: Tensor
    behaviour: Tensor
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
        loss: Loss = policy_loss,
    ) -> None:
        torch.set_num_threads(threads)
        torch.manual_seed(seed)
        self.device = torch.device(device)
        self.algorithm = algorithm
        self.tokenizer = AutoTokenizer.from_pretrained(model_path)
        self.model = AutoModelForCausalLM.from_pretrained(model_path, dtype=DTYPES[dtype]).to(self.device)
        self.model.config.use_cache = False
        self.max_length = int(self.model.config.get_text_config().max_position_embeddings)
        self.settings = LossSettings(
            clip_low=algorithm.clip_low,
            clip_high=algorithm.clip_high,
            correction_cap=algorithm.correction_cap,
            entropy_coefficient=algorithm.entropy_coefficient,
        )
        self.loss = loss
        self.optimizer = self._new_optimizer()

    def _new_optimizer(self) -> torch.optim.AdamW:
        return torch.optim.AdamW(
            self.model.parameters(), lr=0.0, betas=(0.9, 0.999), weight_decay=self.algorithm.weight_decay
        )

    def reset_optimizer(self) -> None:
        """Forget the optimizer's moments, as a stage may ask."""
        self.optimizer = self._new_optimizer()

    # Supervised --------------------------------------------------------------------------------------------------------

    def sft_step(self, batch: Sequence[tuple[list[int], list[int]]], stage: SftStage, step: int) -> dict[str, float]:
        """One supervised step on (tokens, loss mask) pairs: mean cross-entropy over the masked-in tokens.

        Raises NotFiniteError, with weights and optimizer as before, when loss or gradient is not finite.
        """
        self._set_learning_rate(stage.learning_rate * _schedule(step, stage.steps, stage.warmup_steps, stage.schedule))
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        total = max(1, sum(sum(mask[1:]) for _, mask in batch))
        loss_sum = 0.0
        lengths = [len(tokens) for tokens, _ in batch]
        for indices in microbatches(lengths, max_tokens=self.algorithm.microbatch_tokens):
            width = max(lengths[index] for index in indices)
            inputs = torch.zeros(len(indices), width, dtype=torch.long)
            mask = torch.zeros(len(indices), width)
            for row, index in enumerate(indices):
                tokens, trained = batch[index]
                inputs[row, : len(tokens)] = torch.tensor(tokens)
                mask[row, : len(tokens)] = torch.tensor(trained, dtype=torch.float32)
            inputs, mask = inputs.to(self.device), mask.to(self.device)
            logits = self._logits(inputs)
            losses = torch.nn.functional.cross_entropy(
                logits[:, :-1].reshape(-1, logits.shape[-1]).float(), inputs[:, 1:].reshape(-1), reduction="none"
            )
            loss = (losses * mask[:, 1:].reshape(-1)).sum() / total
            loss.backward()
            loss_sum += float(loss.detach())
            if not math.isfinite(loss_sum):
                raise NotFiniteError(f"the loss is {loss_sum} on a micro-batch of {len(indices)} demonstrations")
        return {"loss": loss_sum, "gradient_norm": self._apply(), "tokens": float(total)}

    # Reinforcement -----------------------------------------------------------------------------------------------------

    def rl_step(self, groups: Sequence[TrainingGroup], stage: RlStage, stage_step: int) -> dict[str, float]:
        """One step of GRPO-RoC on the kept groups, in the given order; figures by name.

        The proximal log-probabilities are the learner's own before the first update. Raises NotFiniteError, with weights and
        optimizer as before the step, when the loss or gradient of any update is not finite.
        """
        sequences = [sequence for group in groups for sequence in self._sequences(group)]
        trained = float(sum(int(s.mask.sum()) for s in sequences))
        figures = {"trained_tokens": trained, "trained_rollouts": float(len(sequences)), "skipped": 0.0}
        if not sequences:
            return figures
        _refuse_not_finite_inputs(sequences)
        rate = stage.learning_rate * _schedule(stage_step, stage.steps, stage.warmup_steps, stage.schedule)
        self._set_learning_rate(rate)
        self.model.train()
        totals: dict[str, float] = {}
        batches = split_evenly(range(len(sequences)), self.algorithm.updates_per_step)
        if len(batches) > 1:  # with one update its own forward pass is the proximal one
            self._fill_proximal(sequences)
        # A single update is refused before it changes anything; of several, the first may have been made already.
        before = Snapshot(self.model, self.optimizer) if len(batches) > 1 else None
        try:
            gradient_norms = [self._update([sequences[index] for index in indices], totals) for indices in batches]
        except NotFiniteError:
            self.optimizer.zero_grad(set_to_none=True)
            if before is not None:
                before.put_back()
            raise
        tokens = totals.pop("tokens", 0.0) or 1.0
        figures.update({name: value / tokens for name, value in totals.items() if name != "loss"})
        figures["loss"] = totals.get("loss", 0.0) / len(batches)
        figures["gradient_norm"] = float(np.mean(gradient_norms))
        figures["learning_rate"] = rate
        return figures

    def _sequences(self, group: TrainingGroup) -> list[_Sequence]:
        advantages = group_advantages(group.rewards, divide_by_std=self.algorithm.advantage_std)
        return [
            _Sequence(
                name=f"{group.group}, sample {t.sample}",
                tokens=torch.from_numpy(np.concatenate([t.prompt_tokens, t.tokens]).astype(np.int64)),
                prompt=len(t.prompt_tokens),
                mask=torch.from_numpy(t.loss_mask.astype(np.float32)),
                behaviour=torch.from_numpy(np.array(t.logprobs, dtype=np.float32)),
                advantage=float(advantage),
            )
            for t, advantage in zip(group.trajectories, advantages, strict=True)
        ]

    def _fill_proximal(self, sequences: Sequence[_Sequence]) -> None:
        with torch.no_grad():
            for batch in self._microbatches(sequences):
                logprobs, _ = self._response_logprobs(batch)
                for row, sequence in enumerate(batch):
                    sequence.proximal = logprobs[row, : len(sequence.mask)].cpu()

    def _update(self, sequences: Sequence[_Sequence], totals: dict[str, float]) -> float:
        """One optimizer update; its gradient norm. Raises NotFiniteError before it changes a weight."""
        self.optimizer.zero_grad(set_to_none=True)
        normaliser = max(1.0, float(sum(float(s.mask.sum()) for s in sequences)))
        loss_sum = 0.0
        for batch in self._microbatches(sequences):
            width = max(len(s.mask) for s in batch)
            logprobs, entropy = self._response_logprobs(batch)
            mask = _stack([s.mask for s in batch], width).to(self.device)
            behaviour = _stack([s.behaviour for s in batch], width).to(self.device)
            advantages = torch.tensor([[s.advantage] for s in batch], device=self.device).expand_as(mask)
            if batch[0].proximal is None:
                proximal = logprobs.detach()
            else:
                proximal = _stack([s.proximal for s in batch if s.proximal is not None], width).to(self.device)
            loss, sums = self.loss(
                logprobs, proximal, behaviour, advantages, mask, normaliser=normaliser, settings=self.settings
            )
            if self.settings.entropy_coefficient:
                loss = loss - self.settings.entropy_coefficient * (entropy * mask).sum() / normaliser
            loss.backward()
            loss_sum += float(loss.detach())
            if not math.isfinite(loss_sum):
                raise NotFiniteError(f"the loss is {loss_sum}, {_cause(batch, logprobs.detach())}")
            _add(totals, "entropy", float((entropy.detach() * mask).sum()))
            _add(totals, "clip_share", float(sums.clipped))
            _add(totals, "ratio_deviation", float(sums.ratio_deviation))
            _add(totals, "correction_mean", float(sums.correction))
            _add(totals, "correction_capped_share", float(sums.correction_capped))
            _add(totals, "policy_gap", float(sums.log_gap))
            _add(totals, "tokens", float(mask.sum()))
        _add(totals, "loss", loss_sum)
        return self._apply()

    def _microbatches(self, sequences: Sequence[_Sequence]) -> list[list[_Sequence]]:
        lengths = [len(sequence.tokens) for sequence in sequences]
        batches = microbatches(lengths, max_tokens=self.algorithm.microbatch_tokens)
        return [[sequences[index] for index in batch] for batch in batches]

    def _response_logprobs(self, batch: Sequence[_Sequence]) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of the response tokens of a micro-batch, each [rows, longest response]."""
        longest = max(len(s.tokens) for s in batch)
        width = max(len(s.mask) for s in batch)
        inputs = _stack([s.tokens for s in batch], longest).to(self.device)
        # The logits that predict response token i stand at prompt + i - 1; rows are padded by repeating a valid place.
        places = torch.stack([(torch.arange(width) + s.prompt - 1).clamp(max=len(s.tokens) - 2) for s in batch]).to(
            self.device
        )
        hidden = self.model.base_model(input_ids=inputs, use_cache=False).last_hidden_state
        rows = torch.arange(len(batch), device=self.device).unsqueeze(1)
        logits = self.model.lm_head(hidden[rows, places])
        return token_logprobs(logits, inputs[rows, places + 1], self.algorithm.temperature)

    def _logits(self, inputs: Tensor) -> Tensor:
        # Sequences are padded on the right under a causal mask: no position attends to padding behind it.
        logits: Tensor = self.model(input_ids=inputs, use_cache=False).logits
        return logits

    def _apply(self) -> float:
        """Clip and apply the gradient; its norm. Raises NotFiniteError, having changed nothing, when that is not finite."""
        gradients = [(name, p.grad) for name, p in self.model.named_parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm([gradient for _, gradient in gradients])
        if not math.isfinite(norm):
            where = not_finite(gradients)
            self.optimizer.zero_grad(set_to_none=True)
            raise NotFiniteError(f"the gradient's norm is {float(norm)}" + (f": see {named(where)}" if where else ""))
        torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), self.algorithm.gradient_clip, norm)
        self.optimizer.step()
        return float(norm)

    def _set_learning_rate(self, rate: float) -> None:
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = rate

    # Weights and checkpoints -------------------------------------------------------------------------------------------

    def write_weights(self, path: Path) -> None:
        """Write the weights, under the model's own names, to one safetensors file; it appears whole or not at all.

        Raises TrainingStoppedError, and writes nothing, when they are not finite.
        """
        self._refuse_not_finite(self.model.state_dict(), path)
        state = {name: tensor.detach().cpu().contiguous() for name, tensor in self.model.state_dict().items()}
        for tied in getattr(self.model, "all_tied_weights_keys", {}) or {}:
            state.pop(tied, None)
        with whole(path) as partial:
            save_file(state, partial)

    def save(self, directory: Path, position: Position) -> None:
        """Write a checkpoint that `from_pretrained` loads and `restore` continues; it appears whole or not at all.

        Raises TrainingStoppedError, and writes nothing, when weights or moments are not finite.
        """
        tensors, steps = _flatten_optimizer(self.optimizer)
        self._refuse_not_finite(self.model.state_dict() | tensors, directory)
        state = {"stage": position.stage, "stage_version": position.stage_version, "version": position.version}
        with whole(directory) as partial:
            partial.mkdir()
            self.model.save_pretrained(partial)
            self.tokenizer.save_pretrained(partial)
            save_file(tensors, partial / OPTIMIZER_FILE)
            (partial / STATE_FILE).write_text(json.dumps({**state, "optimizer_steps": steps}))
            remove(directory)  # what is left of a directory that is no whole checkpoint

    def _refuse_not_finite(self, tensors: Mapping[str, Tensor], path: Path) -> None:
        wrong = not_finite(tensors.items())
        if wrong:
            raise TrainingStoppedError(
                f"{named(wrong)} of the model hold values that are not finite, so {path} is not written; if this is so "
                "before the first step, mend what model.path names, else lower the learning_rate and run again: "
                "the newest checkpoint is finite"
            )

    def restore(self, directory: Path) -> Position:
        """Take up a checkpoint: weights, optimizer, position."""
        state = json.loads((directory / STATE_FILE).read_text())
        weights = load_file(directory / "model.safetensors")
        missing, unexpected = self.model.load_state_dict(weights, strict=False)
        tied = set(getattr(self.model, "all_tied_weights_keys", {}) or {})
        if unexpected or set(missing) - tied:
            raise ValueError(f"{directory}: its weights are not this model's ({[*missing, *unexpected][:3]} ...)")
        self.optimizer = self._new_optimizer()
        _unflatten_optimizer(self.optimizer, load_file(directory / OPTIMIZER_FILE), state["optimizer_steps"])
        return Position(state["stage"], state["stage_version"], state["version"])


def read_position(directory: Path) -> Position | None:
    """The position of a checkpoint; None when the folder is not a whole one."""
    try:
        state = json.loads((directory / STATE_FILE).read_text())
        return Position(state["stage"], state["stage_version"], state["version"])
    except (OSError, ValueError, KeyError):
        return None


def _refuse_not_finite_inputs(sequences: Sequence[_Sequence]) -> None:
    """An infinite log-probability need not make the loss so: the capped correction hides it."""
    found = []
    for sequence in sequences:
        parts = {
            "advantage": torch.tensor(sequence.advantage),
            "log-probabilities by the engine": sequence.behaviour[sequence.mask > 0],
        }
        found += [f"{name} of {sequence.name}" for name in not_finite(parts.items())]
    if found:
        raise NotFiniteError(f"not finite: {named(found)}")


def _cause(batch: Sequence[_Sequence], logprobs: Tensor) -> str:
    """Of a micro-batch whose loss is not finite: whether the model's answers are not, and of which rollouts."""
    rows = [(s.name, logprobs[row, : len(s.mask)].cpu()[s.mask > 0]) for row, s in enumerate(batch)]
    wrong = not_finite(rows)
    if wrong:
        return f"not finite: log-probabilities by the learner of {named(wrong)}"
    return "though everything it is computed from is finite"


def _schedule(step: int, steps: int, warmup: int, kind: str) -> float:
    if step < warmup:
        return (step + 1) / warmup
    if kind == "constant":
        return 1.0
    return 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def _stack(rows: Sequence[Tensor], width: int) -> Tensor:
    """Rows padded on the right with zeros to one width."""
    stacked = torch.zeros(len(rows), width, dtype=rows[0].dtype)
    for index, row in enumerate(rows):
        stacked[index, : len(row)] = row
    return stacked


def _add(totals: dict[str, float], name: str, value: float) -> None:
    totals[name] = totals.get(name, 0.0) + value


def _flatten_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, float]]:
    """AdamW's moments as named tensors and its step counts as numbers: no pickle on disk either."""
    tensors: dict[str, Tensor] = {}
    steps: dict[str, float] = {}
    for index, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            if name == "step":
                steps[str(index)] = float(value)
            else:
                tensors[f"{index}.{name}"] = value.detach().cpu().contiguous()
    return tensors, steps


def _unflatten_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], steps: dict[str, float]) -> None:
    state: dict[int, dict[str, Any]] = {int(index): {"step": torch.tensor(value)} for index, value in steps.items()}
    for key, tensor in tensors.items():
        index, name = key.split(".", 1)
        state[int(index)][name] = tensor
    whole = optimizer.state_dict()
    whole["state"] = state
    optimizer.load_state_dict(whole)
