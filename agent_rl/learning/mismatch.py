"""Measure how far engine and learner disagree at the same weights, separate from how far the policy has moved.

The gap of a token, log pi_prox - log mu, is the sum of two gaps::

    log pi_v - log mu        engine against learner; pi_v is the learner with the weights v that sampled the token;
                             includes the share of probability that ``top_p`` and ``top_k`` kept
    log pi_prox - log pi_v   staleness: the same code with newer weights

For tokens of the present version pi_v is pi_prox. For older tokens the learner evaluates a sample of each step's
rollouts with the older weights. Host memory holds as many copies of older weights as the staleness budget has versions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from agent_rl.figures import MismatchFigures
from agent_rl.learning.policy_model import PolicyModel
from agent_rl.learning.ranks import Ranks
from agent_rl.learning.sequences import TrainingSequence


class OlderWeights:
    """Copies of the trained weights of the last versions."""

    def __init__(self, keep: int = 0) -> None:
        self.keep = keep
        self._weights: dict[int, Mapping[str, Tensor]] = {}
        self.version: int | None = None
        """The version of the present weights; None before it is known."""

    def remember(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Keep the weights of the present version; the caller must not change them later."""
        self.version = version
        if self.keep:
            self._weights[version] = weights
        for old in sorted(self._weights)[: -self.keep - 1]:
            del self._weights[old]

    def of(self, version: int) -> Mapping[str, Tensor] | None:
        """The weights of an older version; None when they are not kept."""
        return self._weights.get(version)


def measure(
    model: PolicyModel,
    rollouts: Sequence[TrainingSequence],
    older: OlderWeights,
    *,
    temperature: float,
    max_tokens: int,
    microbatch_tokens: int,
) -> MismatchFigures | None:
    """Figures of an even sample of the rollouts, of about ``max_tokens`` tokens; None when the weights of all are gone.

    Forward passes take packed rows of at most ``microbatch_tokens``. Several ranks give the same rollouts, and compute
    a part of the sample each.
    """
    gaps, moves = [torch.zeros(0, dtype=torch.float64)], [torch.zeros(0, dtype=torch.float64)]
    every = max(1, math.ceil(sum(len(rollout.tokens) for rollout in rollouts) / max_tokens))
    ranks, chosen_rollouts = model.ranks, rollouts[::every]
    _share_proximal(chosen_rollouts, ranks)
    for version, sampled in _by_version(chosen_rollouts).items():
        firsts = [rollout.tokens for rollout, _ in sampled]
        beside = [rollout.beside(shared_once=bool(model.block)) for rollout, _ in sampled]
        for batch in model.microbatches(firsts, max_tokens=microbatch_tokens, beside=beside):
            parts = [sampled[index] for index in batch]
            if version != older.version and (weights := older.of(version)) is not None and not parts:
                with torch.no_grad(), model.with_weights(weights):
                    model.keep_pace()
            if not parts:
                continue
            proximal = torch.cat([r.proximal[chosen] for r, chosen in parts if r.proximal is not None])
            behaviour = torch.cat([rollout.behaviour[chosen] for rollout, chosen in parts])
            if version == older.version:
                at_version = proximal
            elif (weights := older.of(version)) is not None:
                paths, places = zip(*(path for rollout, chosen in parts for path in rollout.paths(chosen)), strict=True)
                with torch.no_grad(), model.with_weights(weights):
                    logprobs, _ = model.logprobs(paths, places, temperature=temperature, with_entropy=False)
                at_version = logprobs.cpu()
            else:
                continue
            gaps.append((at_version - behaviour).double())
            moves.append((proximal - at_version).double())
    gap, move = torch.cat(gaps), torch.cat(moves)
    own = [len(gap), *(float(each.sum()) for each in (gap.abs(), gap.exp(), move.abs(), move.exp()))]
    tokens, *sums = ranks.total(own)
    largest = ranks.greatest(float(gap.abs().max()) if len(gap) else 0.0)
    if not tokens:
        return None
    gap_mean, ratio_mean, move_mean, move_ratio_mean = (total / tokens for total in sums)
    return MismatchFigures(
        mismatch_gap=gap_mean,
        mismatch_max=largest,
        mismatch_ratio=ratio_mean,
        staleness_gap=move_mean,
        staleness_ratio=move_ratio_mean,
        mismatch_tokens=int(tokens),
    )


def _share_proximal(rollouts: Sequence[TrainingSequence], ranks: Ranks) -> None:
    """Give every rank the proximal log-probabilities, each of which one rank has computed."""
    if ranks.size == 1 or not rollouts:
        return
    own = [torch.zeros(len(r.mask)) if r.proximal is None else r.proximal for r in rollouts]
    shared = ranks.summed(torch.cat(own)).split([len(r.mask) for r in rollouts])
    for rollout, proximal in zip(rollouts, shared, strict=True):
        rollout.proximal = proximal


def _by_version(rollouts: Iterable[TrainingSequence]) -> dict[int, list[tuple[TrainingSequence, Tensor]]]:
    """Rollouts by version, each with a mask [n] bool of the response tokens that the version sampled."""
    versions: dict[int, list[tuple[TrainingSequence, Tensor]]] = {}
    for rollout in rollouts:
        for version in rollout.versions[rollout.mask].unique().tolist():
            versions.setdefault(version, []).append((rollout, (rollout.versions == version) & rollout.mask))
    return versions
