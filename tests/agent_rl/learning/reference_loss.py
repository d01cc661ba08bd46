"""A step of GRPO-RoC as the paper and the design write it: one rollout at a time, one token at a time, in float64.

Slow and meant to be read. Nothing here is shared with the production path: no packing, no micro-batches, no chunks, no
vectors.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from agent_rl.config.topology import Algorithm
from agent_rl.messages import TrainingGroup, Trajectory


def penalty(rollout: Trajectory) -> float:
    """p_err + p_format of the release, by the tags of the response."""
    tags = rollout.tags
    p_err = tags.error_responses / tags.tool_responses if tags.tool_responses else 0.5
    if tags.answers == 0 or tags.answers_opened != tags.answers or tags.answers_closed != tags.answers:
        return p_err + 1.0
    return p_err + (1.0 if tags.turns == 0 else min(1.0, (tags.answers - 1) / tags.turns))


def release_keeps(rollouts: list[Trajectory], rewards: list[float], keep: int) -> list[int]:
    """The release's RoC for groups with as many right as wrong rollouts: half of the places each."""
    right = [i for i in range(len(rollouts)) if rewards[i] > 0]
    wrong = [i for i in range(len(rollouts)) if rewards[i] <= 0]
    assert len(right) == len(wrong)
    right.sort(key=lambda i: penalty(rollouts[i]))  # stable: the first of equals
    return sorted(right[: keep // 2] + wrong[: keep // 2])


def advantages(rewards: list[float], *, divide_by_std: bool) -> list[float]:
    mean = sum(rewards) / len(rewards)
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / len(rewards))
    if std == 0:
        return [0.0 for _ in rewards]
    return [(r - mean) / std if divide_by_std else r - mean for r in rewards]


def distributions(model: Any, rollout: Trajectory, temperature: float) -> list[Tensor]:
    """What the model says before each response token, at the rollout's temperature, as log-probabilities of all
    tokens.
    """
    prompt, response = rollout.prompt_tokens.tolist(), rollout.tokens.tolist()
    logits = model(torch.tensor([prompt + response])).logits[0] / temperature
    distribution = torch.log_softmax(logits, dim=-1)
    return [distribution[len(prompt) + t - 1] for t in range(len(response))]


def logprobs(model: Any, rollout: Trajectory, temperature: float) -> list[Tensor]:
    """Of each response token."""
    said = distributions(model, rollout, temperature)
    return [said[t][token] for t, token in enumerate(rollout.tokens.tolist())]


def weights(gaps: list[float], a: Algorithm) -> list[float]:
    """Of one response's tokens, from log pi_prox - log mu of each."""
    made = []
    for gap in gaps:
        x = math.exp(gap)
        if a.correction == "none":
            made.append(1.0)
        elif a.correction == "truncated":
            made.append(min(x, a.correction_cap))
        elif a.correction == "masked":
            made.append(x if a.correction_floor <= x <= a.correction_cap else 0.0)
        elif a.correction == "decoupled":
            made.append(x)
    if a.sequence_mask is not None:
        low, high = a.sequence_mask
        if not low <= math.exp(sum(gaps) / len(gaps)) <= high:
            made = [0.0 for _ in made]
    return made


def rollout_sum(model: Any, rollout: Trajectory, advantage: float, proximal: list[float], a: Algorithm) -> Tensor:
    """The sum over one rollout's own tokens of what is maximised."""
    own = [t for t in range(len(rollout.tokens)) if rollout.loss_mask[t]]
    w = weights([proximal[t] - float(rollout.logprobs[t]) for t in own], a)
    said = distributions(model, rollout, a.temperature)
    now = [said[t][token] for t, token in enumerate(rollout.tokens.tolist())]
    total = torch.zeros((), dtype=torch.float64)
    for t, weight in zip(own, w, strict=True):
        ratio = torch.exp(now[t] - proximal[t])
        clipped = torch.clamp(ratio, 1 - a.clip_low, 1 + a.clip_high)
        total = total + weight * torch.minimum(ratio * advantage, clipped * advantage)
        entropy = -(said[t].exp() * said[t]).sum()
        total = total + a.entropy_coefficient * entropy
    return total


def step_gradients(model: Any, groups: list[TrainingGroup], a: Algorithm, rate: float) -> list[dict[str, Tensor]]:
    """The gradient of each update of a step; between them plain gradient descent at ``rate``."""
    batch = [
        (rollout, advantage)
        for group in groups
        for rollout, advantage in zip(
            group.trajectories, advantages(group.rewards.tolist(), divide_by_std=a.advantage_std), strict=True
        )
    ]
    with torch.no_grad():
        proximal = [[float(x) for x in logprobs(model, rollout, a.temperature)] for rollout, _ in batch]
    size = len(batch) // a.updates_per_step
    assert size * a.updates_per_step == len(batch)
    gradients = []
    for start in range(0, len(batch), size):
        part = range(start, start + size)
        tokens = sum(int(batch[i][0].loss_mask.sum()) for i in part)
        model.zero_grad()
        loss = -sum(rollout_sum(model, *batch[i], proximal[i], a) for i in part) / tokens
        loss.backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(rate * p.grad)
    return gradients
