"""The export: every trajectory once, in both formats, also of a run under way; what has left is said to have."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import pyarrow.parquet
import pytest

from actors.cli.main import main
from actors.roc_filter.replay import decode_stored
from agent_rl.records import export as module
from tests.agent_rl.records.journals import forget
from tests.agent_rl.records.report_runs import SyntheticRun, lines


def exported(directory: Path, *options: str) -> int:
    return main(["export", str(directory), *options])


def test_every_trajectory_is_a_row_with_all_that_is_known_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = SyntheticRun(tmp_path).whole()
    run.journal.commit()
    assert exported(run.directory) == 0  # the run is under way
    rows = lines(run.directory / "trajectories.jsonl")
    journal = run.journal
    stored = {(group, s.sample): s for group in journal.group_ids() for s in journal.trajectories(group)}
    assert {(row["group"], row["sample"]) for row in rows} == set(stored)
    assert len(rows) == len(stored) == 4 * 6 + 16
    assert f"{len(rows)} trajectories of {len(journal.group_ids())} groups" in capsys.readouterr().out
    for row in rows:
        group = journal.group(row["group"])
        assert group is not None
        judged = stored[row["group"], row["sample"]].judgement
        assert judged is not None
        assert (row["reward"], row["judgement"]) == (judged.reward, asdict(judged))
        assert (row["fate"], row["step"], row["kept"]) == (
            group.state,
            group.step,
            (row["sample"], 0) in group.kept if group.kept else None,
        )
        assert row["transcript"]["texts"] == ["yes"]
        assert row["policies"] == [[1, decode_stored(group.opened).policy.version, len(row["tokens"])]]
        assert len(row["logprobs"]) == len(row["loss_mask"]) == len(row["tokens"]) == 3
        assert row["problem"]["text"].startswith("What is ")
        assert row["run"] == journal.fact("run")
    run.close()


def test_parquet_holds_the_same(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_ROWS", 7)
    assert exported(directory) == 0
    assert exported(directory, "--format", "parquet", "--output", str(tmp_path / "rows.parquet")) == 0
    table = pyarrow.parquet.read_table(tmp_path / "rows.parquet")
    texts = [name for name, kind in module.PARQUET.items() if kind == "json"]
    rows = [row | {name: json.loads(row[name]) for name in texts} for row in table.to_pylist()]
    assert rows == lines(directory / "trajectories.jsonl")
    assert pyarrow.parquet.ParquetFile(tmp_path / "rows.parquet").num_row_groups == -(-len(rows) // 7)


def test_right_answers_to_training_problems_alone_are_data(directory: Path) -> None:
    assert exported(directory, "--right") == 0
    rows = lines(directory / "trajectories.jsonl")
    assert [row["purpose"] for row in rows] == ["train"] * 15
    assert all(row["judgement"]["success"] for row in rows)


def test_what_has_left_the_journal_is_said_to_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = SyntheticRun(tmp_path).whole()
    run.journal.keep_from(run.version)
    forget(run.journal)
    directory = run.close()
    assert exported(directory) == 0
    assert "no longer holds the trajectories of 2 more groups (see run.keep_trajectories)" in capsys.readouterr().out


def test_a_mistake_is_one_line_and_leaves_what_was_there(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exported(directory) == 0
    before = (directory / "trajectories.jsonl").read_bytes()
    payloads = max((directory / "journal.trajectories").iterdir())
    payloads.write_bytes(payloads.read_bytes().replace(b"yes", b"yEs"))
    capsys.readouterr()
    assert exported(directory) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(r"the payload of s\d-g\d+, sample \d, is not what was written", line)
    assert (directory / "trajectories.jsonl").read_bytes() == before
    assert not list(directory.glob(".*.partial"))
