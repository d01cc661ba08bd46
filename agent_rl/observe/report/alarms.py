"""The alarms of a run (`agent_rl.records.health`), from the steps that its journal holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from agent_rl.records.health import Alarm, Health
from agent_rl.records.journal import Journal
from agent_rl.records.run_records import TOOLS


class HeldAlarm(NamedTuple):
    """An alarm of a stage, the steps (from 1) between which it held, and its last text."""

    name: str
    stage: int
    first: int
    last: int
    text: str


@dataclass(slots=True)
class Alarms:
    """The alarms of all rl stages so far (`agent_rl.records.health`). Takes each trained step once."""

    held: dict[tuple[int, str], HeldAlarm] = field(default_factory=dict)
    now: tuple[Alarm, ...] = ()
    """Those that hold after the last step."""
    _next: int = -1
    _watches: dict[int, tuple[Health, list[int]]] = field(default_factory=dict)

    def look(self, journal: Journal) -> None:
        """Take the steps that were trained since the last look."""
        tools = journal.fact(TOOLS) != "0"
        for version in sorted(each for each in journal.closed_versions() if each > self._next):
            step = journal.step(version)
            if step is None or not step.trained:
                return
            watch, versions = self._watches.setdefault(step.stage, (Health(tools=tools), []))
            versions.append(version)
            self._next = version
            self.now = watch.step(step.figures, step.learner_figures)
            for name, text in self.now:
                first = self.held[step.stage, name].first if (step.stage, name) in self.held else len(versions)
                self.held[step.stage, name] = HeldAlarm(name, step.stage, first, len(versions), text)
