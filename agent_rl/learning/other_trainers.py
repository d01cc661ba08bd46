"""Rollouts of another trainer beside its own model: engine mismatch, staleness, and what explains the first.

The measurement is that of a run (`agent_rl.learning.mismatch`), and causes are those of its guard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from agent_rl.figures import MismatchFigures
from agent_rl.learning.guard import Guard
from agent_rl.learning.guard_causes import Sampled
from agent_rl.learning.mismatch import OlderWeights, measure
from agent_rl.learning.policy_model import ModelOptions, PolicyModel
from agent_rl.learning.rates import Type
from agent_rl.learning.sequences import TrainingSequence, refuse_unsound_inputs

ROW_TOKENS = 4096
"""Of a packed row, unless one rollout is longer."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """What another trainer has stored of a rollout; a value for each of the n response tokens."""

    name: str
    prompt: Sequence[int]
    response: Sequence[int]
    logprobs: Sequence[float]
    """By its engine, in nats."""
    mask: Sequence[bool]
    """Whether the model wrote the token."""
    versions: Sequence[int]
    """Of the policy that wrote it."""

    def sequence(self) -> TrainingSequence:
        """As the trainer here computes with it; reward and advantage play no part."""
        mask = torch.tensor(self.mask, dtype=torch.bool)
        return TrainingSequence(
            name=self.name,
            tokens=torch.tensor([*self.prompt, *self.response], dtype=torch.int64),
            prompt=len(self.prompt),
            mask=mask,
            turns=torch.zeros(len(mask), dtype=torch.int64),
            behaviour=torch.tensor(self.logprobs, dtype=torch.float32).where(mask, torch.tensor(0.0)),
            versions=torch.tensor(self.versions, dtype=torch.int64),
            reward=0.0,
            advantage=0.0,
        )


class Comparison:
    """Rollouts beside ``model``, the newest version that sampled any of them, and beside ``older`` versions.

    ``how`` the engine was told to sample. Raises TrainingStoppedError for a model that cannot be loaded,
    NotFiniteError for tokens outside its vocabulary and log-probabilities that are not finite, and ValueError for a
    rollout that is longer than the model reads.
    """

    def __init__(
        self,
        model: Path,
        rollouts: Sequence[Rollout],
        older: Mapping[int, Path],
        *,
        how: Sampled,
        dtype: Type = "float32",
        device: str = "cpu",
    ) -> None:
        self._path, self._how = model, how
        self._model = policy = PolicyModel(model, dtype=dtype, device=device, options=ModelOptions(), compute=dtype)
        self._sequences = sequences = [rollout.sequence() for rollout in rollouts]
        refuse_unsound_inputs(sequences, policy.module.config.get_text_config().vocab_size)
        for sequence in sequences:
            if (length := len(sequence.tokens)) > policy.max_length:
                raise ValueError(f"{sequence.name} has {length:,} tokens; {model} reads {policy.max_length:,}")
        self.wrote = Counter(version for each in sequences for version in each.versions[each.mask].tolist())
        """Tokens of each version."""
        newest = max(self.wrote)
        self.unknown = {version: self.wrote[version] for version in sorted(self.wrote.keys() - {*older, newest})}
        """Tokens of versions whose weights are not here: they are not measured."""
        self._older = OlderWeights(keep=len(older))
        for version, path in sorted(older.items()):
            past = PolicyModel(path, dtype=dtype, device=device, options=ModelOptions(), compute=dtype)
            self._older.remember(version, past.trained())
        self._older.remember(newest, {})

    def figures(self) -> MismatchFigures | None:
        """Of all tokens; None where the weights of no version are here. Passes over each, one or two."""
        with torch.no_grad():
            _score(self._model, self._sequences, self._how.temperature)
        return measure(
            self._model,
            self._sequences,
            self._older,
            temperature=self._how.temperature,
            max_tokens=sum(len(each.tokens) for each in self._sequences),
            microbatch_tokens=ROW_TOKENS,
        )

    def cause(self) -> str:
        """What explains the engine's mismatch; empty where types do. Where they don't, hundreds of passes look for it.

        Two checks of different rollouts, if there are many: the guard says of small differences what two have found.
        """
        guard = Guard(self._model, self._older, self._path)
        first = guard.check(self._sequences, self._how)
        return guard.check(self._sequences[::-1], self._how) or first


def _score(model: PolicyModel, sequences: Sequence[TrainingSequence], temperature: float) -> None:
    """Give each sequence its log-probabilities by the newest weights."""
    for batch in model.microbatches([each.tokens for each in sequences], max_tokens=ROW_TOKENS):
        tokens, wanted = zip(*(path for at in batch for path in sequences[at].paths(sequences[at].mask)), strict=True)
        logprobs, _ = model.logprobs(tokens, wanted, temperature=temperature, with_entropy=False)
        parts = torch.split(logprobs.cpu(), [int(each.sum()) for each in wanted])
        for at, own in zip(batch, parts, strict=True):
            mask = sequences[at].mask
            sequences[at].proximal = torch.zeros(len(mask)).masked_scatter(mask, own)
