"""Journal, checkpoints and metrics.jsonl know each other: what would lose history is refused, what a crash leaves is
gone on from.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from actors.cli.main import main
from agent_rl.config.load import load_topology
from agent_rl.figures import StepFigures, TrainingFigures
from agent_rl.messages import StageEntered
from agent_rl.records.checkpoint_files import Position
from agent_rl.records.continuing import (
    Known,
    Mark,
    Saved,
    _short_stages,
    check_history,
    disagreement,
    known,
    refuse_learner,
)
from agent_rl.records.journal import Journal, JournalError, open_journal
from agent_rl.records.run_records import rebuild
from tests.agent_rl.records.journals import forget
from tests.agent_rl.records.report_runs import SyntheticRun

KINDS = ("sft", "evaluate", "rl", "evaluate")
KNOWN = Known(Path("journal.sqlite"), "ours", 2, 6, 4, frozenset({1}))


def saved(stage: int, began: int, version: int, *, run: str = "ours", step: int = -1) -> Saved:
    return Saved("checkpoints/x", Position(stage, began, version), Mark(run, step))


BEGUN = replace(KNOWN, stage=-1, step=-1)


@pytest.mark.parametrize(
    ("journal", "checkpoint", "said"),
    [
        (KNOWN, saved(2, 1, 7, step=6), ""),  # the same step
        (KNOWN, saved(2, 1, 5, step=4), ""),  # older, of one before a damaged one: the journal replays
        (KNOWN, saved(2, 1, 4, step=3), ""),  # as far back as there are rollouts
        (KNOWN, saved(3, 7, 7, step=6), ""),  # a stage was left, and a crash came before the journal was told
        (replace(KNOWN, stage=0, step=-1, kept_from=None, evaluated=frozenset()), saved(1, 1, 1), ""),
        (replace(BEGUN, kept_from=None), None, ""),  # a run that begins
        (replace(KNOWN, kept_from=None), None, ""),  # one that died before its first checkpoint
        (KNOWN, saved(2, 1, 7, run="theirs", step=6), "belongs to run theirs, and journal.sqlite to run ours"),
        (KNOWN, saved(2, 1, 7, run=""), "names no run"),
        (KNOWN, saved(2, 1, 9, step=8), "than checkpoints/x: the journal ends in stage 2, after the step at version 6"),
        (BEGUN, saved(1, 1, 1), "in stage -1, before the first step"),
        (replace(KNOWN, stage=1, step=-1, evaluated=frozenset()), saved(2, 1, 1), "is older than"),
        (replace(KNOWN, stage=1), saved(3, 7, 7, step=6), "is older than"),
        (KNOWN, saved(2, 1, 3, step=2), "is too old for journal.sqlite, which holds rollouts from version 4 on"),
        (KNOWN, None, "records checkpoints, but there is none"),
    ],
)
def test_what_belongs_together_goes_on_and_what_does_not_is_refused_with_the_remedy(
    journal: Known, checkpoint: Saved | None, said: str
) -> None:
    fault = disagreement(journal, checkpoint, KINDS) or ""
    assert bool(fault) == bool(said)
    assert said in fault
    assert not fault or "put back" in fault.lower() or "put the folder checkpoints back" in fault
    assert not fault or "another run.directory" in fault


class Run:
    """A finished run on disk, with a checkpoint at its end and one before; the names of the files are the real ones."""

    def __init__(self, folder: Path) -> None:
        made = SyntheticRun(folder).whole()
        made.journal.keep_from(3)
        forget(made.journal)
        self.run = str(made.journal.fact("run"))
        self.directory = made.close()
        self.file = folder / "micro.toml"
        self.checkpoint(Position(2, 1, 3), step=2)
        self.checkpoint(Position(4, 4, 4), step=3)

    def checkpoint(self, at: Position, *, step: int) -> None:
        path = self.directory / "checkpoints" / f"version-{at.version:06d}-stage-{at.stage:02d}" / "training"
        path.mkdir(parents=True)
        state = asdict(at) | {"extra": Mark(self.run, step).kept(), "files": {}}
        (path / "state.json").write_text(json.dumps(state))

    @property
    def journal(self) -> Path:
        return self.directory / "journal.sqlite"

    def check(self) -> None:
        check_history(self.directory, load_topology(self.file), ["local"])

    def remove(self, name: str) -> Path:
        """Remove a file or folder of the run directory; returns its path."""
        path = self.directory / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        return path

    def take_over(self, name: str) -> None:
        """Put a file or folder of another run in place of this run's."""
        other = Run(self.file.parent.parent / "other").directory / name
        (shutil.copytree if other.is_dir() else shutil.copy)(other, self.remove(name))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "this")


def test_more_steps_for_a_stage_that_has_ended_are_answered_with_how_to_train_on(run: Run) -> None:
    fits = load_topology(run.file, ["stages.2.steps=3"])
    assert check_history(run.directory, fits, ["local"]) == []
    (said,) = check_history(run.directory, load_topology(run.file, ["stages.2.steps=8"]), ["local"])
    assert "stage 'rl' ended after 3 of 8 steps" in said
    assert '[[stages]] kind = "rl", steps = 5' in said


def test_the_stage_under_way_and_steps_of_other_stages_are_not_taken_for_a_stage_that_ended_short(run: Run) -> None:
    journal = open_journal(run.directory)
    journal.close_step(4, 0, [], [], StepFigures())  # of another stage
    journal.step_trained(4, TrainingFigures())
    for stage, said in (("2", 0), ("3", 1)):
        journal.set_fact("stage", stage)
        journal.commit()
        found = list(_short_stages(journal, known(journal).stage, load_topology(run.file, ["stages.2.steps=4"])))
        assert len(found) == said
    journal.close()


def test_rows_that_a_kill_kept_from_metrics_are_no_lost_history(run: Run) -> None:
    path = run.directory / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]) + '{"half')
    run.check()


def test_pages_that_sqlite_finds_damaged_are_refused_though_no_row_that_a_start_reads_is(run: Run) -> None:
    """An index that lacks its entries: every row is as it was written."""
    with sqlite3.connect(run.journal) as database:
        database.execute("PRAGMA writable_schema = ON")
        database.execute("UPDATE sqlite_master SET rootpage = 1 WHERE name = 'groups_by_segment'")
    database.close()
    with pytest.raises(JournalError, match="not a usable journal"):
        run.check()


def test_a_restarted_learner_is_compared_by_its_last_step_and_stage(run: Run) -> None:
    journal = open_journal(run.directory)
    run_of, last = str(journal.fact("run")), journal.last_step()
    for named, step, version, said in (
        (run_of, last, last + 1, None), (run_of, last + 1, last + 1, "is older than"), ("other", last, last + 1, "belongs"),
        ("", -1, 4, None), ("", -1, 0, "records checkpoints, but there is none"), (run_of, 1, 2, "is too old"),
    ):  # fmt: skip
        entered = StageEntered(2 if version else 0, 0, version, restored=True, run=named, last_step=step)
        with pytest.raises(JournalError, match=said) if said else nullcontext():
            refuse_learner(journal, entered, KINDS)
    journal.close()


def test_a_run_that_entered_no_stage_is_before_its_first(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    assert replace(known(journal), run="") == Known(journal.path, "", -1, -1, None, frozenset())
    journal.set_fact("stage", "0")
    journal.keep_from(0)
    assert replace(known(journal), run="") == Known(journal.path, "", 0, -1, 0, frozenset())
    journal.close()


def earlier_rows(run: Run) -> None:
    path = run.directory / "metrics.jsonl"
    path.write_text(path.read_text() + '{"kind": "step", "version": 9}\n')


def other_settings(run: Run) -> None:
    run.file.write_text(run.file.read_text().replace("hidden_size = 32", "hidden_size = 64"))
    run.remove("topology.json")  # the journal knows them too


JOURNAL, CHECKPOINTS, OLDER = "journal.sqlite", "checkpoints", "checkpoints/version-000003-stage-02"
HARMS: dict[str, tuple[Callable[[Run], object], str, str]] = {
    # what is done to the run directory, what a start says of it, and what a deep audit says where it must see it
    "no journal": (
        lambda run: run.remove(JOURNAL),
        "is missing, and the run has a history: checkpoints/version-000004-stage-04 and 9 rows in metrics.jsonl",
        "",
    ),
    "neither journal nor checkpoints": (
        lambda run: (run.remove(JOURNAL), run.remove(CHECKPOINTS)),
        "is missing, and the run has a history: 9 rows in metrics.jsonl",
        "",
    ),
    "an empty journal": (
        lambda run: run.journal.write_bytes(b""),
        "is empty, and the run has a history",
        "not a usable journal",
    ),
    "a new journal": (lambda run: Journal(run.remove(JOURNAL)).close(), "belongs to run", ""),
    "another journal": (lambda run: run.take_over(JOURNAL), "belongs to run", "belongs to run"),
    "other checkpoints": (lambda run: run.take_over(CHECKPOINTS), "belongs to run", "belongs to run"),
    "one other checkpoint": (lambda run: run.take_over(OLDER), f"{OLDER} belongs to run", ""),
    "no checkpoints": (lambda run: run.remove(CHECKPOINTS), "records checkpoints, but there is none", ""),
    "empty checkpoints": (lambda run: run.remove(CHECKPOINTS).mkdir(), "records checkpoints, but there is none", ""),
    "a later checkpoint": (
        lambda run: run.checkpoint(Position(2, 1, 9), step=8),
        "is older than checkpoints/version-000009-stage-02",
        "is older than checkpoints/version-000009-stage-02",
    ),
    "more rows": (
        earlier_rows,
        "which has 10 rows where the journal has 9",
        "is older than metrics.jsonl, which has 10",
    ),
    "other settings": (other_settings, "model.initialise", ""),
}


@pytest.mark.parametrize("name", HARMS)
def test_a_start_that_would_lose_history_is_refused_before_anything_starts(
    run: Run, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    harm, said, _ = HARMS[name]
    harm(run)
    before = listing(run.directory)
    with pytest.raises(JournalError) as refused:
        run.check()
    assert said in str(refused.value)
    assert "run.directory" in str(refused.value)
    assert listing(run.directory) == before
    assert main(["run", str(run.file)]) == 2
    assert capsys.readouterr().err == f"agent-rl: {refused.value}\n"
    assert [each for each in listing(run.directory) if not each[0].startswith("supervisor.")] == before


@pytest.mark.parametrize("name", [name for name, (_, _, of_audit) in HARMS.items() if of_audit])
def test_a_deep_audit_does_not_call_whole_what_belongs_to_different_histories(
    run: Run, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A journal that was cut short at a transaction, or restored from a backup, has no wrong byte."""
    harm, _, said = HARMS[name]
    harm(run)
    assert main(["audit", "--deep", str(run.directory)]) != 0
    output = capsys.readouterr()
    assert said in output.out + output.err
    assert "every byte is as it was written" not in output.out


def listing(directory: Path) -> list[tuple[str, int]]:
    return sorted((path.name, path.stat().st_mtime_ns) for path in directory.rglob("*") if path.is_file())


def test_a_checkpoint_that_is_damaged_or_weights_alone_is_the_learners_to_set_aside(run: Run) -> None:
    folder = run.directory / "checkpoints"
    for path in folder.glob("*/training/state.json"):
        path.write_text("{")
    run.check()
    shutil.rmtree(folder / "version-000004-stage-04" / "training")
    run.check()


def test_where_the_checkpoints_lie_on_another_host_they_are_not_looked_at(run: Run) -> None:
    run.remove(CHECKPOINTS)
    topology = load_topology(run.file)
    entry = topology.actors["learner"].model_copy(update={"host": "far"})
    apart = topology.model_copy(update={"actors": {**topology.actors, "learner": entry}})
    check_history(run.directory, apart, ["local"])
    run.remove(JOURNAL)
    with pytest.raises(JournalError, match="is missing"):
        check_history(run.directory, apart, ["local"])
    check_history(run.directory, apart, ["far"])  # there is no journal on the learner's host


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("DELETE FROM steps WHERE version = 2", "lost steps"),
        ("DELETE FROM steps", r"lost steps \(\S+ is in the step at version \d+, which is missing\)"),
    ],
)
def test_a_journal_that_has_lost_steps_is_refused(run: Run, statement: str, said: str) -> None:
    other = sqlite3.connect(run.journal)
    versions = [version for (version,) in other.execute("SELECT version FROM steps ORDER BY version")]
    assert len(versions) >= 3
    other.execute(statement.replace("= 2", f"= {versions[1]}"))
    other.commit()
    other.close()
    with pytest.raises(JournalError, match=said):
        run.check()


@pytest.mark.parametrize("name", ["journal.sqlite", "metrics.jsonl", "summary.json"])
def test_a_directory_in_the_place_of_a_file_is_refused(run: Run, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (run.directory / name).unlink()
    (run.directory / name).mkdir()
    assert main(["run", str(run.file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{run.directory / name} is a directory where the run writes a file: move it away, or start again" in line


def test_the_summary_of_a_run_that_was_moved_names_the_checkpoint_where_it_is(run: Run) -> None:
    journal = open_journal(run.directory)
    newest = max((run.directory / "checkpoints").glob("version-*"))
    journal.set_fact("checkpoint", str(newest))
    journal.close()
    moved = run.directory.rename(run.directory.with_name("moved"))
    rebuild(moved)
    assert json.loads((moved / "summary.json").read_text())["checkpoint"] == str(moved / "checkpoints" / newest.name)
    shutil.rmtree(moved / "checkpoints")  # they are on another host
    rebuild(moved)
    assert json.loads((moved / "summary.json").read_text())["checkpoint"] == str(newest)
