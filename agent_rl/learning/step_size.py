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
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from agent_rl.learning.ranks import Ranks
    from agent_rl.learning.sequences import TrainingSequence

TOO_FAR = 4.0
"""An update whose divergence, less its standard error, is more than so many times the aim is taken back to the aim."""
SLOWEST, FASTEST = 0.5, 1.25
"""Of a factor after one update, over that before."""
LEAST, MOST = 1 / 256, 16.0
"""The factor of a rate. A policy that is certain barely moves at any rate."""


class Moved(NamedTuple):
    """A KL divergence in nats a token, and its standard error; on few tokens in half precision it may be below 0."""

    nats: float
    doubt: float = 0.0


class StepSize:
    """Steers updates towards a KL divergence of ``target`` nats for each token.

    The target is that at the peak of the schedule, for a step in which all groups have rewards that differ. The
    divergence grows as the square of the rate, and the noise of an update falls with its groups: so of a share ``full``
    of the target the rate has the root.
    """

    def __init__(self, factor: float = 1.0) -> None:
        self.target = 0.0
        self.factor = factor
        """Of the stage's learning rate. With it training continues from a checkpoint."""

    def kept(self, moved: Moved, aim: float) -> float:
        """The share of an update to keep that moved the policy so far; 1 where that is not surely too far."""
        if not math.isfinite(moved.nats):
            return 0.0
        return 1.0 if moved.nats - moved.doubt <= TOO_FAR * aim else math.sqrt(aim / moved.nats)

    def follow(self, moved: Moved, aim: float) -> None:
        """Set the factor of the next update by how far this one moved before anything of it was taken back.

        The damped root of what is wanted, and less of it the less is known.
        """
        if not math.isfinite(moved.nats):
            change = SLOWEST
        else:
            wanted = (aim / moved.nats) ** 0.25 if moved.nats > 0.0 else FASTEST
            far = max(aim, moved.nats)
            known = far / (far + moved.doubt) if aim > 0.0 else 0.0
            change = min(FASTEST, max(SLOWEST, wanted)) ** known
        self.factor = min(MOST, max(LEAST, self.factor * change))


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

    def measured(self) -> Moved:
        """How far, judged by the differences between rollouts; all ranks call it."""
        rows = [np.zeros((0, 2))]
        for place, part in enumerate(self._parts):
            changes = []
            for shaken in self._ways:
                now = self._logprobs(part, shaken=shaken)
                if part:
                    mask = pad_sequence([each.mask for each in part], batch_first=True).to(now.device)
                    before = self._before[shaken][place][:, : mask.shape[1]]
                    changes.append(((now - before) * mask).double())
            if part:
                products = (changes[0] * changes[-1]).sum(dim=1) / 2.0
                rows.append(torch.stack([products, mask.sum(dim=1).double()], dim=1).cpu().numpy())
        return moved(self._ranks, np.concatenate(rows))


def moved(ranks: Ranks, rows: NDArray[np.float64]) -> Moved:
    """From [rollouts of this rank, 2], the sum of a rollout's divergences and its tokens."""
    squares = rows.T @ rows
    sums = [float(len(rows)), *rows.sum(axis=0), squares[0, 0], squares[0, 1], squares[1, 1]]
    count, nats, tokens, both, across, lengths = ranks.total(sums)
    mean = nats / max(1.0, tokens)
    spread = both - 2.0 * mean * across + mean**2 * lengths
    if count < 2.0 or not math.isfinite(mean):
        return Moved(mean, abs(mean) / 2.0)
    return Moved(mean, math.sqrt(max(0.0, spread) * count / (count - 1.0)) / tokens)
