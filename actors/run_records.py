"""What a run leaves for people and programs: ``metrics.jsonl``, a row per step or evaluation, and ``summary.json``.

Both are made from the journal, which is the truth; a row is written once, when its fact is first recorded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agent_rl.audit import audit_journal
from agent_rl.journal import Journal
from agent_rl.topology import Topology

SECONDS = "seconds_used"
SFT_SKIPPED = "steps_skipped_of_stage_{}"
"""Facts of the journal: by stage, the supervised steps that were skipped as not finite."""


class RunRecords:
    """Writes the records of one run."""

    def __init__(self, directory: Path, journal: Journal, topology: Topology, started_at: float) -> None:
        """``started_at`` is when this start of the run began, in wall-clock seconds; earlier ones are in the journal."""
        self._directory = directory
        self._journal = journal
        self._topology = topology
        self._started_at = started_at
        self._seconds_before = float(journal.fact(SECONDS) or 0.0)
        self._tally: dict[str, float] = {}
        self._recount()

    @property
    def counts(self) -> dict[str, float]:
        """Training groups by fate, as of the last record."""
        return self._tally

    def step(self, version: int, wall: float) -> None:
        """A step was trained."""
        row = self._journal.steps(from_version=version)[0]
        spec = self._topology.stages[row.stage]
        figures = {**row.figures, **row.learner_figures}
        step = version - int(self._journal.fact("stage_version") or 0) + 1
        self._recount()
        figures["steps_skipped"] = self._tally["steps_skipped"]
        self._append({"kind": "step", "stage": spec.name, "step": step, "version": version + 1, **figures}, wall)

    def evaluation(self, stage: int, figures: dict[str, float], wall: float) -> None:
        """An evaluation stage is complete."""
        version = int(self._journal.fact("stage_version") or 0)
        row = {"kind": "evaluation", "stage": self._topology.stages[stage].name, "version": version, **figures}
        self._append(row, wall)

    def stage_left(self, figures: dict[str, float], wall: float) -> None:
        """A stage ended with these figures."""
        if "steps_skipped" in figures:
            self._journal.set_fact(SFT_SKIPPED.format(int(figures["stage"])), str(figures["steps_skipped"]))
        self._append({"kind": "stage", **figures}, wall)

    def summary(self, wall: float) -> dict[str, Any]:
        """The run so far, flat."""
        summary: dict[str, Any] = {}
        for figures in self._journal.evaluations().values():
            summary.update({name: value for name, value in figures.items() if name.startswith("success_")})
        audit = audit_journal(self._journal)
        steps = [step for step in self._journal.steps() if step.trained and not step.skipped]
        trained = sum(step.figures["groups_trained"] for step in steps)
        staleness = sum(step.figures["staleness_mean"] * step.figures["groups_trained"] for step in steps)
        summary["minutes"] = round(self._seconds(wall) / 60.0, 2)
        summary["steps"] = audit.steps
        summary["steps_skipped"] = audit.skipped_steps + self._sft_skipped()
        summary.update(audit.figures())
        summary.update({f"groups_dropped_{reason}": count for reason, count in sorted(audit.dropped.items())})
        summary["mean_staleness"] = staleness / trained if trained else 0.0
        summary["max_staleness"] = max((step.figures["staleness_max"] for step in steps), default=0.0)
        return summary

    def write_summary(self, wall: float) -> None:
        """Write ``summary.json``, whole or not at all."""
        self._journal.set_fact(SECONDS, str(self._seconds(wall)))
        path = self._directory / "summary.json"
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(self.summary(wall)) + "\n")
        partial.replace(path)

    def _seconds(self, wall: float) -> float:
        return self._seconds_before + wall - self._started_at

    def _append(self, row: dict[str, Any], wall: float) -> None:
        with (self._directory / "metrics.jsonl").open("a") as file:
            # seconds: the run's own, over all its starts; wall: what timeline.jsonl counts in
            file.write(json.dumps({**row, "seconds": round(self._seconds(wall), 3), "wall": round(wall, 3)}) + "\n")

    def _recount(self) -> None:
        skipped = sum(step.skipped for step in self._journal.steps()) + self._sft_skipped()
        self._tally = audit_counts(self._journal) | {"steps_skipped": float(skipped)}

    def _sft_skipped(self) -> int:
        facts = (self._journal.fact(SFT_SKIPPED.format(stage)) for stage in range(len(self._topology.stages)))
        return sum(int(float(fact or 0)) for fact in facts)


def audit_counts(journal: Journal) -> dict[str, float]:
    """Training groups trained and dropped, for the live table."""
    counts = {"groups_trained": 0.0, "groups_dropped": 0.0}
    for (purpose, state, _), count in journal.counts().items():
        if purpose == "train" and f"groups_{state}" in counts:
            counts[f"groups_{state}"] += count
    return counts
