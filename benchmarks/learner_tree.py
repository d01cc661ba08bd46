"""Shared prompts computed once, beside separate rows: one trainer in turns, the same weights and sequences.

The learning rate is 0, so that weights stay the same; the optimizer makes its updates all the same.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer

from agent_rl.environments.maths.environment import Maths
from agent_rl.messages import Problem
from agent_rl.rollout.prompts import ChatFormat
from benchmarks.learner_sides import STAGE, Ours, Setting, Spent
from benchmarks.rollout_models import Workload, workload

PROBLEM = (
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. How many clips did "
    "Natalia sell altogether in April and May?"
)
"""The first problem of GSM8K (arXiv 2110.14168)."""
SAMPLES, KEPT, LONG = 16, 8, 1000
"""Rollouts of a group; those that are trained with the prompt ``rstar2``; tokens of the long prompt, where all are."""


def rstar2_prompt(model: Path) -> tuple[int, ...]:
    """The tokens of a problem with the prompt ``rstar2`` of the maths environment, which lists its tool."""
    maths = Maths(seed=0, base=Path(), prompt="rstar2")
    chat = ChatFormat(AutoTokenizer.from_pretrained(model, trust_remote_code=False), {"maths": maths})
    return tuple(chat.prompt_tokens(Problem("0", PROBLEM, "72", environment="maths")))


def measure(setting: Setting, rounds: int) -> tuple[dict[str, float | str | None], list[list[object]]]:
    """Figures, and rows of the table: the prompt, its tokens, responses, tokens a second apart and together, ratio."""
    ours = Ours(setting, STAGE.model_copy(update={"learning_rate": 0.0}))
    block = ours.model.block
    long = tuple(np.random.default_rng(0).integers(10, setting.vocabulary, LONG).tolist())
    figures: dict[str, float | str | None] = {}
    differences: list[float] = []
    rows: list[list[object]] = []
    for suffix, prompt, kept in (("", rstar2_prompt(setting.model), KEPT), ("_long", long, SAMPLES)):
        spent: dict[int, list[Spent]] = {0: [], block: []}
        works: list[Workload] = []
        for number in range(1 + rounds):
            lengths = workload(SAMPLES, "log-normal", number, scale=setting.scale).lengths[:kept]
            works.append(Workload((prompt,) * kept, lengths))
            gradients = []
            for ours.model.block, updates in spent.items():
                updates.append(ours.update(works[-1], number, group=kept))
                if not number:
                    found = [p.grad.flatten() for _, p in ours.model.named_parameters() if p.grad is not None]
                    gradients.append(torch.cat(found))
            if gradients:
                differences.append(float((gradients[1] - gradients[0]).norm() / gradients[0].norm()))
        pairs = list(zip(spent[0], spent[block], strict=True))[1:]
        ratios = [apart.seconds / together.seconds for apart, together in pairs]
        name = f"tree_tokens_per_s_ratio{suffix}"
        figures |= {name: statistics.median(ratios), f"{name}_low": min(ratios), f"{name}_high": max(ratios)}
        figures[f"{name}_processor"] = statistics.median(one.processor / other.processor for one, other in pairs)
        tokens = [work.tokens + kept * len(prompt) for work in works]
        rates = [
            statistics.median(count / one.seconds for count, one in list(zip(tokens, updates, strict=True))[1:])
            for updates in spent.values()
        ]
        rows.append([suffix.strip("_") or "rstar2", len(prompt), kept, *rates, figures[name]])
    return figures | {"tree_gradient_difference": max(differences)}, rows
