"""A real run whose journal is taken away or put back from an older copy, and one that is killed and has its records
made again.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from pathlib import Path

import pytest

from actors.cli.main import main
from agent_rl.records.audit import deep_audit
from tests.end_to_end.processes import check_finished, finish, kill, more_steps, rows, start, steps_trained, wait_for
from tests.end_to_end.topologies import write_half_right, write_micro

MARGIN = 90
"""Steps that no run here comes to the end of."""


def backup(journal: Path, to: Path) -> None:
    """As `sqlite3 journal.sqlite '.backup FILE'` makes it, beside the run."""
    source, target = sqlite3.connect(f"file:{journal}?mode=ro", uri=True), sqlite3.connect(to)
    source.backup(target)
    source.close()
    target.close()


@pytest.mark.slow
def test_a_journal_replaced_by_an_older_copy_ends_the_run_and_the_next_start_is_refused(tmp_path: Path) -> None:
    path, directory = write_half_right(tmp_path, steps=MARGIN)
    journal = directory / "journal.sqlite"
    process = start(path)
    wait_for(lambda: steps_trained(directory) >= 2, "two steps")
    backup(journal, tmp_path / "copy")
    seen = steps_trained(directory)
    more_steps(directory, 3)
    (tmp_path / "copy").replace(journal)
    began = time.monotonic()
    said = finish(process, 2).all
    assert f"{journal} was changed by another program while the run was going" in said
    assert "Traceback" not in said
    assert time.monotonic() - began < 60
    summary = json.loads((directory / "summary.json").read_text())
    assert "was changed by another program" in summary["stopped"]
    assert summary["steps"] >= seen + 3
    log = (directory / "logs" / "supervisor.local.jsonl").read_text()
    assert "was changed by another program" in log

    for name in ("journal.sqlite-wal", "journal.sqlite-shm"):  # as the message says
        (directory / name).unlink(missing_ok=True)
    said = finish(start(path), 2)
    assert f"{journal} is older than" in said.err
    assert "Traceback" not in said.all


@pytest.mark.slow
def test_a_killed_run_goes_on_and_its_records_can_be_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, directory = write_micro(tmp_path, steps=MARGIN)
    process = start(path)
    wait_for(lambda: steps_trained(directory) >= 3, "three steps")
    kill(process)
    assert main(["audit", str(directory), "--deep"]) == 0, capsys.readouterr().out  # the log is there still
    done = len([row for row in rows(directory / "metrics.jsonl") if row["kind"] == "step"])
    said = finish(start(path, f"stages.2.steps={done + 2}"))
    check_finished(path, directory, said, steps=done + 2)
    found = deep_audit(directory)
    assert found.faults == found.notes == ()
    assert found.checkpoints >= 2
    files = [directory / name for name in ("metrics.jsonl", "summary.json")]
    before = [file.read_text() for file in files]
    for file in files:
        file.unlink()
    assert main(["report", str(directory), "--rebuild"]) == 0
    assert [file.read_text() for file in files] == before

    shutil.rmtree(directory / "checkpoints")
    said = finish(start(path, f"stages.2.steps={done + 2}"), 2)
    assert "records checkpoints, but there is none" in said.err


@pytest.mark.slow
def test_a_payload_that_is_damaged_while_the_run_goes_ends_it_at_once(tmp_path: Path) -> None:
    path, directory = write_half_right(tmp_path, steps=MARGIN)
    process = start(path)
    wait_for(lambda: steps_trained(directory) >= 2, "two steps")
    (payloads,) = (directory / "journal.trajectories").iterdir()
    while process.poll() is None and steps_trained(directory) < MARGIN:  # each is read soon after it was written
        with payloads.open("r+b") as file:
            file.seek(-min(2000, payloads.stat().st_size), 2)
            file.write(bytes(1000))
        time.sleep(0.01)
        if '"failed"' in (directory / "logs" / "roc_filter.0.jsonl").read_text():
            break
    began = time.monotonic()
    said = finish(process, 2)
    assert "is not what was written); move it, journal.sqlite-wal" in said.all
    assert "Traceback" not in said.all
    assert time.monotonic() - began < 60
