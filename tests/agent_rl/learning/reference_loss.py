"""A step of GRPO-RoC as the paper and the design write it: one rollout at a time, one token at a time, in float64.

Slow and meant to be read. Nothing here is shared with the production path: no packing, no micro-batches, no chunks, no
vectors.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from agent_rl.config.algorithm import Algorithm
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


def logprobs(model: Any, rollout: Trajectory, temperature: float) -> list[Tensor]:
    """Of each response token."""
    said = distributions(model, rollout, temperature)
    return [said[t][token] for t, token in enumerate(rollout.unpack().tokens.tolist())]


def weight(x: float, a: Algorithm) -> float:
    """The correction for a token (or a response, in GSPO) of which pi_prox / mu is x."""
    if a.correction == "truncated":
        return min(x, a.correction_cap)
    if a.correction == "masked":
        return x if a.correction_floor <= x <= a.correction_cap else 0.0
    return {"none": 1.0, "decoupled": x}[a.correction]


def surrogate(ratio: Tensor, advantage: float, a: Algorithm) -> Tensor:
    clipped = torch.clamp(ratio, 1 - a.clip_low, 1 + a.clip_high)
    return torch.minimum(ratio * advantage, clipped * advantage)


def rollout_terms(
    now: list[Tensor], proximal: list[float], behaviour: list[float], advantage: float, a: Algorithm
) -> list[Tensor]:
    """What is maximised for each of one rollout's own tokens: equations of the papers, before any mean."""
    gaps = [prox - mu for prox, mu in zip(proximal, behaviour, strict=True)]
    if a.sequence_mask is not None:
        low, high = a.sequence_mask
        if not low <= math.exp(sum(gaps) / len(gaps)) <= high:
            return [0.0 * each for each in now]
    if a.loss == "gspo":
        s = torch.exp(sum(p - q for p, q in zip(now, proximal, strict=True)) / len(now))
        of_response = weight(math.exp(sum(gaps) / len(gaps)), a) * surrogate(s, advantage, a)
        return [of_response for _ in now]
    terms = []
    for p, prox, gap in zip(now, proximal, gaps, strict=True):
        ratio = torch.exp(p - prox)
        if a.loss == "cispo":
            bounded = min(max(float(ratio.detach()), 1 - a.clip_low), 1 + a.clip_high)
            terms.append(weight(math.exp(gap), a) * bounded * advantage * p)
        else:
            terms.append(weight(math.exp(gap), a) * surrogate(ratio, advantage, a))
    return terms


def divergences(now: list[Tensor], reference: list[float], estimator: str) -> list[Tensor]:
    """Of each token from the reference policy. k1: its value, and the gradient of (log pi_theta - log pi_ref)^2 / 2."""
    made = []
    for p, ref in zip(now, reference, strict=True):
        if estimator == "k3":
            made.append(torch.exp(ref - p) - (ref - p) - 1)
        else:
            gap = float(p.detach()) - ref
            made.append(gap + gap * (p - p.detach()))
    return made


def share(a: Algorithm, own: int, tokens: int, sequences: int, longest: int) -> float:
    """Of one token of a rollout with ``own`` tokens, in an update of so many tokens and rollouts."""
    if a.loss in {"grpo", "cispo"}:
        return 1 / tokens
    if a.loss == "dr_grpo":
        return 1 / sequences / longest
    return 1 / sequences / own


def step_gradients(
    model: Any, groups: list[TrainingGroup], a: Algorithm, rate: float, *, reference: Any = None, longest: int = 64
) -> tuple[list[dict[str, Tensor]], float]:
    """The gradient of each update of a step, and the mean loss; between updates plain gradient descent at ``rate``."""
    batch = []
    for group in groups:
        rewards = group.rewards.tolist()
        if a.overlong == "penalty":
            start = longest - a.overlong_cache
            over = [max(0, rollout.response_length - start) / a.overlong_cache for rollout in group.trajectories]
            rewards = [reward - min(1.0, each) for reward, each in zip(rewards, over, strict=True)]
        for rollout, advantage in zip(
            group.trajectories, advantages(rewards, divide_by_std=a.advantage_std), strict=True
        ):
            if not (a.overlong == "mask" and rollout.status == "truncated"):
                batch.append((rollout, advantage))
    with torch.no_grad():
        proximal = [[float(x) for x in logprobs(model, rollout, a.temperature)] for rollout, _ in batch]
        fixed = [[float(x) for x in logprobs(reference or model, rollout, a.temperature)] for rollout, _ in batch]
    size = len(batch) // a.updates_per_step
    assert size * a.updates_per_step == len(batch)
    gradients, losses = [], []
    for start in [*range(0, len(batch), size)] * a.epochs:
        part = range(start, start + size)
        tokens = sum(int(batch[i][0].unpack().loss_mask.sum()) for i in part)
        model.zero_grad()
        loss = torch.zeros((), dtype=torch.float64)
        for i in part:
            rollout, advantage = batch[i]
            own = [t for t in range(rollout.response_length) if rollout.unpack().loss_mask[t]]
            said = distributions(model, rollout, a.temperature)
            now = [said[t][int(rollout.unpack().tokens[t])] for t in own]
            terms = rollout_terms(
                now, [proximal[i][t] for t in own], [float(rollout.unpack().logprobs[t]) for t in own], advantage, a
            )
            each = share(a, len(own), tokens, size, longest)
            loss = loss - each * sum(terms)
            if a.kl is not None:
                kl = divergences(now, [fixed[i][t] for t in own], a.kl.estimator)
                loss = loss + a.kl.coefficient * each * sum(kl)
            loss = loss + a.entropy_coefficient * sum((said[t].exp() * said[t]).sum() for t in own) / tokens
        loss.backward()
        losses.append(float(loss.detach()))
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad})
        with torch.no_grad():
            for p in model.parameters():
                if p.requires_grad:
                    p.sub_(rate * p.grad)
    return gradients, sum(losses) / len(losses)
