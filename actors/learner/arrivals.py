"""What has arrived at the learner and is not used yet: groups, closed steps and results of evaluations."""

from __future__ import annotations

from collections.abc import Collection

import trio

from agent_rl.messages import Evaluation, EvaluationReady, StepReady, TrainingGroup


class Arrivals:
    """Filled by the learner's handler, and emptied by its recipe task, which waits for more."""

    def __init__(self) -> None:
        self.evaluations: dict[Evaluation, EvaluationReady] = {}
        self._groups: dict[str, TrainingGroup] = {}
        self.steps: dict[int, StepReady] = {}
        self._changed = trio.Event()

    def put(self, message: TrainingGroup | StepReady | EvaluationReady, version: int) -> None:
        """Keep a message. ``version`` is that of the next step: a step before it was trained already."""
        match message:
            case TrainingGroup():
                self._groups[message.group] = message
            case StepReady() if message.version >= version:
                self.steps[message.version] = message
            case EvaluationReady():
                self.evaluations[message.evaluation] = message
        self.wake()

    def wake(self) -> None:
        """End all waits: there may be something new to do."""
        self._changed.set()
        self._changed = trio.Event()

    async def wait(self, seconds: float) -> None:
        """Wait for the next message, at most so long."""
        with trio.move_on_after(seconds):
            await self._changed.wait()

    def step(self, version: int) -> tuple[StepReady | None, int]:
        """The step of a version, if it was closed, and how many of its groups are missing."""
        ready = self.steps.get(version)
        return ready, 0 if ready is None else sum(group not in self._groups for group in ready.groups)

    def take(self, ready: StepReady) -> list[TrainingGroup]:
        """The groups of a step of which none is missing, in its order. Step and groups are forgotten."""
        del self.steps[ready.version]
        return [self._groups.pop(group) for group in ready.groups]

    def missing(self, expected: Collection[Evaluation]) -> int:
        """How many of these evaluations have not arrived."""
        return sum(each not in self.evaluations for each in expected)

    def clear(self) -> None:
        """A stage ends: forget its groups and steps."""
        self._groups.clear()
        self.steps.clear()
