"""What actors count, and the text in which Prometheus reads it: pure.

::

    Actor.metrics --> ActorStatus.metrics --> MetricsBoard.observe ... MetricsBoard.text --> GET /metrics

The live figures of every actor are there too, as gauges. All names begin with ``agent_rl_``; all samples say which actor they
are of. The text is Prometheus' exposition format 0.0.4.
"""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from agent_rl.messages import ActorStatus, Metric

PREFIX = "agent_rl_"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets of a time."""

_NO_NAME = re.compile(r"[^a-zA-Z0-9_]")
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def counter(name: str, value: float, help_text: str, **labels: str) -> Metric:
    """A total; its name ends with ``_total``."""
    return Metric(name, "counter", help_text, (float(value),), labels)


def gauge(name: str, value: float, help_text: str, **labels: str) -> Metric:
    """A value of this moment."""
    return Metric(name, "gauge", help_text, (float(value),), labels)


class Histogram:
    """How often values fell between bounds, in constant memory."""

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value; a bound belongs to the bucket it ends."""
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self._sum += value

    def metric(self, name: str, help_text: str, **labels: str) -> Metric:
        """As it stands now."""
        return Metric(name, "histogram", help_text, (*map(float, self._counts), self._sum), labels, self._bounds)


class MetricsBoard:
    """The newest status of every actor, as text for a scrape. ``now`` is seconds on any monotonic clock."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[ActorStatus, float]] = {}

    def observe(self, status: ActorStatus, now: float) -> None:
        """An actor says how it is."""
        self._seen[status.actor] = status, now

    def text(self, now: float) -> str:
        """Everything known: one family after the other, as the format asks for."""
        families: dict[str, tuple[Metric, dict[str, list[str]]]] = {}
        for status, heard_at in self._seen.values():
            for metric in _metrics(status, now - heard_at):
                if len(metric.values) != (len(metric.bounds) + 2 if metric.kind == "histogram" else 1):
                    continue  # an actor of somebody's own has made it wrongly: the others are to be read
                name = PREFIX + _NO_NAME.sub("_", metric.name)
                first, samples = families.setdefault(name, (metric, {}))
                labels = {"actor": status.actor, "role": status.role, **metric.labels}
                if metric.kind == first.kind:  # a name has one kind: a second one would void the whole scrape
                    samples.setdefault(_labels(labels), list(_samples(name, metric, labels)))
        lines: list[str] = []
        for name, (metric, samples) in families.items():
            if metric.help:
                lines.append(f"# HELP {name} {metric.help.translate(_HELP_ESCAPES)}")
            lines.append(f"# TYPE {name} {metric.kind}")
            for written in samples.values():
                lines += written
        return "".join(f"{line}\n" for line in lines)


def _metrics(status: ActorStatus, age: float) -> Iterator[Metric]:
    """What is known of an actor: what it counts itself, its live figures, and what there is of every actor."""
    yield from status.metrics
    yield gauge("status_age_seconds", age, "Since the actor was last heard.")
    yield gauge("state", 1, "What the actor says it is doing.", state=status.state)
    yield counter("busy_seconds_total", status.busy_seconds, "Seconds of doing what the role is for.")
    yield counter("cpu_seconds_total", status.cpu_seconds, "Processor time, with that of its children.")
    for name, value in status.figures.items():
        yield gauge(name, value, "")


def _samples(name: str, metric: Metric, labels: Mapping[str, str]) -> Iterable[str]:
    if metric.kind != "histogram":
        yield f"{name}{_labels(labels)} {_number(metric.values[0])}"
        return
    *counts, total = metric.values
    cumulative = 0.0
    for bound, count in zip((*metric.bounds, math.inf), counts, strict=True):
        cumulative += count
        yield f"{name}_bucket{_labels({**labels, 'le': _number(bound)})} {_number(cumulative)}"
    yield f"{name}_sum{_labels(labels)} {_number(total)}"
    yield f"{name}_count{_labels(labels)} {_number(cumulative)}"


def _labels(labels: Mapping[str, str]) -> str:
    sound = {_label(name): value.translate(_ESCAPES) for name, value in labels.items()}
    return "{" + ",".join(f'{name}="{value}"' for name, value in sound.items()) + "}"


def _label(name: str) -> str:
    """A label begins with a letter: two underscores are Prometheus' own."""
    return _NO_NAME.sub("_", name).lstrip("_0123456789") or "label"


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)
