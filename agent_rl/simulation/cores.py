"""Cores that engines, learner and tools share, as on a laptop: a clock of work beside the clock of the wall.

::

    wall clock --> rate = min(1, cores / cores asked for by what works now) --> work clock

What a processor does takes seconds of work: decode steps, training, the processor seconds of tools. While no more cores
are asked for than there are, a second of work is a second. Otherwise all who work slow down alike, which is how a
kernel divides cores between processes of one priority. Sleeping tools and the publishing of weights take seconds of the
wall clock.
"""

from __future__ import annotations

from agent_rl.simulation.trace import SharedCores


class WorkClock:
    """Both clocks, in seconds."""

    def __init__(self, shared: SharedCores) -> None:
        self._shared = shared
        self._rate = 1.0
        self.now = 0.0
        """The wall clock."""
        self.work = 0.0

    def ask(self, engines: int, *, learner: bool, tools: bool) -> None:
        """So many engines work from now on, and the learner and tools or not."""
        shared = self._shared
        asked = engines * shared.engine + learner * shared.learner + tools * shared.tools
        self._rate = min(1.0, shared.cores / asked) if asked else 1.0

    def when(self, work: float) -> float:
        """The time at which the work clock will show ``work``, unless more or less is asked for."""
        return self.now + max(0.0, work - self.work) / self._rate

    def to(self, now: float, work: float | None = None) -> float:
        """Move on to a time, at which ``work`` is due if it is given. Returns the seconds that work fell behind."""
        before = self.now - self.work
        self.work = self.work + (now - self.now) * self._rate if work is None else max(self.work, work)
        self.now = now
        return now - self.work - before
