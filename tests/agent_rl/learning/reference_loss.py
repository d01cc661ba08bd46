"""A step of GRPO-RoC as the paper and the design write it: one rollout at a time, one token at a time, in float64.

Slow and meant to be read. Nothing here is shared with the production path: no packing, no micro-batches, no chunks, no
vectors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agent_rl.config.algorithm import Algorithm
from agent_rl.messages import TrainingGroup, Trajectory

FIGURES = ("policy_gap", "kl", "clip_share", "ratio_deviation", "correction_mean", "correction_capped_share")


@dataclass
class Rollout:
    """What a loss knows of a rollout: of each token that the model wrote."""

    now: list[Tensor]
    proximal: list[float]
    behaviour: list[float]
    reference: list[float]
    advantage: float


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
    body = rollout.unpack()
    prompt, response = body.prompt_tokens.tolist(), body.tokens.tolist()
    starts = [int(start) for _, _, start in body.branches]
    said: list[Tensor] = []
    rows: list[list[int]] = []
    for number, (start, end) in enumerate(zip([0, *starts], [*starts, len(response)], strict=True)):
        before = prompt
        if number:  # a branch: an earlier row, up to where it parts
            parent, shared, _ = body.branches[number - 1].tolist()
            before = rows[parent][:shared]
        rows.append(before + response[start:end])
        distribution = torch.log_softmax(model(torch.tensor([rows[-1]])).logits[0] / temperature, dim=-1)
        said += [distribution[at - 1] for at in range(len(before), len(rows[-1]))]
    return said


def written(rollout: Trajectory) -> list[tuple[int, int, float]]:
    """Of each token that the model wrote: its place in the response, the token, and its log-probability by the engine."""
    body = rollout.unpack()
    places = zip(range(len(body.tokens)), body.tokens.tolist(), body.logprobs.tolist(), strict=True)
    return [each for each, own in zip(places, body.loss_mask, strict=True) if own]


def logprobs(model: Any, rollout: Trajectory, temperature: float) -> list[float]:
    with torch.no_grad():
        said = distributions(model, rollout, temperature)
    return [float(said[place][token]) for place, token, _ in written(rollout)]


def weight(x: float, response: float, a: Algorithm) -> tuple[float, bool]:
    """The correction for a token of which pi_prox / mu is x, in a response of this geometric mean of x; whether it was
    cut.
    """
    if a.sequence_mask is not None and not a.sequence_mask[0] <= response <= a.sequence_mask[1]:
        return 0.0, True
    if a.correction == "truncated":
        return min(x, a.correction_cap), x > a.correction_cap
    if a.correction == "masked" and not a.correction_floor <= x <= a.correction_cap:
        return 0.0, True
    return 1.0 if a.correction == "none" else x, False


def divergence(p: Tensor, reference: float, estimator: str) -> Tensor:
    """From the reference policy. k1: its value, and the gradient of (log pi_theta - log pi_ref)^2 / 2."""
    if estimator == "k3":
        return torch.exp(reference - p) - (reference - p) - 1
    gap = float(p.detach()) - reference
    return gap + gap * (p - p.detach())


def share(a: Algorithm, own: int, tokens: int, sequences: int, longest: int) -> float:
    """Of one token of a rollout with ``own`` tokens, in an update of so many tokens and rollouts."""
    if a.loss in {"grpo", "cispo"}:
        return 1 / tokens
    if a.loss == "dr_grpo":
        return 1 / sequences / longest
    return 1 / sequences / own


def loss_and_sums(rollouts: list[Rollout], a: Algorithm, *counts: int) -> tuple[Tensor, dict[str, float]]:
    """The equations of the papers for some rollouts of an update, and the sums of the figures over their tokens.

    ``counts``: the tokens and rollouts of the update, and the most tokens of a response.
    """
    loss, sums = torch.zeros((), dtype=torch.float64), dict.fromkeys(FIGURES, 0.0)
    for each in rollouts:
        count = len(each.now)
        response = math.exp(sum(prox - mu for prox, mu in zip(each.proximal, each.behaviour, strict=True)) / count)
        moved = torch.exp(sum(p - prox for p, prox in zip(each.now, each.proximal, strict=True)) / count)
        for p, prox, mu, ref in zip(each.now, each.proximal, each.behaviour, each.reference, strict=True):
            ratio, x = torch.exp(p - prox), math.exp(prox - mu)
            if a.loss == "gspo":
                ratio, x = moved, response
            r = float(ratio.detach())
            bounded = min(max(r, 1 - a.clip_low), 1 + a.clip_high)
            clipped = bounded != r if a.loss == "cispo" else bounded * each.advantage < r * each.advantage
            rising = bounded * p if a.loss == "cispo" else bounded + 0.0 * p if clipped else ratio
            w, cut = weight(x, response, a)
            part = share(a, count, *counts)
            loss = loss - part * w * each.advantage * rising
            figures = {
                "policy_gap": abs(prox - mu),
                "clip_share": clipped,
                "ratio_deviation": abs(r - 1),
                "correction_mean": w,
                "correction_capped_share": cut,
            }
            if a.kl is not None:
                kl = divergence(p, ref, a.kl.estimator)
                loss = loss + a.kl.coefficient * part * kl
                figures["kl"] = float(kl.detach())
            for name, value in figures.items():
                sums[name] += value
    return loss, sums


def step(
    model: Any, groups: list[TrainingGroup], a: Algorithm, rate: float, *, reference: Any, longest: int
) -> tuple[list[dict[str, Tensor]], dict[str, float]]:
    """The gradient of each update of a step, and the figures; between updates plain gradient descent, by at most ``rate``."""
    batch = []
    for group in groups:
        rewards = group.rewards.tolist()
        if a.overlong == "penalty":
            start = longest - a.overlong_cache
            over = [max(0, rollout.response_length - start) / a.overlong_cache for rollout in group.trajectories]
            rewards = [reward - min(1.0, each) for reward, each in zip(rewards, over, strict=True)]
        given = advantages(rewards, divide_by_std=a.advantage_std)
        for rollout, advantage in zip(group.trajectories, given, strict=True):
            if not (a.overlong == "mask" and rollout.status == "truncated"):
                batch.append((rollout, advantage, written(rollout)))
    proximal = [logprobs(model, rollout, a.temperature) for rollout, _, _ in batch]
    fixed = [
        logprobs(reference, rollout, a.temperature) if a.kl else own
        for own, (rollout, *_) in zip(proximal, batch, strict=True)
    ]
    size = len(batch) // a.updates_per_step
    assert size * a.updates_per_step == len(batch)
    trained = sum(len(own) for _, _, own in batch)
    gradients: list[dict[str, Tensor]] = []
    means = {"loss": 0.0, "entropy": 0.0, "gradient_norm": 0.0, **dict.fromkeys(FIGURES, 0.0)}
    for start in [*range(0, len(batch), size)] * a.epochs:
        tokens = sum(len(own) for _, _, own in batch[start : start + size])
        rollouts, entropy = [], torch.zeros((), dtype=torch.float64)
        for (rollout, advantage, own), prox, ref in list(zip(batch, proximal, fixed, strict=True))[
            start : start + size
        ]:
            said = distributions(model, rollout, a.temperature)
            entropy = entropy - sum((said[place].exp() * said[place]).sum() for place, _, _ in own)
            now = [said[place][token] for place, token, _ in own]
            rollouts.append(Rollout(now, prox, [mu for _, _, mu in own], ref, advantage))
        loss, sums = loss_and_sums(rollouts, a, tokens, size, longest)
        loss = loss - a.entropy_coefficient * entropy / tokens
        model.zero_grad()
        loss.backward()
        weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
        gradients.append({name: p.grad.clone() for name, p in weights.items()})
        norm = math.sqrt(sum(float(each.square().sum()) for each in gradients[-1].values()))
        updates = a.updates_per_step * a.epochs
        means["loss"] += float(loss.detach()) / updates
        means["gradient_norm"] += norm / updates
        for name, value in {**sums, "entropy": float(entropy.detach())}.items():
            means[name] += value / (trained * a.epochs)
        with torch.no_grad():
            for p in weights.values():
                p.sub_(rate / max(1.0, norm) * p.grad)
    return gradients, {**means, "trained_tokens": trained, "trained_rollouts": len(batch)}
