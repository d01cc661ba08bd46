"""What a simulation has shown: its figures, and the checks that the simulator keeps its own rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.twin.modelled_engine import ModelledEngine, SimulationError
from benchmarks.twin.trace import Trace

START_FLOOR_S = 60.0
"""Delays below this count as this much in `Outcome.start_spread`."""


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of the values does not exceed; 0 when there are none."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))] if ranked else 0.0


class Trained(NamedTuple):
    """When a step was trained; tokens that engines had written by then, and decode steps that they had made."""

    at: float
    written: int
    engine_steps: int


class Outcome:
    """Counts what happens, and gives the figures once the run has ended."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.steps = 0
        self.lost_tokens = 0
        self.learner_busy = 0.0
        self.trained: list[Trained] = []
        self.staleness: tuple[int, ...] = ()
        self.makespan_s = 0.0
        self.faults: Counter[str] = Counter()
        self.preempted_tokens = 0
        self.preempted = 0
        self.prefilled_tokens = 0
        self.written_tokens = 0
        self.hit_rate = 0.0
        self.idle_share = 0.0
        self.group_seconds: list[float] = []
        """From each group's opening to its end."""
        self.start_spread = 1.0
        self._opened: dict[int, tuple[int, float]] = {}
        self._starts: dict[int, tuple[int, float, float]] = {}
        self._ended_rollouts = 0

    def opened(self, group: int, version: int, now: float) -> None:
        """A group was opened under this version."""
        self._opened[group] = (version, now)

    def started(self, group: int, now: float) -> None:
        """A rollout of the group was placed for the first time."""
        count, first, _ = self._starts.get(group, (0, now, now))
        self._starts[group] = (count + 1, first, now)
        if count + 1 == self._trace.samples:
            delays = [max(START_FLOOR_S, at - self._opened[group][1]) for at in (first, now)]
            self.start_spread = max(self.start_spread, delays[1] / delays[0])

    def ended(self, context: int) -> None:
        """A rollout ended with so many tokens."""
        del context
        self._ended_rollouts += 1

    def group_ended(self, group: int, now: float) -> int:
        """All rollouts of the group have ended; returns the version it was opened under."""
        version, opened = self._opened[group]
        self.group_seconds.append(now - opened)
        return version

    def finished(self, now: float, engines: Sequence[ModelledEngine], faults: Counter[str]) -> Outcome:
        """The run has ended. Raises SimulationError when tokens were lost, or written twice without a reason."""
        self.measured(now, engines, faults)
        trace = self._trace
        expected = trace.written() + self.lost_tokens
        if self.written_tokens != expected or self._ended_rollouts != len(trace.groups) * trace.samples:
            raise SimulationError(
                f"{trace.name}: {self.written_tokens} tokens were written, {expected} were wanted; "
                f"{self._ended_rollouts} rollouts ended"
            )
        return self

    def measured(self, now: float, engines: Sequence[ModelledEngine], faults: Counter[str]) -> Outcome:
        """Take the totals of the engines at the end of the run. In the twin, rollouts may still be under way."""
        self.makespan_s = now
        self.faults = faults
        self.written_tokens = sum(engine.written for engine in engines)
        self.preempted = sum(engine.preempted for engine in engines)
        self.preempted_tokens = sum(engine.preempted_tokens for engine in engines)
        self.prefilled_tokens = sum(engine.prefilled for engine in engines)
        self.hit_rate = sum(engine.hit for engine in engines) / max(1, sum(engine.asked for engine in engines))
        here = [min(life.lost, life.drains, now) - min(life.joins, now) for life in self._trace.engines]
        self.idle_share = 1 - sum(engine.busy for engine in engines) / max(1e-9, sum(here))
        return self

    @property
    def tokens_per_s(self) -> float:
        """Tokens written for training, a second of the makespan."""
        return self._trace.written() / self.makespan_s

    @property
    def preempted_share(self) -> float:
        """Tokens of context that preemptions threw out, as a share of the tokens written."""
        return self.preempted_tokens / self.written_tokens

    @property
    def group_p99_s(self) -> float:
        """Seconds from a group's opening to its end, at the 99th percentile."""
        return percentile(self.group_seconds, 0.99)

    @property
    def learner_idle_share(self) -> float:
        """Share of the makespan in which the learner trains nothing."""
        return 1 - self.learner_busy / self.makespan_s
