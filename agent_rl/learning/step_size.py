"""How far an update may move the policy, and the rate that follows from it (``algorithm.target_kl``).

::

    update at rate x factor --> KL divergence on a part of its own tokens --> share of the update that is kept
                                                                         `--> factor of the next update

Measuring takes a forward pass over a quarter of the rollouts, a twelfth of the update's work. Trainers of robots have
steered a rate so (rsl_rl's adaptive schedule); they do not take back.
"""

from __future__ import annotations

import math

TOO_FAR = 2.0
"""An update that moved more than so many times as far as it should is taken back to where it should be."""
SLOWEST, FASTEST = 0.5, 1.25
"""Of a factor after one update, over that before."""
LEAST, MOST = 1 / 256, 16.0
"""The factor of a rate. A policy that is certain barely moves at any rate."""


class StepSize:
    """Steers updates towards a KL divergence of ``target`` nats for each token."""

    def __init__(self, factor: float = 1.0) -> None:
        self.target = 0.0
        self.factor = factor
        """Of the stage's learning rate. With it training continues from a checkpoint."""

    def aim(self, schedule: float, signal: float) -> float:
        """How far an update should move the policy, in nats a token.

        ``schedule`` is the share of the rate in force, ``signal`` that of the step's groups whose rewards differ. The
        divergence grows as the square of the rate, and the noise of an update falls with its groups.
        """
        return self.target * schedule**2 * min(1.0, signal)

    def kept(self, moved: float, aim: float) -> float:
        """The share of an update to keep that moved the policy so far, in nats; 1 where that is not too far."""
        return 1.0 if moved <= TOO_FAR**2 * aim else math.sqrt(aim / moved) if math.isfinite(moved) else 0.0

    def follow(self, moved: float, aim: float) -> None:
        """Set the factor of the next update by how far this one moved before anything of it was taken back."""
        if aim > 0.0:
            wanted = (aim / moved) ** 0.25 if 0.0 < moved < math.inf else SLOWEST if moved else FASTEST
            self.factor = min(MOST, max(LEAST, self.factor * min(FASTEST, max(SLOWEST, wanted))))
