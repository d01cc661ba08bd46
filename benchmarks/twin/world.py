"""What the actors of a twin share: the trace, and what is observed of the run."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import trio

from agent_rl.messages import PolicyVersion, Problem, StepReady, TrainingGroup, Trajectory
from benchmarks.twin.clock import sleep
from benchmarks.twin.modelled_engine import ModelledEngine
from benchmarks.twin.outcome import Outcome
from benchmarks.twin.plan import Plan
from benchmarks.twin.tokens import CALLS, NAME, RIGHT
from benchmarks.twin.trace import Shape


@dataclass(slots=True)
class Places:
    """The calls that an executor runs at once; the others wait."""

    count: int
    running: int = 0
    used_s: float = 0.0
    """Seconds of calls."""
    full_s: float = 0.0
    """Seconds in which all places were taken."""
    _full_since: float = 0.0

    async def run(self, seconds: float) -> None:
        """A call that has a place takes its time."""
        began = trio.current_time()
        self.running += 1
        if self.running == self.count:
            self._full_since = began
        try:
            await sleep(seconds)
        finally:
            now = trio.current_time()
            if self.running == self.count:
                self.full_s += now - self._full_since
            self.running -= 1
            self.used_s += now - began


def tokens_of(message: Any) -> int:
    """The tokens that a message carries."""
    match message:
        case Trajectory():
            return message.prompt_length + message.response_length
        case TrainingGroup():
            return sum(tokens_of(each) for each in message.trajectories)
        case _:
            return 0


class World:
    """One twin."""

    def __init__(self, plan: Plan, *, signal: float, seed: int) -> None:
        """``signal``: the share of groups whose rewards differ."""
        self.plan, self.trace = plan, plan.trace
        self.outcome = Outcome(plan.trace)
        self.engines = {name: ModelledEngine(name, plan.trace.model) for name in plan.trace.engines}
        self.places: dict[str, Places] = {}
        """Of each tool executor."""
        self.done = trio.Event()
        self._signal, self._seed = signal, seed
        self._group_policies: dict[str, PolicyVersion] = {}
        self._numbers: dict[str, int] = {}

    # The trace

    def number(self, group: str) -> int:
        """The group's place in the trace; a run that opens more groups begins it again."""
        number = self._numbers.get(group)
        if number is None:
            number = self._numbers[group] = int(group.rpartition("g")[2])
        return number

    def shape(self, rollout: str) -> tuple[int, int, Shape]:
        """Group, sample and lengths of a rollout."""
        group, sample, _ = rollout.split("/")
        number = self.number(group)
        return number, int(sample), self.trace.groups[number % len(self.trace.groups)][int(sample)]

    def flag(self, rollout: str, turn: int) -> int:
        """What a turn of the rollout is: a call, or an answer that is right or wrong. Half of a group is right."""
        number, sample, shape = self.shape(rollout)
        if turn + 1 < len(shape.written):
            return CALLS
        differs = Random(f"{self._seed}/{number}").random() < self._signal
        return RIGHT if sample % 2 or not differs else 0

    def problem(self, number: int, characters: float, template: int) -> Problem:
        """The problem of a group, with a text from which the scheduler estimates the prompt's tokens."""
        tokens = self.trace.groups[number % len(self.trace.groups)][0].prompt
        text = "x" * max(1, int((tokens - template) * characters))
        return Problem(str(number), text, environment=NAME, payload={"tokens": tokens})

    # What happens

    def observe(self, message: Any) -> None:
        """An actor is about to handle a message."""
        match message:
            case TrainingGroup():
                self._group_policies[message.group] = message.policy
            case StepReady():
                lags = (message.version - self._group_policies.pop(group).version for group in message.groups)
                self.outcome.staleness += tuple(lags)
