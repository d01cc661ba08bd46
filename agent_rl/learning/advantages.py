"""Group-relative advantages (paper, section GRPO-RoC): (r - mean) / std over the kept group."""

from __future__ import annotations

import numpy as np

from agent_rl.messages import Float32Vector


def group_advantages(rewards: Float32Vector, *, divide_by_std: bool = True) -> Float32Vector:
    """Advantages [kept] float32 of one group's rewards [kept]; zeros when all are equal.

    ``divide_by_std`` uses the population's standard deviation, as the paper does; False leaves the centred rewards.
    """
    centred = rewards.astype(np.float64) - rewards.mean(dtype=np.float64)
    deviation = float(centred.std())
    if deviation == 0.0:
        return np.zeros(len(rewards), dtype=np.float32)
    advantages: Float32Vector = (centred / deviation if divide_by_std else centred).astype(np.float32)
    return advantages
