"""Trainers as most tests want them."""

from pathlib import Path
from typing import Any

from agent_rl.learning.trainer import Trainer
from tests import builders


def small_trainer(model: Path, **options: Any) -> Trainer:
    """With one thread, in float32 on the processor, if ``options`` do not say otherwise."""
    usual = {"dtype": "float32", "device": "cpu", "threads": 1, "seed": 0, "algorithm": builders.algorithm()}
    return Trainer(model, **usual | options)
