"""Try a loss on made-up input, in this process, or as a program for processes that must not load torch."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import fields

import torch
from torch import Tensor
from torch.nn.functional import pad

from agent_rl.config.algorithm import Algorithm
from agent_rl.config.plugins import ContractError, called, defined_at
from agent_rl.learning.losses.base import Loss, LossSettings, MicroBatch, Terms, named_loss, reduced


def check_loss(algorithm: Algorithm) -> None:
    """Try ``algorithm.loss`` on a made-up update. Raises ContractError when it fails, or returns something wrong."""
    loss, settings = named_loss(algorithm)
    fault = called(algorithm.loss, lambda: loss_fault(loss, settings), "on a made-up micro-batch", loss)
    if fault:
        place = defined_at(loss)
        raise ContractError(f"{algorithm.loss} {fault}" + (f" ({place})" if place else ""))


def loss_fault(loss: Loss, settings: LossSettings) -> str:
    """How a loss breaks the contract of `Loss` on a made-up update, or an empty text. Raises what the loss raises."""
    drawn = torch.Generator().manual_seed(0)
    mask = torch.tensor([[1, 1, 0, 1, 0], [1, 0, 0, 1, 1], [1, 1, 1, 0, 0]], dtype=torch.bool)
    turns = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 1, 1], [0, 0, 0, 0, 0]])
    advantages = torch.tensor([[1.3], [-0.7], [-0.2]])
    sampled = torch.where(mask, -2.0 * torch.rand(mask.shape, generator=drawn), 0.0)

    def evaluate(rows: slice, padding: int = 0) -> tuple[Tensor, Tensor]:
        logprobs = pad(sampled[rows], (0, padding)).clone().requires_grad_()
        batch = MicroBatch(
            logprobs=logprobs,
            proximal=logprobs.detach(),
            behaviour=logprobs.detach(),
            mask=pad(mask[rows], (0, padding)),
            turns=pad(turns[rows], (0, padding)),
            advantages=advantages[rows],
            rewards=(advantages[rows] > 0).float(),
            tokens=int(mask.sum()),
            sequences=len(mask),
            max_response_tokens=8,
        )
        terms = loss(batch, settings)
        if not isinstance(terms, Terms):
            raise TypeError(f"returned {type(terms).__name__}; it must return agent_rl.learning.losses.base.Terms")
        for field in fields(Terms):
            value = getattr(terms, field.name)
            if not isinstance(value, Tensor):
                raise TypeError(f"returned {field.name} = {value!r:.60}; it must be a tensor")
            try:
                value.broadcast_to(batch.mask.shape)
            except RuntimeError:
                shapes = f"{list(value.shape)} for {list(batch.mask.shape)}"
                raise TypeError(f"returned {field.name} of shape {shapes}") from None
        made, _ = reduced(batch, terms, settings)
        gradient = torch.autograd.grad(made, logprobs, allow_unused=True)[0] if made.requires_grad else None
        return made.detach(), torch.zeros_like(logprobs) if gradient is None else gradient * batch.mask

    whole, gradient = evaluate(slice(None))
    if not bool(whole.isfinite()) or not bool(gradient.isfinite().all()):
        return "is not finite, or its gradient is not"
    if float((gradient * advantages).sum()) >= 0.0:
        return "does not fall when tokens with a positive advantage become likelier, and others less likely"
    parts = [evaluate(slice(row, row + 1), padding=row)[0] for row in range(len(mask))]
    if not torch.isclose(torch.stack(parts).sum(), whole, rtol=1e-4, atol=1e-6):
        return (
            "of a whole update is not the sum of its micro-batches' losses; divide by `tokens` or `sequences`, not by "
            "the rows or columns at hand"
        )
    return ""


def main(algorithm: str) -> int:
    """Try the loss of ``algorithm``, a JSON object; print the fault, if any. What the loss prints goes to stderr."""
    try:
        with redirect_stdout(sys.stderr):
            check_loss(Algorithm.model_validate_json(algorithm))
    except ContractError as error:
        print(error)  # noqa: T201 - the parent reads it
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
