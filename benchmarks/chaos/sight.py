"""Where a run is, from what it writes: rows of its timeline, logs, checkpoints. Reading is thin, the rest is pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from agent_rl.observe.logs import log_directory
from agent_rl.records.timeline import FILE as TIMELINE

REPORTS_OF_BLUR = 3
"""For so many times the interval of reports, a row of the timeline may hold what a process said before a fault."""
WORK = {
    "kv_scheduler": "groups_opened",
    "rollout_generator": "generated_tokens",
    "tool_executor": "calls",
    "roc_filter": "trajectories",
    "learner": "step",
}
"""By role, the figure that counts what the role is for."""
RESTORED = {"kv_scheduler", "learner"}
"""Roles that count on from where the killed process was; the others count from nothing."""


class Lines:
    """New whole lines of a JSON file that grows, and may not be there yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def new(self) -> list[dict[str, Any]]:
        """The lines since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


class Frontier(NamedTuple):
    """How far a run has come: the stage, its steps, and in an evaluation the rollouts that are judged."""

    stage: int = -1
    step: float = 0.0
    judged: float = 0.0


@dataclass(frozen=True)
class Row:
    """A row of the timeline, and when it was seen, in monotonic seconds of the one who looks."""

    at: float
    actors: dict[str, dict[str, Any]]

    @property
    def frontier(self) -> Frontier | None:
        """How far the run is; None while the learner says nothing."""
        learner = self.actors.get("learner.0", {}).get("figures", {})
        if "stage" not in learner:
            return None
        judged = self.actors.get("roc_filter.0", {}).get("figures", {}).get("rollouts_judged", 0.0)
        return Frontier(int(learner["stage"]), learner.get("step", 0.0), judged)


@dataclass
class Sight:
    """Everything seen of a run so far, over all its starts."""

    directory: Path
    """The run directory of the main host."""
    kinds: Sequence[str]
    """Kinds of the recipe's stages."""
    logs: Mapping[str, Path]
    """The log of each host's supervisor."""
    blur: float = 1.5
    """Seconds that a row of the timeline may be late."""
    rows: list[Row] = field(default_factory=list)
    processes: dict[str, int] = field(default_factory=dict)
    """The living process of each actor, of the present start."""
    starts: list[tuple[str, float]] = field(default_factory=list)
    """Actors that run again, and the seconds from the end of the process before."""
    checkpoints: frozenset[str] = frozenset()
    """Names in their folder."""
    stages_begun: int = 0
    steps_done: int = 0
    frontier: Frontier = field(default_factory=Frontier)
    """The furthest that was seen."""
    stage: int | None = None
    """Where the learner is now; None before it says so."""

    def __post_init__(self) -> None:
        self._timeline = Lines(self.directory / TIMELINE)
        self._supervisors = [Lines(path) for path in self.logs.values()]
        self._learner = Lines(log_directory(self.directory) / "learner.0.jsonl")

    def started(self, now: float, actors: Collection[str]) -> None:
        """A host is started again: no process of its actors lives yet."""
        self.look(now)
        self.processes = {actor: pid for actor, pid in self.processes.items() if actor not in actors}
        if "learner.0" in actors:
            self.stage = None

    def look(self, now: float) -> None:
        """Read what is new."""
        self.checkpoints = self._checkpoint_names()
        for line in (line for lines in self._supervisors for line in lines.new()):
            if line["event"] == "started":
                self.processes[line["actor"]] = line["pid"]
            elif line["event"] == "ended" and self.processes.get(line["actor"]) == line["pid"]:
                del self.processes[line["actor"]]
            actor, again, rest = str(line.get("text", "")).partition(" runs again, ")
            if again:
                self.starts.append((actor, float(rest.split()[0])))
        for line in self._learner.new():
            self.stages_begun += line["event"] == "stage"
            self.steps_done += line["event"] == "step"
            if line["event"] == "stage":
                self.stage = line["stage"]
        for line in self._timeline.new():
            row = Row(now, line["actors"])
            self.rows.append(row)
            self.frontier = max(self.frontier, row.frontier or self.frontier)

    def _checkpoint_names(self) -> frozenset[str]:
        try:
            return frozenset(path.name for path in (self.directory / "checkpoints").iterdir())
        except FileNotFoundError:
            return frozenset()

    @property
    def phase(self) -> str:
        """The kind of the present stage; ``start`` before the first and ``end`` after the last."""
        if self.stage is None:
            return "start"
        return self.kinds[self.stage] if self.stage < len(self.kinds) else "end"

    def shows(self, moment: str, since: Sight | None = None) -> bool:
        """Whether it is this moment, or too late for it. ``since`` is what was seen when the waiting began."""
        stage = -1 if self.stage is None else self.stage
        match moment:
            case "start":
                return True
            case "sft":
                return stage >= 0
            case "evaluation":
                return self.phase in {"evaluate", "rl", "end"}
            case "step":
                return self.phase == "rl" or stage > self.kinds.index("rl")
            case "stage_change":
                return since is not None and self.stages_begun > since.stages_begun
            case "weight_transfer":
                return since is not None and self.steps_done > since.steps_done
        if since is None or not self.shows("step"):
            return False
        now = self._checkpoint_names()  # the moment is a checkpoint
        return now != since.checkpoints or any(name.endswith(".partial") for name in now)


def work_seen(rows: Sequence[Row], victim: str, fault_at: float, over_at: float, blur: float) -> float | None:
    """When a victim's own work goes on, by the clock of the rows; None if it has not yet.

    ``over_at`` is when the fault was over: a stopped process is told to go on, a full disk has room. For ``blur``
    seconds a row may hold what was said before. Learner and supervisor are back when the run is further than before the
    fault. So is an actor that the present stage has no work for, once a row shows it running.
    """
    before = max((row.frontier or Frontier() for row in rows if row.at <= fault_at + blur), default=Frontier())
    role = victim.rpartition(".")[0]
    counted = WORK.get(role, "")
    counts = [
        (row.at, count)
        for row in rows
        if (count := row.actors.get(victim, {}).get("figures", {}).get(counted)) is not None
    ]
    earlier = [count for at, count in counts if at <= fault_at + blur]
    most, seen = (earlier[-1] if earlier else 0.0), None
    for row in rows:
        if row.at <= over_at + blur:
            continue
        beyond = row.frontier is not None and row.frontier > before
        if role in {"learner", "supervisor"}:
            if beyond:
                return row.at
            continue
        actor = row.actors.get(victim)
        if actor is None:
            continue
        count = actor["figures"].get(counted)
        if count is not None:
            if count > most or (role not in RESTORED and count > (0.0 if seen is None else seen)):
                return row.at
            seen = count
        if beyond and actor["state"] not in {"starting", "failed"}:
            return row.at
    return None
