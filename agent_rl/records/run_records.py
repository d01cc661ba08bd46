"""The records of a run: ``metrics.jsonl``, a row per step, evaluation or selection, and ``summary.json``.

Both files are derived from the journal, which holds every row and all inputs of the summary. A row is appended to the
file after its commit was flushed. If the process dies in between, the next start adds the missing rows. `rebuild`
writes both files again.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_rl.config.topology import Topology
from agent_rl.figures import EvaluationFigures, Fates, SelectionFigures, StageFigures, StepFigures, row
from agent_rl.files.disk import DiskError, LineFile, whole, writing
from agent_rl.messages import Evaluation
from agent_rl.records.continuing import MADE_WITH, METRICS, SFT_STEPS, SUMMARY, made_with
from agent_rl.records.journal import Journal, JournalError, StepRow, read_journal
from agent_rl.records.run_directory import add_end, read_end
from agent_rl.records.summary import CHECKPOINT, SECONDS, SFT_LOSS, SFT_SKIPPED, STAGE_SECONDS, TOOLS, fact_of, summary

START = "start"
"""The journal's fact with the time of the present start, and the seconds of running before it."""


class RunRecords:
    """Writes the records of one run."""

    def __init__(
        self,
        directory: Path,
        journal: Journal,
        topology: Topology,
        started_at: float,
        wall: float,
        *,
        tools: bool = True,
    ) -> None:
        """``started_at`` is the time of this start of the run and ``wall`` is now, both in wall-clock seconds.

        ``tools``: whether an environment offers any.
        """
        self._directory = directory
        self._journal = journal
        self._topology = topology
        self._started_at = started_at
        began, before = json.loads(journal.fact(START) or "[null, 0.0]")
        self._seconds_before = float(before)
        if began != started_at:
            self._seconds_before = float(journal.fact(SECONDS) or 0.0)
            journal.set_fact(START, json.dumps([started_at, self._seconds_before]))
        settings = json.dumps(made_with(topology))
        if journal.fact(MADE_WITH) != settings:
            journal.set_fact(MADE_WITH, settings)
        journal.set_fact(TOOLS, str(int(tools)))
        self._charged_until = wall
        self._rows: LineFile | None = None
        self._pending: list[str] = []
        self.rows = 0
        """Rows in the file."""
        self.fates = count_fates(journal)
        """Fates of training groups and steps at the last record."""
        self._mend_rows()

    def step(self, version: int, wall: float) -> None:
        """A step was trained."""
        self.spent(wall)
        step = self._journal.step(version)
        assert step is not None
        figures, learner = shown_figures(step), step.learner_figures
        self.fates = count_fates(self._journal)
        began = int(self._journal.fact("stage_version") or 0)
        self._append(
            {
                "kind": "step",
                "stage": self._topology.stages[step.stage].name,
                "step": version - began + 1,
                "version": version + 1,
                **row(figures),
                **(row(learner) if learner else {}),
                "steps_skipped": self.fates.steps_skipped,
            },
            wall,
        )

    def evaluation(self, evaluation: Evaluation, figures: EvaluationFigures, wall: float) -> None:
        """An evaluation of the current stage is complete."""
        version = int(self._journal.fact("stage_version") or 0) + (evaluation.at_step or 0)
        self._append({"kind": "evaluation", "stage": figures.name, "version": version, **figures.row()}, wall)

    def selection(self, figures: SelectionFigures, wall: float) -> None:
        """The current select stage is complete."""
        version = int(self._journal.fact("stage_version") or 0)
        self._append({"kind": "selection", "stage": figures.name, "version": version, **figures.row()}, wall)

    def stage_left(self, left: StageFigures, wall: float) -> None:
        """A stage ended."""
        if (trained := left.supervised) is not None:
            for fact, value in (
                (SFT_STEPS, trained.steps),
                (SFT_SKIPPED, trained.steps_skipped),
                (SFT_LOSS, trained.loss),
            ):
                if value is not None:
                    self._journal.set_fact(fact.format(left.stage), str(value))
        self._append({"kind": "stage", **row(left)}, wall)

    def checkpoint(self, path: str) -> None:
        """A checkpoint was saved."""
        self._journal.set_fact(CHECKPOINT, path)

    def spent(self, wall: float) -> None:
        """Charge the time since the last call to the journal's current stage."""
        stage = self._journal.fact("stage")
        if stage is not None:
            so_far = fact_of(self._journal, STAGE_SECONDS, int(stage))
            self._journal.set_fact(STAGE_SECONDS.format(stage), str(so_far + wall - self._charged_until))
        self._journal.set_fact(SECONDS, str(self._seconds(wall)))
        self._charged_until = wall

    def write_summary(self, wall: float) -> None:
        """Write ``summary.json``."""
        self.spent(wall)
        _write_summary(self._directory, self._journal)

    def commit(self, *, flush: bool = False) -> None:
        """Commit the journal, then write its new rows to the file."""
        with self._journal_in_place():
            self._journal.commit(flush=flush or bool(self._pending))
        path = self._directory / METRICS
        while self._pending:
            with writing(path):
                if self._rows is None:
                    self._rows = LineFile(path)
                self._rows.append(self._pending[0])
            del self._pending[0]
            self.rows += 1

    def look(self) -> None:
        """Check that the journal is still in place. Raises JournalError when not."""
        with self._journal_in_place():
            self._journal.look()

    @contextlib.contextmanager
    def _journal_in_place(self) -> Iterator[None]:
        """Write a summary if the journal's file was removed: the file is still open, so it can be read."""
        try:
            yield
        except JournalError:
            with contextlib.suppress(JournalError, DiskError):
                if self._directory.is_dir():
                    _write_summary(self._directory, self._journal)
            raise

    def close(self) -> None:
        """Close the file of rows."""
        if self._rows is not None:
            self._rows.close()

    def _seconds(self, wall: float) -> float:
        return self._seconds_before + wall - self._started_at

    def _append(self, record: dict[str, Any], wall: float) -> None:
        # seconds: the run's time over all starts; wall: the clock of timeline.jsonl
        line = json.dumps({**record, "seconds": round(self._seconds(wall), 3), "wall": round(wall, 3)})
        self._journal.add_record(line)
        self._pending.append(line)

    def _mend_rows(self) -> None:
        """Make the file equal to the journal: a process may have died between the two writes."""
        path = self._directory / METRICS
        written = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        rows = self._journal.records()
        self.rows = len(rows)
        if written != _lines(rows):
            _write_rows(self._directory, rows)


def shown_figures(step: StepRow) -> StepFigures:
    """The filter's figures of a step as metrics.jsonl has them: a skipped step trained nothing that could be stale."""
    if not step.skipped:
        return step.figures
    return replace(step.figures, groups_trained=0, staleness_mean=None, staleness_max=None)


def rebuild(directory: Path) -> None:
    """Write ``metrics.jsonl`` and ``summary.json`` again from the journal. Raises JournalError and DiskError."""
    with contextlib.closing(read_journal(directory)) as journal:
        if journal.fact(MADE_WITH) is None:
            raise JournalError(f"{journal.path} holds no run: put the run's journal back")
        rows = journal.records()
        _write_summary(directory, journal)
    _write_rows(directory, rows)
    if stopped := read_end(directory):
        add_end(directory, json.loads((directory / SUMMARY).read_text(encoding="utf-8")), stopped)


def _write_summary(directory: Path, journal: Journal) -> None:
    made = summary(directory, journal)
    with whole(directory / SUMMARY) as partial:
        partial.write_text(json.dumps(made) + "\n")


def _write_rows(directory: Path, rows: Sequence[str]) -> None:
    with whole(directory / METRICS) as partial:
        partial.write_text(_lines(rows), encoding="utf-8")


def _lines(rows: Sequence[str]) -> str:
    return "".join(f"{row}\n" for row in rows)


def count_fates(journal: Journal) -> Fates:
    """Training groups trained and dropped, and steps that made no update."""
    _, empty, skipped = journal.step_counts()
    groups: Counter[str] = Counter()
    for (purpose, state, _), count in journal.counts().items():
        if purpose == "train":
            groups[state] += count
    return Fates(
        groups_trained=groups["trained"],
        groups_dropped=groups["dropped"],
        steps_skipped=skipped,
        steps_without_update=empty + skipped,
    )
