"""What a run leaves for people and programs: ``metrics.jsonl``, a row per step or evaluation, and ``summary.json``.

Both are made from the journal, which is the truth; a row is written once, when its fact is first recorded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agent_rl.audit import audit_journal
from agent_rl.disk import LineFile, whole, writing
from agent_rl.journal import Journal
from agent_rl.summary import summarise
from agent_rl.topology import RlStage, Topology

SECONDS = "seconds_used"
STAGE_SECONDS = "seconds_in_stage_{}"
SFT_SKIPPED = "steps_skipped_of_stage_{}"
"""Facts of the journal, by stage: wall-clock seconds in it, and supervised steps that were skipped as not finite."""


class RunRecords:
    """Writes the records of one run."""

    def __init__(self, directory: Path, journal: Journal, topology: Topology, started_at: float, wall: float) -> None:
        """``started_at`` is when this start of the run began, in wall-clock seconds, and ``wall`` is now; the time of
        earlier starts is in the journal.
        """
        self._directory = directory
        self._journal = journal
        self._topology = topology
        self._started_at = started_at
        self._seconds_before = float(journal.fact(SECONDS) or 0.0)
        self._charged_until = wall
        self._rows: LineFile | None = None
        self._tally: dict[str, float] = {}
        self._recount()

    @property
    def counts(self) -> dict[str, float]:
        """Training groups by fate, as of the last record."""
        return self._tally

    def step(self, version: int, wall: float) -> None:
        """A step was trained."""
        self.spent(wall)
        row = self._journal.steps(from_version=version)[0]
        spec = self._topology.stages[row.stage]
        figures: dict[str, float | None] = {**row.figures, **row.learner_figures}
        step = version - int(self._journal.fact("stage_version") or 0) + 1
        self._recount()
        figures["steps_skipped"] = self._tally["steps_skipped"]
        if not figures.get("groups_trained"):  # nothing was trained that could be stale
            figures |= {"staleness_mean": None, "staleness_max": None}
        self._append({"kind": "step", "stage": spec.name, "step": step, "version": version + 1, **figures}, wall)

    def evaluation(self, stage: int, figures: dict[str, float], wall: float) -> None:
        """An evaluation stage is complete."""
        version = int(self._journal.fact("stage_version") or 0)
        row = {"kind": "evaluation", "stage": self._topology.stages[stage].name, "version": version, **figures}
        self._append(row, wall)

    def interim_evaluation(self, stage: int, number: int, figures: dict[str, float], wall: float) -> None:
        """An evaluation within an rl stage is complete."""
        spec = self._topology.stages[stage]
        assert isinstance(spec, RlStage)
        assert spec.evaluate is not None
        version = int(self._journal.fact("stage_version") or 0) + number * spec.evaluate.every
        self._append({"kind": "evaluation", "stage": spec.interim(number).name, "version": version, **figures}, wall)

    def stage_left(self, figures: dict[str, float], wall: float) -> None:
        """A stage ended with these figures."""
        if "steps_skipped" in figures:
            self._journal.set_fact(SFT_SKIPPED.format(int(figures["stage"])), str(figures["steps_skipped"]))
        self._append({"kind": "stage", **figures}, wall)

    def summary(self, wall: float) -> dict[str, Any]:
        """The run so far, flat but for its ``remarks``."""
        stages = self._topology.stages
        rl_seconds = (self._fact(STAGE_SECONDS, i) for i, stage in enumerate(stages) if stage.kind == "rl")
        return summarise(
            audit_journal(self._journal),
            [step for step in self._journal.steps() if step.trained],
            self._journal.evaluations(),
            seconds=self._seconds(wall),
            rl_seconds=sum(rl_seconds),
            sft_steps_skipped=int(sum(self._fact(SFT_SKIPPED, i) for i in range(len(stages)))),
            checkpoints_damaged=len(list((self._directory / "checkpoints").glob("damaged-*"))),
        )

    def spent(self, wall: float) -> None:
        """Charge the time since the last call to the stage the journal says the run is in."""
        stage = self._journal.fact("stage")
        if stage is not None:
            so_far = self._fact(STAGE_SECONDS, int(stage))
            self._journal.set_fact(STAGE_SECONDS.format(stage), str(so_far + wall - self._charged_until))
        self._charged_until = wall

    def write_summary(self, wall: float) -> None:
        """Write ``summary.json``, whole or not at all."""
        self.spent(wall)
        self._journal.set_fact(SECONDS, str(self._seconds(wall)))
        path = self._directory / "summary.json"
        with whole(path) as partial:
            partial.write_text(json.dumps(self.summary(wall)) + "\n")

    def close(self) -> None:
        """Close the file of rows."""
        if self._rows is not None:
            self._rows.close()

    def _seconds(self, wall: float) -> float:
        return self._seconds_before + wall - self._started_at

    def _append(self, row: dict[str, Any], wall: float) -> None:
        path = self._directory / "metrics.jsonl"
        # seconds: the run's own, over all its starts; wall: what timeline.jsonl counts in
        line = json.dumps({**row, "seconds": round(self._seconds(wall), 3), "wall": round(wall, 3)})
        with writing(path):
            if self._rows is None:
                self._rows = LineFile(path)
            self._rows.append(line)

    def _recount(self) -> None:
        self._tally = audit_counts(self._journal)

    def _fact(self, name: str, stage: int) -> float:
        return float(self._journal.fact(name.format(stage)) or 0.0)


def audit_counts(journal: Journal) -> dict[str, float]:
    """Training groups trained and dropped, and steps that made no update, for the live table."""
    _, empty, skipped = journal.step_counts()
    counts = {"groups_trained": 0.0, "groups_dropped": 0.0, "steps_skipped": float(skipped)}
    counts["steps_without_update"] = float(empty + skipped)
    for (purpose, state, _), count in journal.counts().items():
        if purpose == "train" and f"groups_{state}" in counts:
            counts[f"groups_{state}"] += count
    return counts
