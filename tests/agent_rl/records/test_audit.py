"""The audit computes again what the filter wrote: what tokens or judgements say otherwise is a fault with both values.
Wherever a flipped byte changes what a run holds, `audit --deep` finds it; and what is made from the journal can be made
again.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import zlib
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.cli.main import main
from actors.roc_filter.replay import encode_stored
from agent_rl.figures import SelectionFigures, StepFigures, TrainingFigures
from agent_rl.messages import Judgement, Trajectory
from agent_rl.records.audit import audit, deep_audit
from agent_rl.records.checkpoint_files import CheckpointError, Position, checksum_of_state, read_state, verify
from agent_rl.records.continuing import MADE_WITH, Mark
from agent_rl.records.journal import GroupRow, Journal, JournalError
from agent_rl.records.journal_rows import ROWS, FactRow, SampledRow, TrajectoryRow
from agent_rl_contract.builders import opened, repacked, trajectory
from tests.agent_rl.records.journals import STATES, forget
from tests.agent_rl.records.report_runs import SyntheticRun

GROUP = opened(0, version=2)
NAME, KEPT, REWARDS = GROUP.group, ((0, 0), (2, 1)), (1.0, 0.25)
SAMPLES = {(0, 0): (5, 6, 1.0), (1, 0): (4, 7, 0.0), (2, 0): (4, 4, None), (2, 1): (6, 7, 0.25), (3, 0): (6, 6, 1.0)}
"""Of each sample and attempt: the version of its first and of its last tokens, and its reward."""


def rollout(sample: int, attempt: int, first: int, last: int) -> Trajectory:
    """The token of a tool in its middle is of an older version, since the model did not write it."""
    versions = [first] * 3 + [1] + [last] * 2
    made = trajectory(GROUP, sample, attempt=attempt)
    return repacked(made, policies=np.array([(1, version) for version in versions], dtype=np.int32))


@pytest.fixture
def journal(journal: Journal) -> Journal:
    """A group of four in the step at version 7, two of them kept."""
    journal.set_fact(MADE_WITH, json.dumps({"algorithm.keep": 2}))
    journal.open_group(NAME, 0, 0, "train", encode_stored(GROUP))
    for (sample, attempt), (first, last, reward) in SAMPLES.items():
        judgement = None if reward is None else Judgement(reward, success=reward >= 1)
        journal.add_trajectory(
            NAME, sample, attempt, "", encode_stored(rollout(sample, attempt, first, last)), judgement
        )
    journal.ready(NAME, KEPT, REWARDS, 5, 1)
    journal.close_step(7, 0, [NAME], [NAME], StepFigures(staleness_limit=2))
    return journal


def faults(journal: Journal) -> list[str]:
    journal.commit()
    found = audit(journal.path.parent)
    assert found.balanced == (not found.faults)
    return list(found.faults)


def test_tokens_and_judgements_agree_with_the_filter(journal: Journal) -> None:
    assert faults(journal) == []
    journal.step_trained(7, TrainingFigures())
    assert faults(journal) == []
    lines = audit(journal.path.parent).lines()
    assert "staleness of what was trained: at most 2" in lines
    said = "computed again from tokens and judgements: 1 groups in steps; kept 1 of 2 right and 1 of 2 wrong"
    assert said in lines


def group(**changes: Any) -> Callable[[Journal, GroupRow], None]:
    return lambda journal, row: journal._put(replace(row, **changes))


def payload(sample: int, attempt: int, made: Trajectory) -> Callable[[Journal, GroupRow], None]:
    def change(journal: Journal, row: GroupRow) -> None:
        place = journal._store(row.segment, encode_stored(made))
        judgement = journal.outlines(NAME)[sample, attempt]
        journal._put(TrajectoryRow(NAME, sample, attempt, "finished", *place, judgement))

    return change


def judged(reward: float) -> Callable[[Journal, GroupRow], None]:
    return lambda journal, row: journal.judge(NAME, 0, 0, Judgement(reward, success=True))


BY = "by its tokens and judgements"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (group(oldest=6), f"staleness 2 {BY}, 1 by the filter"),
        (group(oldest=4), f"staleness 2 {BY}, 3 by the filter"),
        (payload(2, 1, rollout(2, 1, 6, 3)), f"staleness 4 {BY}, 2 by the filter"),
        (payload(2, 1, repacked(rollout(2, 1, 6, 7), loss_mask=np.zeros(6, np.uint8))), f"staleness 5 {BY}, 2 by the"),
        (group(rewards=(0.25, 1.0)), f"rewards (1.0, 0.25) {BY}, (0.25, 1.0) by the filter"),
        (judged(0.5), f"rewards (0.5, 0.25) {BY}, (1.0, 0.25) by the filter"),
        (judged(0.25), "keeps the rewards (0.25, 0.25), which give no advantage"),
        (group(kept=(), rewards=()), "keeps the rewards (), which give no advantage"),
        (group(kept=((0, 0), (2, 0))), "keeps ((0, 0), (2, 0)), of which the samples [0] alone are judged rollouts"),
        (group(kept=((0, 0), (2, 1), (9, 0))), "of which the samples [0, 2] alone are judged rollouts of the group"),
        (group(kept=((0, 0), (0, 0))), "of which the samples [0] alone are judged"),
        (payload(2, 1, replace(rollout(2, 1, 6, 7), group="s0-g000001")), "of which the samples [0] alone are judged"),
        (payload(2, 1, replace(rollout(2, 1, 6, 7), attempt=0)), "of which the samples [0] alone are judged"),
        (group(kept=((0, 0), (1, 0), (2, 1)), rewards=(1.0, 0.0, 0.25), oldest=4), "keeps 3 rollouts, where algorithm.keep is 2"),
        (payload(2, 1, replace(rollout(2, 1, 6, 7), body=b"short")), "buffer"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("trained", [False, True])
def test_each_field_that_says_otherwise_is_named(
    journal: Journal, change: Callable[[Journal, GroupRow], None], said: str, *, trained: bool
) -> None:
    if trained:
        journal.step_trained(7, TrainingFigures())
    row = journal.group(NAME)
    assert row is not None
    change(journal, row)
    found = [fault for fault in faults(journal) if "beyond its limit" not in fault]
    assert any(fault.startswith(f"{NAME}: ") and said in fault for fault in found), found


def test_groups_that_left_and_groups_of_another_release_are_counted_and_believed(journal: Journal) -> None:
    journal.step_trained(7, TrainingFigures())
    row = journal.group(NAME)
    assert row is not None
    journal._put(replace(row, opened=b"of another release", rewards=(0.5, 0.25)))
    assert faults(journal) == []
    assert "believed, since they left the journal: 1 groups in steps" in audit(journal.path.parent).lines()
    journal._put(replace(row, rewards=(0.5, 0.25)))
    assert len(faults(journal)) == 1
    journal._delete(TrajectoryRow, NAME)
    assert (faults(journal), audit(journal.path.parent).recomputed) == ([], {"left": 1})


def test_payloads_that_changed_are_a_fault_of_their_group_and_a_skipped_step_is_not_read(journal: Journal) -> None:
    journal.commit()
    (file,) = (journal.path.parent / "journal.trajectories").iterdir()
    file.write_bytes(bytes(file.stat().st_size))
    (fault,) = faults(journal)
    assert fault.startswith(f"{NAME}: ")
    assert "is not what was written" in fault
    journal.step_trained(7, TrainingFigures(skipped=True), dropped_for="not_finite")
    assert faults(journal) == []
    forget(journal)


# Flipped bytes ------------------------------------------------------------------------------------------------------


def content(path: Path) -> Any:
    """All that a journal holds, by whole tables and by the queries of a run; None when it cannot be read."""
    try:
        journal = Journal(path, read_only=True)
    except JournalError:
        return None
    try:
        tables = [journal._select(kind) for kind in ROWS]
        groups = [list(journal.groups(stage=stage, states=STATES)) for stage in range(4)]
        by_name = [journal.group(row.id) for rows in groups for row in rows]
        rollouts = [journal.trajectories(row.id) for rows in groups for row in rows]
        figures = [
            journal.counts(),
            list(journal.group_states()),
            journal.samples(),
            journal.steps(),
            journal.records(),
        ]
        facts = [journal.fact(str(row[0])) for row in journal._scan(FactRow, ("key",))]
    except (JournalError, sqlite3.Error, IndexError):
        return None
    finally:
        journal.close()
    return tables, groups, by_name, rollouts, figures, facts


def found(directory: Path) -> bool:
    """Whether the deep audit says that something is wrong."""
    try:
        return bool(deep_audit(directory).faults)
    except JournalError:
        return True


def add_a_selection(directory: Path) -> None:
    """The problems and the result of a select stage."""
    journal = Journal(directory / "journal.sqlite")
    for number in range(400):
        journal._put(SampledRow(9, number, "maths", f"problem {number}", number % 9, 8, 0, number))
    figures = SelectionFigures(
        name="hard", problems=400, kept=300, dropped={"always_solved": 100}, success=0.5, lost=0, response_tokens=9.0
    )
    journal.add_selection(9, range(300), figures)
    journal.close()


def a_flip(draw: random.Random, whole: bytes) -> bytes:
    """The same bytes but for one, in which one bit or several are changed."""
    flipped = bytearray(whole)
    at = draw.randrange(len(whole))
    flipped[at] ^= draw.choice([1 << draw.randrange(8), draw.randrange(1, 256)])
    return bytes(flipped)


@pytest.mark.parametrize("flips", [60, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["journal.sqlite", "journal.trajectories/00000001"])
def test_each_flipped_byte_of_the_journal_that_changes_content_is_found(directory: Path, flips: int, name: str) -> None:
    path, journal = directory / name, directory / "journal.sqlite"
    add_a_selection(directory)
    whole = path.read_bytes()
    true = content(journal)
    assert not found(directory)
    draw = random.Random(7)
    changed = without = 0
    missed = []
    for _ in range(flips):
        flipped = a_flip(draw, whole)
        path.write_bytes(flipped)
        if content(journal) != true:
            changed += 1
            if not found(directory):
                missed.append(next(at for at in range(len(whole)) if whole[at] != flipped[at]))
        else:
            without += 1
    assert missed == []
    assert changed > flips // 4
    assert without > 0 or name != "journal.sqlite"  # room between rows: nothing there is content


def test_a_log_that_a_changed_byte_ends_is_older_than_the_rows_it_held(tmp_path: Path) -> None:
    """After a kill the last commits are in the log alone, and SQLite ignores what is behind a changed byte."""
    run = SyntheticRun(tmp_path / "alive").whole()
    run.records.commit()
    killed = tmp_path / "killed"
    shutil.copytree(run.directory, killed, ignore=shutil.ignore_patterns("*-shm"))
    run.close()
    assert not found(killed)
    log = killed / "journal.sqlite-wal"
    whole = log.read_bytes()
    last = len(whole) - 4096 - 24
    log.write_bytes(whole[: last + 9] + bytes([whole[last + 9] ^ 1]) + whole[last + 10 :])
    (fault,) = deep_audit(killed).faults
    assert "is older than metrics.jsonl" in fault


def test_the_command_names_what_was_changed(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(directory), "--deep"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("read again: ")
    assert said[1] == "every byte is as it was written"
    path = directory / "journal.sqlite"
    whole = path.read_bytes()
    at = whole.index(b"What is 2?")
    path.write_bytes(whole[:at] + b"what" + whole[at + 4 :])
    assert main(["audit", str(directory)]) == 0  # the balance does not read payloads
    capsys.readouterr()
    assert main(["audit", str(directory), "--deep"]) == 1
    said = capsys.readouterr().out
    assert "FAULT" in said
    assert "of the table groups is not what was written" in said
    path.write_bytes(b"nothing" * 1000)
    assert main(["audit", str(directory), "--deep"]) == 2


def checkpoint(directory: Path) -> Path:
    """A checkpoint of the run, after its last step."""
    journal = Journal(directory / "journal.sqlite", read_only=True)
    run, step = journal.fact("run"), journal.last_step()
    journal.close()
    folder = directory / "checkpoints" / f"version-{step + 1:06d}-stage-02"
    (folder / "training" / "rank-0").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(os.urandom(500))
    weights = (folder / "model.safetensors").read_bytes()
    files = {"model.safetensors": [len(weights), zlib.crc32(weights)]}
    state = asdict(Position(2, 1, step + 1)) | {"optimizer_steps": {"a": 3}, "files": files}
    state["extra"] = Mark(str(run), step).kept()
    state["checksum"] = checksum_of_state(state)
    (folder / "training" / "state.json").write_text(json.dumps(state))
    return folder


def test_each_flipped_byte_of_a_checkpoint_that_changes_content_is_found(directory: Path) -> None:
    folder = checkpoint(directory)
    assert not found(directory)
    draw = random.Random(5)
    for name in ("model.safetensors", "training/state.json"):
        whole = (folder / name).read_bytes()
        true = read_state(folder)
        for at in range(0, len(whole), 3):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << draw.randrange(8)
            (folder / name).write_bytes(flipped)
            if name != "training/state.json" or read_state(folder) != true:
                with pytest.raises(CheckpointError):
                    verify(folder)
        (folder / name).write_bytes(whole)


def test_the_best_checkpoint_is_read_too(directory: Path) -> None:
    folder = checkpoint(directory)
    best = folder.rename(folder.with_name("best-after"))
    assert not found(directory)
    (best / "model.safetensors").write_bytes(bytes(500))
    assert found(directory)


def test_metrics_and_summary_are_made_again_from_the_journal(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [directory / name for name in ("metrics.jsonl", "summary.json")]
    before = [file.read_text() for file in files]
    for file in files:
        file.unlink()
    assert main(["report", str(directory), "--rebuild"]) == 0
    assert [file.read_text() for file in files] == before
    assert capsys.readouterr().out.strip() == str(directory / "report.html")
    files[0].write_text(before[0] + before[0])
    files[1].write_text("{}")
    assert main(["report", str(directory), "--rebuild"]) == 0
    assert [file.read_text() for file in files] == before


def test_rows_that_a_process_did_not_live_to_write_are_added_at_the_next_start(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path).whole()
    run.records.commit()
    rows = (run.directory / "metrics.jsonl").read_text()
    for left in ("", rows[:-40], rows.splitlines(keepends=True)[0]):
        (run.directory / "metrics.jsonl").write_text(left)
        run.records._mend_rows()
        assert (run.directory / "metrics.jsonl").read_text() == rows
    run.close()
