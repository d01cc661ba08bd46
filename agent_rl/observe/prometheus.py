"""The counters of actors, and their text for Prometheus. Pure.

::

    Actor.metrics --> ActorStatus.metrics --> MetricsBoard.observe ... MetricsBoard.text --> GET /metrics

The text also has the live figures of every actor, as gauges. All names begin with ``agent_rl_``, and every sample has
the actor's name. ``prometheus_client`` writes the text, in exposition format 0.0.4.
"""

from __future__ import annotations

import bisect
import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, cast

from agent_rl.figures import numbers
from agent_rl.messages import ActorStatus, Metric

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family
    from prometheus_client.registry import Collector

PREFIX = "agent_rl_"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets of durations, in seconds."""

WINDOW_SECONDS = 5.0
"""Live rates are over the last few seconds."""

_NO_NAME = re.compile(r"[^a-zA-Z0-9_]")


def counter(name: str, value: float, help_text: str, **labels: str) -> Metric:
    """A total; its name ends with ``_total``."""
    return Metric(name, "counter", help_text, (float(value),), labels)


def gauge(name: str, value: float, help_text: str, **labels: str) -> Metric:
    """A present value."""
    return Metric(name, "gauge", help_text, (float(value),), labels)


class Histogram:
    """Counts values between bounds, in constant memory."""

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value. A value equal to a bound belongs to the bucket that ends there."""
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self._sum += value

    def metric(self, name: str, help_text: str, **labels: str) -> Metric:
        """The present counts as a metric."""
        return Metric(name, "histogram", help_text, (*map(float, self._counts), self._sum), labels, self._bounds)


class Rate:
    """Totals in, rates per second over the last few seconds out."""

    def __init__(self, now: Callable[[], float], window: float = WINDOW_SECONDS) -> None:
        self._now = now
        self._window = window
        self._seen: deque[tuple[float, Mapping[str, float]]] = deque([(now(), {})])

    def __call__(self, totals: Mapping[str, float]) -> dict[str, float]:
        """Rates by the names of the totals."""
        now = self._now()
        while len(self._seen) > 1 and self._seen[1][0] <= now - self._window:
            self._seen.popleft()
        since, before = self._seen[0]
        self._seen.append((now, dict(totals)))
        elapsed = max(1e-9, now - since)
        return {name: (value - before.get(name, 0.0)) / elapsed for name, value in totals.items()}


class MetricsBoard:
    """The newest status of every actor, as text for a scrape. ``now`` is seconds on any monotonic clock."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[ActorStatus, float]] = {}

    def observe(self, status: ActorStatus, now: float) -> None:
        """Take in an actor's status."""
        self._seen[status.actor] = status, now

    def text(self, now: float) -> str:
        """All metrics, grouped by family as the format requires."""
        from prometheus_client import generate_latest  # slow to import, and few runs are scraped

        families = _Families()
        for status, heard_at in self._seen.values():
            for metric in _metrics(status, now - heard_at):
                families.add(metric, {"actor": status.actor, "role": status.role, **metric.labels})
        return generate_latest(cast("Collector", families)).decode()


class _Families:
    """The families of one scrape. A repeated sample or a name with two kinds would void it and is left out."""

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}
        self._samples: set[tuple[object, ...]] = set()

    def collect(self) -> Collection[Family]:
        """Called by ``prometheus_client``."""
        return self._families.values()

    def add(self, metric: Metric, labels: Mapping[str, str]) -> None:
        """Add a metric. A malformed one of a user's actor is left out, so that the others are read."""
        from prometheus_client.metrics_core import Metric as Family

        if len(metric.values) != (len(metric.bounds) + 2 if metric.kind == "histogram" else 1):
            return
        base = name = PREFIX + _NO_NAME.sub("_", metric.name)
        if metric.kind == "counter":
            base = name.removesuffix("_total")
            name = f"{base}_total"
        labels = {_label(label): value for label, value in labels.items()}
        sample = (name, *sorted(labels.items()))
        family = self._families.setdefault(name, Family(base, metric.help, metric.kind))
        if family.type != metric.kind or sample in self._samples:
            return
        self._samples.add(sample)
        if metric.kind != "histogram":
            family.add_sample(name, labels, metric.values[0])
            return
        *counts, total = metric.values
        for bound, count in zip((*map(str, metric.bounds), "+Inf"), accumulate(counts), strict=True):
            family.add_sample(f"{name}_bucket", {**labels, "le": bound}, count)
        family.add_sample(f"{name}_sum", labels, total)
        family.add_sample(f"{name}_count", labels, sum(counts))


def _metrics(status: ActorStatus, age: float) -> Iterator[Metric]:
    """An actor's own metrics, its live figures, and the metrics that every actor has."""
    yield from status.metrics
    yield gauge("status_age_seconds", age, "Since the actor was last heard.")
    yield gauge("state", 1, "What the actor says it is doing.", state=status.state)
    yield counter("busy_seconds_total", status.busy_seconds, "Seconds of doing what the role is for.")
    yield counter("cpu_seconds_total", status.cpu_seconds, "Processor time, with that of its children.")
    for name, value in numbers(status.figures).items():
        yield gauge(name, value, "")
    learner = status.figures.learner
    for environment, means in learner.environments.items() if learner else ():
        for name, value in numbers(means).items():
            yield gauge(f"environment_{name}", value, "", environment=environment)
        for part, value in means.parts.items():
            yield gauge("environment_part", value, "", environment=environment, part=part)


def _label(name: str) -> str:
    """A label begins with a letter: two underscores are Prometheus' own."""
    return _NO_NAME.sub("_", name).lstrip("_0123456789") or "label"
