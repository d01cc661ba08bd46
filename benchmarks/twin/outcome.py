"""What a twin has shown: the figures of its run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.twin.modelled_engine import ModelledEngine
from benchmarks.twin.trace import Trace


@dataclass
class Outcome:
    """Counts what happens, and gives the figures once the run has ended."""

    trace: Trace
    steps: int = 0
    learner_busy: float = 0.0
    staleness: tuple[int, ...] = ()
    makespan_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    preempted_tokens: int = 0
    written_tokens: int = 0
    hit_rate: float = 0.0
    idle_share: float = 0.0

    def measured(self, now: float, engines: Sequence[ModelledEngine], faults: Counter[str]) -> Outcome:
        """Take the totals of the engines at the end of the run. Rollouts may still be under way."""
        self.makespan_s = now
        self.faults = faults
        self.written_tokens = sum(engine.written for engine in engines)
        self.preempted_tokens = sum(engine.preempted_tokens for engine in engines)
        self.hit_rate = sum(engine.hit for engine in engines) / max(1, sum(engine.asked for engine in engines))
        self.idle_share = 1 - sum(engine.busy for engine in engines) / max(1e-9, now * len(engines))
        return self

    @property
    def tokens_per_s(self) -> float:
        """Tokens written for training, a second of the makespan."""
        return self.trace.written() / self.makespan_s

    @property
    def preempted_share(self) -> float:
        """Tokens of context that preemptions threw out, as a share of the tokens written."""
        return self.preempted_tokens / self.written_tokens

    @property
    def learner_idle_share(self) -> float:
        """Share of the makespan in which the learner trains nothing."""
        return 1 - self.learner_busy / self.makespan_s
