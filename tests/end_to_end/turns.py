"""Substitutes for runs whose engine and learner share a device: they note when tokens are written and steps trained.

The notes are lines of a file that the environment names. They end with the process and with seconds of the monotonic
clock, which all processes of a machine share. A fault is put in once.
"""

import os
import signal
import time
from functools import wraps
from pathlib import Path
from typing import Any

from actors.engines.base import EngineError
from actors.engines.torch.engine import TorchEngine
from actors.learner import Learner

NOTES = "TURN_NOTES"
"""The environment's name for the file of the notes."""
FAULT = "TURN_FAULT"
"""The environment's name for the fault: "learner" dies in its second RL step, "generator" as it is to fall asleep."""


def note(*words: object) -> None:
    with Path(os.environ[NOTES]).open("a") as file:
        file.write(" ".join(map(str, (*words, os.getpid(), time.monotonic()))) + "\n")


def first_time(who: str) -> bool:
    """Whether the fault of this actor is due: not after it was noted."""
    if os.environ.get(FAULT) != who or f"fault {who} " in Path(os.environ[NOTES]).read_text():
        return False
    note("fault", who)
    return True


class NotedEngine(TorchEngine):
    """Notes the tokens written so far, after each step."""

    _noted = 0
    _sleeps = 0

    def _publish(self, decoder: Any, *figures: Any) -> None:
        if decoder.generated_tokens != self._noted:
            self._noted = decoder.generated_tokens
            note("tokens", self._noted)
        super()._publish(decoder, *figures)

    async def sleep(self) -> None:
        self._sleeps += 1
        if self._sleeps > 1 and first_time("generator"):
            raise EngineError("a fault that is put in")
        running = self.figures.running + self.figures.waiting
        await super().sleep()
        note("asleep", running)

    async def wake(self) -> None:
        note("wakes")
        await super().wake()


class NotedLearner(Learner):
    """Notes the begin and the end of each step."""

    async def start(self) -> None:
        await super().start()
        trainer = self._model.trainer
        train = trainer.rl_step

        @wraps(train)
        def noted(groups: Any, stage: Any, step: int) -> Any:
            note("trains", step)
            if step == 1 and first_time("learner"):
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.2)  # a step of this model takes less than a token of most
            figures = train(groups, stage, step)
            note("trained", step)
            return figures

        trainer.rl_step = noted
