"""The two sides of bench_learner: a whole update of this package's trainer, and of plain transformers with padding.

Both compute the same loss of the same sequences with the same optimizer, which the norms of their gradients show.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence

from agent_rl.config.topology import RlStage
from agent_rl.learning.advantages import group_advantages
from agent_rl.learning.rates import TYPES, Type
from agent_rl.learning.trainer import Trainer
from agent_rl.messages import TrainingGroup
from agent_rl_contract.builders import algorithm, opened, repacked, rl_stage, trajectory
from benchmarks.rollout_models import MAX_LENGTH, Workload, workload

GROUP = 8
"""Rollouts of a group."""
SAMPLED = -5.0
"""log mu of every token."""
ALGORITHM = algorithm()
"""The constants of the loss."""
STAGE = rl_stage(warmup_steps=0, max_response_tokens=MAX_LENGTH)


@dataclass(frozen=True)
class Setting:
    """The model, the sequences and the device that both sides are measured on."""

    model: Path
    sequences: int
    scale: float
    threads: int
    device: str
    dtype: Type
    microbatch_tokens: int
    vocabulary: int

    def work(self, seed: int) -> Workload:
        """Prompts, and lengths of responses."""
        return workload(self.sequences, "log-normal", seed, scale=self.scale)


@dataclass(frozen=True)
class Spent:
    """Seconds of an update, and the norm of its gradient."""

    seconds: float
    processor: float
    """Processor seconds of all threads."""
    norm: float


class Clock:
    """Measures one update."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._began = time.perf_counter(), time.process_time()

    def spent(self, norm: float) -> Spent:
        """Waits for the device."""
        if self._device.startswith("cuda"):
            torch.cuda.synchronize()
        seconds, processor = self._began
        return Spent(time.perf_counter() - seconds, time.process_time() - processor, norm)


def rewards(count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Rewards of a group: every second rollout is right."""
    return np.array([index % 2 for index in range(count)], dtype=np.float32)


def responses(work: Workload, seed: int, vocabulary: int) -> list[np.ndarray[Any, np.dtype[np.int32]]]:
    """Random tokens, the same for both sides."""
    rng = np.random.default_rng(seed)
    return [rng.integers(10, vocabulary, length).astype(np.int32) for length in work.lengths]


def groups_of(work: Workload, seed: int, vocabulary: int, group: int = GROUP) -> list[TrainingGroup]:
    """The groups of a step, each of ``group`` rollouts."""
    tokens = responses(work, seed, vocabulary)
    groups = []
    for first in range(0, len(tokens), group):
        of = opened(first)
        rows = tuple(
            repacked(
                trajectory(of, index - first),
                prompt_tokens=np.array(work.prompts[index], dtype=np.int32),
                tokens=tokens[index],
                loss_mask=np.ones(len(tokens[index]), dtype=np.uint8),
                logprobs=np.full(len(tokens[index]), SAMPLED, dtype=np.float32),
                policies=np.zeros((len(tokens[index]), 2), dtype=np.int32),
            )
            for index in range(first, min(first + group, len(tokens)))
        )
        groups.append(TrainingGroup(of.group, 0, of.policy, rows, rewards(len(rows))))
    return groups


class Ours:
    """`Trainer.rl_step`: the policy loss with its figures, in micro-batches packed without padding."""

    def __init__(self, setting: Setting, stage: RlStage = STAGE) -> None:
        self._setting, self._stage = setting, stage
        self._trainer = Trainer(
            setting.model,
            dtype=setting.dtype,
            device=setting.device,
            algorithm=ALGORITHM.model_copy(update={"microbatch_tokens": setting.microbatch_tokens}),
            threads=setting.threads,
            seed=0,
            mismatch_tokens=0,
        )
        self.model = self._trainer.model
        self.parameters = sum(p.numel() for p in self.model.module.parameters())

    def update(self, work: Workload, seed: int, group: int = GROUP) -> Spent:
        """One step of a stage, with ``group`` rollouts a group."""
        groups = groups_of(work, seed, self._setting.vocabulary, group)
        clock = Clock(self._setting.device)
        figures = self._trainer.rl_step(groups, self._stage, 0)
        assert figures.gradient_norm is not None
        return clock.spent(figures.gradient_norm)


Attention = Literal["sdpa", "eager"]


class Padded:
    """transformers as its documentation shows it: rows padded on the right to the longest of their batch, with a mask.

    ``batch`` rows at a time; sorted by length first if ``by_length``. ``last_logits``: logits are made only from the
    earliest response of the batch on (transformers' ``logits_to_keep``), instead of for all tokens.
    """

    def __init__(
        self, setting: Setting, batch: int, *, by_length: bool, attention: Attention = "sdpa", last_logits: bool = False
    ) -> None:
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(setting.threads)
        self._setting, self._batch, self._by_length, self._last_logits = setting, batch, by_length, last_logits
        model: Any = AutoModelForCausalLM.from_pretrained(
            setting.model, trust_remote_code=False, dtype=TYPES[setting.dtype], attn_implementation=attention
        )
        self._model = model.to(setting.device).train()
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=STAGE.learning_rate, weight_decay=ALGORITHM.weight_decay, fused=True
        )

    def update(self, work: Workload, seed: int) -> Spent:
        """Batch by batch, with the gradients added up."""
        tokens = responses(work, seed, self._setting.vocabulary)
        sizes = [min(GROUP, len(tokens) - first) for first in range(0, len(tokens), GROUP)]
        advantages = np.concatenate([group_advantages(rewards(size)) for size in sizes]).tolist()
        rows = [
            Row(torch.tensor([*prompt, *response.tolist()]), len(prompt), advantage)
            for prompt, response, advantage in zip(work.prompts, tokens, advantages, strict=True)
        ]
        if self._by_length:
            rows.sort(key=lambda row: len(row.tokens))
        total = sum(len(response) for response in tokens)
        clock = Clock(self._setting.device)
        self._optimizer.zero_grad()
        for start in range(0, len(rows), self._batch):
            loss: Any = self._loss(rows[start : start + self._batch]) / total
            loss.backward()
        norm = clip_grad_norm_(self._model.parameters(), ALGORITHM.gradient_clip)
        self._optimizer.step()
        return clock.spent(float(norm))

    def _loss(self, rows: Sequence[Row]) -> torch.Tensor:
        """The sum over tokens of the clipped surrogate, with the truncated correction (`agent_rl.learning.losses`)."""
        device = self._setting.device
        inputs, mask, labels = (each.to(device) for each in pad(rows))
        keep = inputs.shape[1] - min(row.prompt for row in rows) + 1 if self._last_logits else 0
        logits = self._model(input_ids=inputs, attention_mask=mask, logits_to_keep=keep, use_cache=False).logits
        labels = labels[:, -logits.shape[1] :]
        logprobs = -cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="none").view(labels.shape)
        proximal = logprobs.detach()
        ratio = (logprobs - proximal).exp()
        bounded = ratio.clamp(1.0 - ALGORITHM.clip_low, 1.0 + ALGORITHM.clip_high)
        advantages = torch.tensor([[row.advantage] for row in rows], device=device)
        correction = (proximal - SAMPLED).exp().clamp(max=ALGORITHM.correction_cap)
        surrogate = torch.minimum(ratio * advantages, bounded * advantages)
        return -torch.where(labels >= 0, correction * surrogate, 0.0).sum()


class Row(NamedTuple):
    """Tokens of prompt and response [n], how many of them are the prompt's, and the advantage."""

    tokens: torch.Tensor
    prompt: int
    advantage: float


def pad(rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, attention mask and labels [rows, longest]. A label is the next token, -100 unless of the response."""
    inputs = pad_sequence([row.tokens for row in rows], batch_first=True)
    mask = pad_sequence([torch.ones_like(row.tokens) for row in rows], batch_first=True)
    labels = torch.full_like(inputs, -100)
    for place, row in enumerate(rows):
        labels[place, row.prompt - 1 : len(row.tokens) - 1] = row.tokens[row.prompt :]
    return inputs, mask, labels


Side = Ours | Padded
