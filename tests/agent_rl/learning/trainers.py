"""Trainers, and what they are compared with, as most tests want them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from agent_rl.config.algorithm import Algorithm
from agent_rl.learning.trainer import Trainer
from agent_rl_contract import builders


def small_trainer(model: Path, **options: Any) -> Trainer:
    """With one thread, in float32 on the processor, if ``options`` do not say otherwise; some may be of the algorithm."""
    changes = {name: options.pop(name) for name in options.keys() & Algorithm.model_fields.keys()}
    usual = {"dtype": "float32", "device": "cpu", "threads": 1, "seed": 0, "algorithm": builders.algorithm(**changes)}
    return Trainer(model, **usual | options)


def plain_logprobs(model: Any, tokens: Tensor, temperature: float = 1.0) -> Tensor:
    """Of all tokens but the first, by a model of transformers."""
    logits = model(tokens[None], use_cache=False).logits[0, :-1].float() / temperature
    said: Tensor = logits.log_softmax(-1).gather(-1, tokens[1:, None])[:, 0]
    return said


def before_updates(trained: Trainer, note: Callable[[float], Any]) -> None:
    """Have ``note`` called with the rate before each update of the optimizer."""
    update = trained.optimizer.step

    def noted(rate: float, clip: float) -> float:
        note(rate)
        return update(rate, clip)

    trained.optimizer.step = noted  # type: ignore[method-assign]
