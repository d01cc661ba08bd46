"""A run directory as data: rows of every kind, also of runs that are under way or broken off, and the documented recipes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import agent_rl
from actors.roc_filter.replay import decode_stored, encode_stored
from agent_rl.messages import ToolCallRecord
from agent_rl.records import run_data, tables
from agent_rl.records.journal import Journal, JournalError
from agent_rl.records.run_data import Run
from agent_rl.records.tables import MissingPackageError, Rows, columns
from tests.agent_rl.records.report_runs import AFTER, BEFORE, RL, SyntheticRun, metrics

DOCUMENTS = Path(__file__).parents[3] / "docs"
RECIPES = re.findall(r"(?ms)^```python\n(.*?)^```$", (DOCUMENTS / "run_data.md").read_text())
COLUMNS = (DOCUMENTS / "python.md").read_text().split("## Columns of tables")[1]
KINDS = ("steps", "evaluations", "groups", "trajectories", "calls", "timeline", "alarms")
CALLS = (ToolCallRecord(1, "python", "error", 0.5, 0.75), ToolCallRecord(2, "python", "success", 0.1, 0.2))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    run = SyntheticRun(tmp_path / "whole").timeline()
    run.enter(BEFORE)
    run.evaluate(BEFORE, [0, 0, 0, 1])
    run.enter(RL)
    run.step([[0, 1, 0, 0], [0, 0, 0, 0]])
    run.step([[0, 1, 1, 1], [1, 1, 1, 1]])
    run.step([[0, 1], [1, 1]], calls=CALLS)
    run.enter(AFTER)
    run.evaluate(AFTER, [1, 1, 0, 1])
    run.enter(4)
    return run.close()


@pytest.fixture
def run(directory: Path) -> Run:
    return agent_rl.load_run(directory)


def test_steps_have_the_figures_of_metrics_jsonl_under_the_same_names(directory: Path, run: Run) -> None:
    written = [row for row in metrics(directory) if row["kind"] == "step"]
    assert len(written) == 3
    for row, cells in zip(written, run.steps.dicts(), strict=True):
        known = {name: json.loads(v) if run.steps.columns[name] == "json" and v else v for name, v in cells.items()}
        for name, value in row.items():
            if name not in {"kind", "steps_skipped"}:  # the second counts over all steps
                assert known[name] == value, name
    assert [step.figures.sampled.success for step in run.steps] == [1 / 8, 7 / 8, 3 / 4]


def test_evaluations_are_a_row_for_each_way_with_the_share_that_counts_lost_answers(directory: Path, run: Run) -> None:
    rows = list(run.evaluations)
    assert [(each.name, each.way, each.stage, each.at_step) for each in rows] == [
        (name, way, stage, None) for stage, name in ((1, "before"), (3, "after")) for way in ("sampled", "greedy")
    ]
    last = rows[-1]
    written = [row for row in metrics(directory) if row["kind"] == "evaluation"][-1]
    assert (last.version, last.seconds, last.wall) == (written["version"], written["seconds"], written["wall"])
    cells = list(run.evaluations.dicts())[-1]
    assert (cells["success"], cells["low"]) == (0.75, written["success_after_greedy_low"])
    assert columns(run_data.Evaluation)["success"] == "float64"


def test_a_problem_is_solved_in_a_share_of_the_rollouts_that_were_asked_for(directory: Path, run: Run) -> None:
    last = list(run.evaluations)[-1]
    assert [int(share) for share in run.solved(last).values()] == [1, 1, 0, 1]
    journal = Journal(directory / "journal.sqlite")
    for row in journal.groups(stage=AFTER, states=("evaluated",)):
        opened = replace(decode_stored(row.opened), samples=4)
        journal._put(replace(row, opened=encode_stored(opened)))
    journal.close()
    assert [float(share) for share in run.solved(last).values()] == [0.25, 0.25, 0.0, 0.25]


def test_the_last_row_of_a_step_that_a_crash_repeated_counts(directory: Path, run: Run) -> None:
    before = list(run.steps)
    journal = Journal(directory / "journal.sqlite")
    (row, *_) = (row for row in map(json.loads, journal.records()) if row["kind"] == "step")
    journal.add_record(json.dumps(row | {"wall": 7.0}))
    journal.close()
    assert [step.wall for step in run.steps] == [7.0, *(step.wall for step in before[1:])]


def test_trajectories_know_their_group_problem_and_judgement(run: Run) -> None:
    groups = {group.id: group for group in run.groups}
    assert sum(1 for _ in run.trajectories) == 4 * 4 + 16 + 4
    for each in run.trajectories:
        group = groups[each.group]
        assert (each.problem, each.fate, each.step) == (group.problem, group.fate, group.step)
        assert each.kept == ((each.sample, each.attempt) in group.kept)
        assert each.success is (each.reward is not None and each.reward >= 1)
        assert len(each.tokens().tokens) == each.response_tokens == 3
    last = run.trajectories_of(next(each.group for each in run.calls))
    assert [(each.tool_calls, each.tool_errors) for each in last] == [(2, 1)] * 2
    assert [(call.outcome, call.total_seconds) for call in run.calls][:2] == [("error", 0.75), ("success", 0.2)]
    assert run.trajectories_of("no such group") == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_table_has_the_documented_columns_and_all_rows(
    run: Run, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "BATCH_ROWS", 3)
    rows: Rows[object] = getattr(run, kind)
    section = COLUMNS.split(f"### `{kind}`\n")[1].split("\n#")[0]
    assert dict(re.findall(r"`(\w+)`\s+(\w+)", section)) == rows.columns
    table = rows.arrow()
    assert table.column_names == list(rows.columns)
    assert table.to_pylist() == list(rows.dicts())


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_library_that_is_missing_is_named_with_the_command_that_installs_it(
    run: Run, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingPackageError, match=f"needs {library}: pip install {library}"):
        getattr(run.steps, library)()


def test_a_run_under_way_grows_and_a_half_written_row_of_the_timeline_is_left_out(tmp_path: Path) -> None:
    synthetic = SyntheticRun(tmp_path).timeline()
    synthetic.enter(RL)
    synthetic.step([[0, 1]])
    synthetic.records.commit()
    with (synthetic.directory / "timeline.jsonl").open("a") as file:
        file.write('{"wall": 1, "sec')
    run = agent_rl.load_run(str(synthetic.directory))
    moments = len(list(run.timeline))
    assert moments == 15
    assert len(list(run.steps)) == 1
    synthetic.step([[1, 0]])
    synthetic.records.commit()
    assert len(list(run.steps)) == 2
    assert run.summary["steps"] == 2
    assert run.state == "stopped"  # no supervisor holds it
    synthetic.close()


def test_settings_are_by_key_and_without_secrets(directory: Path, run: Run) -> None:
    assert run.settings["algorithm.samples"]
    text = '[run]\nseed = 7\n[[stages]]\nkind = "rl"\n[environments]\napi_key = "abc"\nfiles = ["a"]\n'
    (directory / "topology.local.toml").write_text(text)
    found = {"run.seed": 7, "stages.0.kind": "rl", "environments.api_key": "(a secret)", "environments.files": ["a"]}
    assert run.settings == found
    assert (run.state, run.stopped_because) == ("ended", "")


def test_what_is_no_run_of_this_release_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="no journal here; give the directory of a run"):
        agent_rl.load_run(tmp_path)
    with Path(tmp_path / "journal.sqlite").open("w") as file:
        file.write("not a journal" * 1000)
    with pytest.raises(JournalError, match=r"journal\.sqlite"):
        agent_rl.load_run(tmp_path)


def test_there_are_twelve_recipes_and_they_run(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    load, *recipes = RECIPES
    assert len(recipes) == 12
    known: dict[str, object] = {}
    exec(load.replace("runs/quickstart", str(directory)), known)
    printed = []
    for recipe in recipes:
        exec(recipe, known)
        printed.append(capsys.readouterr().out)
    assert "1 12.5% 0.5" in printed[0]
    assert printed[2] == "Counter({'error': 3})\n"
    assert printed[3] == "Counter({0: 3})\n"
    assert printed[4].startswith("0.75 s ")
    assert "too hard" in printed[5]
    assert "too easy" in printed[5]
    assert all(printed[:-1])
    assert (tmp_path / "steps.parquet").stat().st_size > 0


def test_reading_a_run_loads_no_torch(directory: Path) -> None:
    code = (
        f"import agent_rl, sys; list(agent_rl.load_run({str(directory)!r}).trajectories); print('torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
