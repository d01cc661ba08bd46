"""Trajectories as the trainer computes with them, and what becomes of responses that are too long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from agent_rl.config.algorithm import Algorithm
from agent_rl.learning.advantages import Advantage
from agent_rl.learning.finite import NotFiniteError, named, not_finite
from agent_rl.learning.losses.base import LossSettings
from agent_rl.messages import BodyError, Float32Vector, Tokens, TrainingGroup, Trajectory

FAR = 40.0
"""Nats between two log-probabilities of a token from which no float32 gradient survives their ratio."""


@dataclass(slots=True)
class TrainingSequence:
    """One trajectory in training: tensors over its n response tokens, ``tokens`` over prompt and response.

    A trajectory with branches has further sequences: ``tokens`` are those of the first one, and the response is that of
    the first one and what is own to each branch.
    """

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
    generator: str = ""
    proximal: Tensor | None = None
    reference: Tensor | None = None
    branches: tuple[tuple[Tensor, int, slice], ...] = ()
    """The tokens of each branch [length], how many it shares, and its place in the response."""

    def beside(self, *, shared_once: bool) -> int:
        """The tokens that its branches add to a packed row, which may hold what sequences share once."""
        return sum(len(tokens) - (shared if shared_once else 0) for tokens, shared, _ in self.branches)

    def paths(self, wanted: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Each sequence with the flags [length] of its own tokens, of ``wanted`` [n] bool of the response."""
        first = len(self.tokens) - self.prompt
        for tokens, shared, own in ((self.tokens, self.prompt, slice(0, first)), *self.branches):
            yield tokens, torch.cat([torch.zeros(shared, dtype=torch.bool), wanted[own]])


def training_sequences(
    group: TrainingGroup, advantage: Advantage, algorithm: Algorithm, max_response_tokens: int
) -> list[TrainingSequence]:
    """The trajectories of a group that are trained, with their advantages.

    With ``overlong = "mask"``, truncated rollouts count for the advantages of the others, and are not trained. Raises
    NotFiniteError for a body that cannot be read, so that the step is skipped.
    """
    rewards = group.rewards
    if algorithm.overlong == "penalty":
        lengths = np.array([t.response_length for t in group.trajectories])
        rewards = rewards + soft_overlong(lengths, max_response_tokens, algorithm.overlong_cache)
    advantages = advantage(rewards, divide_by_std=algorithm.advantage_std)
    sequences = []
    for t, reward, each in zip(group.trajectories, rewards, advantages, strict=True):
        if algorithm.overlong == "mask" and t.status == "truncated":
            continue
        tokens = _unpacked(t)
        mask = tokens.loss_mask > 0
        begins = np.diff(mask, prepend=False) & mask  # between two turns there are tokens of others, or a branch begins
        begins[tokens.branches[:, 2]] |= mask[tokens.branches[:, 2]]
        first, *branches = ((torch.from_numpy(s.tokens.astype(np.int64)), s.shared, s.own) for s in tokens.sequences)
        sequences.append(
            TrainingSequence(
                name=f"{group.group}, sample {t.sample}",
                tokens=first[0],
                prompt=len(tokens.prompt_tokens),
                mask=torch.from_numpy(mask),
                turns=torch.from_numpy(begins.cumsum() - 1),
                behaviour=torch.from_numpy(np.where(mask, tokens.logprobs, np.float32(0.0))),
                versions=torch.from_numpy(tokens.policies[:, 1].astype(np.int64)),
                reward=float(reward),
                advantage=float(each),
                generator=t.generator,
                branches=tuple(branches),
            )
        )
    return sequences


def _unpacked(trajectory: Trajectory) -> Tokens:
    try:
        return trajectory.unpack()
    except BodyError as error:
        raise NotFiniteError(f"cannot be trained: the tokens of {trajectory.rollout} are damaged ({error})") from error


def soft_overlong(lengths: np.ndarray[tuple[int], np.dtype[np.int64]], limit: int, cache: int) -> Float32Vector:
    """The penalty added to the rewards of responses of these ``lengths``, in tokens: from 0 down to -1.

    DAPO (arXiv 2503.14476), eq. 13: 0 up to ``limit - cache`` tokens, from there in a straight line to -1 at ``limit``.
    """
    added: Float32Vector = np.clip((limit - cache - lengths) / cache, -1.0, 0.0).astype(np.float32)
    return added


def refuse_unsound_inputs(sequences: Sequence[TrainingSequence], vocabulary: int) -> None:
    """Raise NotFiniteError that names rollouts with tokens outside the vocabulary or values that are not finite.

    The engine's log-probabilities too: the capped correction may hide an infinite one, so that the loss is finite.
    """
    for sequence in sequences:
        tokens = torch.cat([sequence.tokens, *(branch[shared:] for branch, shared, _ in sequence.branches)])
        if len(tokens) and (token := int(tokens.max())) >= vocabulary:
            raise NotFiniteError(
                f"cannot be trained: {sequence.name} has the token {token}, and the model the tokens 0 to "
                f"{vocabulary - 1}"
            )
    faults = []
    for sequence in sequences:
        parts = {
            "advantage": torch.tensor(sequence.advantage),
            "log-probabilities by the engine": sequence.behaviour[sequence.mask],
        }
        faults += [f"{name} of {sequence.name}" for name in not_finite(parts.items())]
    if faults:
        raise NotFiniteError(f"not finite: {named(faults)}")


def cause_of_loss(batch: Sequence[TrainingSequence], logprobs: Tensor, loss: str, settings: LossSettings) -> str:
    """The cause of a loss that is not finite: log-probabilities that are not, or far ratios, and of which rollouts.

    ``logprobs`` are the learner's [rows, width]. ``loss`` says where the loss is written.
    """
    rows = [(s.name, logprobs[row, : len(s.mask)].cpu()[s.mask]) for row, s in enumerate(batch)]
    references = [(s.name, s.reference[s.mask]) for s in batch if s.reference is not None]
    for values, what in (
        (references, "log-probabilities by algorithm.kl.reference"),
        (rows, "the learner's log-probabilities"),
    ):
        if wrong := not_finite(values):
            return f"not finite: {what} of {named(wrong)}"
    far = far_ratio(batch, [values for _, values in rows], settings)
    return far or f"but all values it is computed from are finite; it is algorithm.loss = {loss}"


def far_ratio(batch: Sequence[TrainingSequence], logprobs: Sequence[Tensor], settings: LossSettings) -> str:
    """The ratio that makes loss or gradient overflow, of which rollouts, and what to do; empty when there is none.

    ``logprobs`` are the learner's present ones, of each sequence's sampled tokens.
    """
    new = [(s, values) for s, values in zip(batch, logprobs, strict=True) if s.proximal is not None and len(values)]
    moved = {s.name: values - s.proximal[s.mask] for s, values in new if s.proximal is not None}
    stale = {s.name: (s.proximal - s.behaviour)[s.mask] for s, _ in new if s.proximal is not None}
    away = {s.name: s.reference[s.mask] - values for s, values in new if s.reference is not None}
    for used, gaps, what, remedy in (
        (
            settings.correction == "decoupled",
            stale,
            "pi_prox / mu",
            'algorithm.correction = "decoupled" does not bound it; write "truncated", or lower max_staleness',
        ),
        (
            settings.kl is not None and settings.kl.estimator == "k3",
            away,
            "pi_ref / pi_theta",
            'algorithm.kl.estimator = "k3" does not bound it; write "k1", or lower the learning_rate',
        ),
        (True, moved, "pi_theta / pi_prox", "lower the learning_rate, or write fewer updates_per_step and epochs"),
    ):
        far = [name for name, gap in gaps.items() if float(gap.max()) > FAR]
        if used and far:
            return f"because {what} is above e^{FAR:.0f} for tokens of {named(far)}: {remedy}"
    return ""
