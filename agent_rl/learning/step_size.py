"""How far an update may move the policy, and the rate that follows from it (``algorithm.target_kl``).

::

    update at rate x factor --> KL divergence on a part of its own tokens --> share of the update that is kept
                                                                         `--> factor of the next update

Measuring takes a forward pass over a quarter of the rollouts, or in half precision three over a tenth: a tenth of the
update's work. Trainers of robots have steered a rate so (rsl_rl's adaptive schedule); they do not take back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from torch.nn.utils.rnn import pad_sequence

if TYPE_CHECKING:
    from torch import Tensor

    from agent_rl.learning.ranks import Ranks
    from agent_rl.learning.sequences import TrainingSequence

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


class LogprobsAgain(Protocol):
    """Log-probabilities [rows, width] of a part of a micro-batch by the weights as they are."""

    def __call__(self, part: Sequence[TrainingSequence], *, shaken: bool) -> Tensor:
        """``shaken``: with other roundings."""


class Change:
    """How far an update moves the policy: half the mean square of the change of log-probabilities of its own tokens.

    That estimates the KL divergence in nats a token, without a heavy tail. In half precision any change of weights
    changes all roundings, by as much as a good update moves the policy (2e-3 nats of SmolLM2-135M in bfloat16). So two
    changes are multiplied whose roundings are independent, and their mean is that of the policy alone.
    """

    def __init__(self, logprobs: LogprobsAgain, ranks: Ranks, *, rounds: bool) -> None:
        """``rounds``: products are computed in half precision."""
        self._logprobs, self._ranks, self._ways = logprobs, ranks, (False, True) if rounds else (False,)
        self._parts: list[Sequence[TrainingSequence]] = []
        self._before: list[list[Tensor]] = [[], []]

    def add(self, part: Sequence[TrainingSequence], logprobs: Tensor) -> None:
        """A part of a micro-batch, with the log-probabilities [rows, width or more] that it had."""
        self._parts.append(part)
        self._before[0].append(logprobs)

    def begin(self) -> None:
        """The update follows."""
        if True in self._ways:
            self._before[1] = [self._logprobs(part, shaken=True) for part in self._parts]

    def measured(self) -> float:
        """Nats a token, at least 0; all ranks call it."""
        product = count = 0.0
        for place, part in enumerate(self._parts):
            changes = []
            for shaken in self._ways:
                now = self._logprobs(part, shaken=shaken)
                if part:
                    mask = pad_sequence([each.mask for each in part], batch_first=True).to(now.device)
                    changes.append((now - self._before[shaken][place][:, : mask.shape[1]])[mask].double())
            if part:
                product += float((changes[0] * changes[-1]).sum())
                count += len(changes[0])
        product, count = self._ranks.total([product, count])
        return max(0.0, product / max(1.0, 2.0 * count))
