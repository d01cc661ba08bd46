"""When reinforcement learning has collapsed: success, entropy or length over the last steps against the best ones.

In the paper policy and reward collapsed after step 510 and nothing brought them back, so what counts is to stop, to say why, and to
have kept the weights of the best time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from agent_rl.config.topology import Collapse
from agent_rl.figures import RolloutMeans

LEAST_DROP = 0.1
"""Success that falls by less is noise, or was never there."""


class CollapseWatch:
    """Is told every step's figures of a stage, in order; its `state` travels with checkpoints."""

    def __init__(self, settings: Collapse, state: Mapping[str, Any] | None = None) -> None:
        state = state or {}
        self._settings = settings
        self._last: list[list[float]] = [list(step) for step in state.get("last", [])]
        self._best: list[float] | None = state.get("best")
        """Means over the window of highest success."""
        self._best_step: int = state.get("best_step", 0)
        self.best_version: int | None = state.get("best_version")
        """The version of the checkpoint saved at the highest success."""
        self._saved_success: float = state.get("saved_success", -math.inf)

    def state(self) -> dict[str, Any]:
        """As JSON takes it."""
        state: dict[str, Any] = {"last": self._last, "best": self._best, "best_step": self._best_step}
        if self.best_version is not None:
            state |= {"best_version": self.best_version, "saved_success": self._saved_success}
        return state

    def step(self, number: int, sampled: RolloutMeans, entropy: float | None) -> str:
        """A step, counted from 1, was trained; how it shows that training has collapsed, empty when it does not.

        ``entropy`` is the policy's, in nats a token. Steps without it (nothing was trained), and figures that are not finite, say
        nothing.
        """
        values = [sampled.success, math.nan if entropy is None else entropy, sampled.response_tokens]
        if not all(map(math.isfinite, values)):
            return ""
        self._last = [*self._last, values][-self._settings.window :]
        if len(self._last) < self._settings.window:
            return ""
        now = _means(self._last)
        if self._best is None or now[0] >= self._best[0]:
            self._best, self._best_step = now, number
        return self._fault(now, self._best)

    def _fault(self, now: Sequence[float], best: Sequence[float]) -> str:
        settings, window = self._settings, self._settings.window
        success, entropy, length = now
        past = f"in the {window} steps to step {self._best_step}"
        if success < settings.success_below * best[0] and best[0] - success >= LEAST_DROP:
            return f"success fell to {success:.1%}, from {best[0]:.1%} {past}"
        if entropy < settings.entropy_below:
            return f"the policy's entropy fell to {entropy:.3g} nats a token, below entropy_below"
        factor = settings.length_factor
        if factor is not None and not best[2] / factor <= length <= best[2] * factor:
            return f"responses went to {length:.0f} tokens, from {best[2]:.0f} {past}"
        return ""

    def saved(self, version: int) -> None:
        """A checkpoint was saved now."""
        if not self._last:
            return
        success = _means(self._last)[0]
        if success >= self._saved_success:
            self.best_version, self._saved_success = version, success


def message(stage: str, step: int, fault: str, best: str) -> str:
    """For the user. ``best`` names the checkpoint to go on from."""
    return (
        f"step {step} of stage {stage!r}: training has collapsed: {fault} (means over the stage's collapse.window); the run "
        f"stops. The best checkpoint before is {best}: start a new run from it (model.path), with a lower learning_rate, or "
        "change the stage's collapse settings and run again, which goes on from here"
    )


def _means(steps: Sequence[Sequence[float]]) -> list[float]:
    return [math.fsum(column) / len(steps) for column in zip(*steps, strict=True)]
