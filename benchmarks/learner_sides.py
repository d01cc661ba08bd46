"""The two sides of bench_learner: a whole update of this package's trainer, and of plain transformers with padding."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence

from agent_rl.learning.policy_model import DTYPES
from agent_rl.learning.trainer import Trainer
from agent_rl.messages import TrainingGroup
from agent_rl.testing import algorithm, opened, rl_stage, trajectory
from benchmarks.rollout_models import Workload, workload

GROUP = 8
"""Rollouts of a group."""


@dataclass(frozen=True)
class Setting:
    """What both sides are measured on."""

    model: Path
    sequences: int
    scale: float
    threads: int
    device: str
    dtype: str
    microbatch_tokens: int
    vocabulary: int

    def work(self, seed: int) -> Workload:
        """Prompts, and lengths of responses."""
        return workload(self.sequences, "log-normal", seed, scale=self.scale)


class Side(Protocol):
    """One of the two."""

    def update(self, work: Workload, seed: int) -> float:
        """Forward, backward and AdamW on all sequences; seconds."""


def responses(work: Workload, seed: int, vocabulary: int) -> list[np.ndarray[Any, np.dtype[np.int32]]]:
    """Random tokens, the same for both sides."""
    rng = np.random.default_rng(seed)
    return [rng.integers(10, vocabulary, length).astype(np.int32) for length in work.lengths]


class Ours:
    """`Trainer.rl_step`: the policy loss with its figures, in micro-batches packed without padding."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._trainer = Trainer(
            setting.model,
            dtype=setting.dtype,
            device=setting.device,
            algorithm=algorithm(microbatch_tokens=setting.microbatch_tokens),
            threads=setting.threads,
            seed=0,
            mismatch_tokens=0,
        )
        self.parameters = sum(p.numel() for p in self._trainer.model.module.parameters())

    def update(self, work: Workload, seed: int) -> float:
        """Seconds."""
        tokens = responses(work, seed, self._setting.vocabulary)
        groups = []
        for first in range(0, len(tokens), GROUP):
            of = opened(first)
            rows = tuple(
                replace(
                    trajectory(of, index - first),
                    prompt_tokens=np.array(work.prompts[index], dtype=np.int32),
                    tokens=tokens[index],
                    loss_mask=np.ones(len(tokens[index]), dtype=np.uint8),
                    logprobs=np.full(len(tokens[index]), -5.0, dtype=np.float32),
                    policies=np.zeros((len(tokens[index]), 2), dtype=np.int32),
                )
                for index in range(first, min(first + GROUP, len(tokens)))
            )
            rewards = np.array([index % 2 for index in range(len(rows))], dtype=np.float32)
            groups.append(TrainingGroup(of.group, 0, of.policy, rows, rewards))
        began = time.perf_counter()
        self._trainer.rl_step(groups, rl_stage(), 5)
        _wait(self._setting.device)
        return time.perf_counter() - began


class Padded:
    """transformers as its documentation shows it: rows padded to the longest of their batch, and the model's own loss.

    ``batch`` rows at a time; sorted by length first if ``by_length``.
    """

    def __init__(self, setting: Setting, batch: int, *, by_length: bool) -> None:
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(setting.threads)
        self._setting, self.batch, self.by_length = setting, batch, by_length
        model: Any = AutoModelForCausalLM.from_pretrained(setting.model, dtype=DTYPES[setting.dtype])
        self._model = model.to(setting.device).train()
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-6, fused=True)

    def update(self, work: Workload, seed: int) -> float:
        """Seconds."""
        device, tokens = self._setting.device, responses(work, seed, self._setting.vocabulary)
        rows = [
            (torch.tensor([*prompt, *response.tolist()]), len(prompt))
            for prompt, response in zip(work.prompts, tokens, strict=True)
        ]
        if self.by_length:
            rows.sort(key=lambda row: len(row[0]))
        total = sum(len(response) for response in tokens)
        began = time.perf_counter()
        self._optimizer.zero_grad()
        for start in range(0, len(rows), self.batch):
            part = rows[start : start + self.batch]
            inputs, mask, labels = _pad(part)
            self._model(
                input_ids=inputs.to(device),
                attention_mask=mask.to(device),
                labels=labels.to(device),
                num_items_in_batch=total,
                use_cache=False,
            ).loss.backward()
        clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        _wait(device)
        return time.perf_counter() - began


def _pad(rows: Sequence[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, attention mask and labels (-100 in prompts and padding) [rows, longest]."""
    inputs = pad_sequence([tokens for tokens, _ in rows], batch_first=True)
    mask = pad_sequence([torch.ones_like(tokens) for tokens, _ in rows], batch_first=True)
    labels = inputs.masked_fill(mask == 0, -100)
    for row, (_, prompt) in enumerate(rows):
        labels[row, :prompt] = -100
    return inputs, mask, labels


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
