"""Entropies and log-probabilities of tokens that were sampled before, by a forward pass without gradients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from agent_rl.learning.finite import TrainingStoppedError
from agent_rl.learning.policy_model import ModelOptions, PolicyModel
from agent_rl.learning.rates import Type
from agent_rl.messages import Float32Vector, Tokens, TokenSequence, Trajectory


class Passed(NamedTuple):
    """The n response tokens of a trajectory: ``entropy`` in nats and ``logprob``, both [n], NaN where masked."""

    entropy: Float32Vector
    logprob: Float32Vector


def entropies(
    model: Path,
    trajectories: Sequence[Trajectory],
    *,
    temperature: float,
    dtype: Type,
    device: str,
    microbatch_tokens: int,
) -> list[Passed]:
    """For each trajectory in order, what the model of a directory gives to the tokens that a model wrote.

    The distribution is softmax(logits / temperature). Forward passes take packed rows of at most ``microbatch_tokens``
    tokens. ``trajectories`` are not empty. Raises TrainingStoppedError for a model that cannot be loaded, that does not
    fit the trajectories, or whose results are not finite.
    """
    loaded = PolicyModel(model, dtype=dtype, device=device, options=ModelOptions(), compute=dtype)
    bodies = [each.unpack() for each in trajectories]
    owned = [(body, place, each) for place, body in enumerate(bodies) for each in body.sequences]
    rows = [each.tokens.astype(np.int64) for _, _, each in owned]
    sequences = [torch.from_numpy(row) for row in rows]
    _refuse_unfitting(model, loaded, rows)
    found = [Passed(*(np.full(len(body.tokens), np.nan, dtype=np.float32) for _ in range(2))) for body in bodies]
    for batch in loaded.microbatches(sequences, max_tokens=microbatch_tokens):
        places = [_written(body, each) for body, _, each in (owned[index] for index in batch)]
        with torch.no_grad():
            logprobs, entropy = loaded.logprobs([sequences[index] for index in batch], places, temperature=temperature)
        if not (torch.isfinite(logprobs).all() and torch.isfinite(entropy).all()):
            raise TrainingStoppedError(
                f"{model} gives log-probabilities that are not finite: its weights are damaged; name another model"
            )
        sizes = [int(mask.sum()) for mask in places]
        for index, mask, *parts in zip(
            batch, places, entropy.cpu().split(sizes), logprobs.cpu().split(sizes), strict=True
        ):
            _, place, each = owned[index]
            for array, values in zip(found[place], parts, strict=True):
                array[each.own] = _spread(values, mask)[each.shared :]
    return found


def _written(body: Tokens, sequence: TokenSequence) -> torch.Tensor:
    """Flags [length] a sequence's own tokens that the model wrote. Its first token has no distribution."""
    mask = np.concatenate([np.zeros(sequence.shared, dtype=np.uint8), body.loss_mask[sequence.own]]) > 0
    mask[:1] = False
    return torch.from_numpy(mask)


def _spread(values: torch.Tensor, mask: torch.Tensor) -> Float32Vector:
    spread = torch.full(mask.shape, float("nan"))
    spread[mask] = values
    array: Float32Vector = spread.numpy()
    return array


def _refuse_unfitting(
    model: Path, loaded: PolicyModel, rows: Sequence[np.ndarray[tuple[int], np.dtype[np.int64]]]
) -> None:
    vocabulary = loaded.module.get_input_embeddings().weight.shape[0]
    strange = [int(row.max()) for row in rows if row.max() >= vocabulary]
    longest = max(map(len, rows))
    fault = ""
    if strange:
        fault = f"the trajectories hold the token {max(strange)}, and the model has the tokens 0 to {vocabulary - 1}"
    elif longest > loaded.max_length:
        fault = f"a trajectory has {longest} tokens, and the model's sequences have at most {loaded.max_length}"
    if fault:
        raise TrainingStoppedError(f"{model} does not fit: {fault}; name the model that the run trained")
