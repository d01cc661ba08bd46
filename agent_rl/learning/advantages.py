"""Group-relative advantages (paper, section GRPO-RoC): (r - mean) / std over the kept group."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from agent_rl.config.plugins import ContractError, called, defined_at, resolve
from agent_rl.messages import Float32Vector


class Advantage(Protocol):
    """The advantage that ``algorithm.advantage`` names."""

    def __call__(self, rewards: Float32Vector, *, divide_by_std: bool) -> Float32Vector:
        """Advantages [kept] float32 of one group's rewards [kept]; ``divide_by_std`` is ``algorithm.advantage_std``."""


def named_advantage(name: str) -> Advantage:
    """The advantage of that name (`agent_rl.config.plugins`); each result is checked. Raises PluginError."""
    advantage: Advantage = resolve("advantage", name)

    def checked(rewards: Float32Vector, *, divide_by_std: bool) -> Float32Vector:
        given = f"for the rewards {rewards.tolist()}"
        returned = called(name, lambda: advantage(rewards, divide_by_std=divide_by_std), given, advantage)
        values = np.asarray(returned)
        numbers = values.dtype.kind in "fiu"
        if numbers:
            with np.errstate(over="ignore"):  # beyond float32 is infinite, and refused
                values = values.astype(np.float32)
        finite = numbers and (np.isfinite(values).all() or not np.isfinite(rewards).all())
        if values.shape != rewards.shape or not finite:
            place = defined_at(advantage)
            remedy = f"it must return as many finite numbers{f' ({place})' if place else ''}"
            raise ContractError(f"{name} returned {returned!r:.80} {given}; {remedy}")
        return values

    return checked


def try_advantage(name: str) -> None:
    """Try an advantage on made-up groups. Raises ContractError when it fails or returns something else."""
    for rewards in ([1.0, 0.0], [0.25, 0.5, 1.0, 0.0], [1.0, 1.0, 1.0]):
        named_advantage(name)(np.array(rewards, dtype=np.float32), divide_by_std=True)


ROUNDING = 4 * float(np.finfo(np.float32).eps)
"""Rewards are sums of parts in float32: a deviation below so much of the largest reward is that of rounding."""


def group_advantages(rewards: Float32Vector, *, divide_by_std: bool = True) -> Float32Vector:
    """Advantages [kept] float32 of one group's rewards [kept]; zeros when all are equal up to `ROUNDING`.

    Divided by a standard deviation that is rounding alone, 1 and 0.9999999 would be as far apart as right and wrong.

    ``divide_by_std`` uses the population's standard deviation, as the paper does; False leaves the centred rewards.
    """
    centred = rewards.astype(np.float64) - rewards.mean(dtype=np.float64)
    deviation = float(centred.std())
    if deviation <= ROUNDING * float(np.abs(rewards).max(initial=0.0)):
        return np.zeros(len(rewards), dtype=np.float32)
    advantages: Float32Vector = (centred / deviation if divide_by_std else centred).astype(np.float32)
    return advantages
