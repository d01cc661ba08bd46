"""An engine and a learner that take as long as devices of their own would: real work, and then sleep.

A machine with few cores then has cores to spare, and runs are as they are on a host with an accelerator for each.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import trio

from actors.engines.torch import TorchEngine
from actors.engines.torch.decode import Decoder
from actors.learner import Learner
from actors.learner.model import TrainedModel
from agent_rl.messages import TrainingGroup

STEP_S, ROW_S, PREFILL_S = 0.04, 2e-4, 2e-4
"""Seconds of a forward pass, beside those for each sequence in it and for each token that is prefilled."""
TRAINED_TOKENS_PER_S = 2000.0
"""Tokens of whole sequences that are trained a second."""


def sleep_until(began: float, seconds: float) -> None:
    """Sleep until ``seconds`` after ``began``, on the clock of time.perf_counter."""
    time.sleep(max(0.0, began + seconds - time.perf_counter()))


class PacedEngine(TorchEngine):
    """A torch engine whose forward passes take the seconds above, or longer where the processor needs longer."""

    def _decode(self, decoder: Decoder, token: trio.lowlevel.TrioToken) -> None:
        step = decoder.step

        def paced() -> Any:
            began, written, read = time.perf_counter(), decoder.generated_tokens, decoder.prefilled_tokens
            ended = step()
            rows, prefilled = decoder.generated_tokens - written, decoder.prefilled_tokens - read
            sleep_until(began, STEP_S + ROW_S * rows + PREFILL_S * prefilled)
            return ended

        decoder.step = paced  # type: ignore[method-assign]
        super()._decode(decoder, token)


class PacedLearner(Learner):
    """A learner that trains so many tokens a second, or fewer where the processor needs longer."""

    def _make_model(self) -> TrainedModel:
        return _PacedModel(self.context)


class _PacedModel(TrainedModel):
    def _load(self) -> Any:
        loaded = super()._load()
        step = self.trainer.rl_step

        def paced(groups: Sequence[TrainingGroup], *rest: Any) -> Any:
            began = time.perf_counter()
            figures = step(groups, *rest)
            tokens = sum(each.prompt_length + each.response_length for group in groups for each in group.trajectories)
            sleep_until(began, tokens / TRAINED_TOKENS_PER_S)
            return figures

        self.trainer.rl_step = paced  # type: ignore[method-assign, assignment]
        return loaded
