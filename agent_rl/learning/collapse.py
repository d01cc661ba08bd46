"""Detect a collapse of reinforcement learning: compare success, entropy and length of the last steps with the best.

In the paper policy and reward collapsed after step 510 and did not recover. So the run stops, says why, and keeps the
best weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_rl.config.topology import Collapse
from agent_rl.figures import RolloutMeans

LEAST_DROP = 0.1
"""A smaller fall of success is taken for noise."""


class CollapseWatch:
    """Takes the figures of every step of a stage, in order. Checkpoints store its `state`."""

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
        """Take step ``number`` (from 1); return the sign of a collapse, or an empty text.

        ``entropy`` is the policy's, in nats per token. Steps without entropy (nothing was trained) and figures that are
        not finite are ignored.
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


def collapse_message(stage: str, step: int, fault: str, best: Path | None) -> str:
    """The message for the user. ``best`` is the checkpoint to start again from; None before the first."""
    named = best or "the model the run began with"
    return (
        f"step {step} of stage {stage!r}: training has collapsed: {fault} (means over the stage's collapse.window); "
        f"the run stops. The best checkpoint before is {named}: start a new run from it (model.path) with a lower "
        "learning_rate, or change the stage's collapse settings and run again to continue from here"
    )


def _means(steps: Sequence[Sequence[float]]) -> list[float]:
    return [math.fsum(column) / len(steps) for column in zip(*steps, strict=True)]
