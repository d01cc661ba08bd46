"""What is made of a run for others. The export: every trajectory once, in both formats, also of a run under way. The card
of a checkpoint: recipe, data with sizes, figures with intervals, and the licence of the base.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow.parquet
import pytest
import yaml

from actors.cli.main import main
from actors.roc_filter.replay import decode_stored
from agent_rl.config.examples import topology_file
from agent_rl.config.load import load_topology
from agent_rl.config.topology import Topology
from agent_rl.records import export as module
from agent_rl.records.checkpoint_files import Position
from agent_rl.records.model_card import Base, Measured, card, read_base
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


# The card -----------------------------------------------------------------------------------------------------------

BASE = Base("org/base", "apache-2.0", "org/base")
MEASURED = Measured("after", 45, "greedy", 0.38, 0.327, 0.436, 300)


def topology(*overrides: str) -> Topology:
    return load_topology(topology_file("smollm2_word_problems"), overrides)


def head(text: str) -> dict[str, object]:
    found: dict[str, object] = yaml.safe_load(text.split("---\n")[1])
    return found


def test_a_card_says_recipe_data_figures_and_licence() -> None:
    text = card(topology(), Position(1, 0, 45), BASE, [MEASURED])
    assert head(text) == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "license": "apache-2.0",
        "base_model": "org/base",
        "tags": ["reinforcement-learning", "tool-use", "agent-rl"],
    }
    for line in (
        "| after | 45 | greedy | 38.0% | 32.7% to 43.6% | 300 |",
        "| base | org/base |",
        "# smollm2_word_problems, version 45",
    ):
        assert line in text.splitlines()
    assert "| data | data/word_problems/demonstrations.jsonl, data/word_problems/train.jsonl, " in text
    assert "loss grpo, " in text
    assert text.count(", reached)") == 1


def test_what_is_not_known_is_said_and_left_out_of_the_metadata() -> None:
    text = card(topology(), Position(0, 0, 0), Base("mine", "unknown"), [])
    assert "base_model" not in head(text)
    assert head(text)["license"] == "unknown"
    assert "| licence | unknown: look for it where the base comes from |" in text
    assert "No evaluation was complete yet." in text


@pytest.mark.parametrize(
    ("files", "licence"),
    [
        ({"README.md": "---\nlicense: mit\nbase_model: org/first\n---\n# Base\n"}, "mit"),
        ({"README.md": "# no head", "LICENSE": "\n   Apache License\n Version 2.0"}, "apache-2.0"),
        ({"README.md": "---\n: [broken\n---\n", "LICENSE.txt": "Terms of mine"}, "other"),
        ({"README.md": "---\nlicense: [a, b]\n---\n"}, "unknown"),
        ({}, "unknown"),
    ],
)
def test_the_licence_is_that_of_the_bases_card_or_of_its_licence_file(
    tmp_path: Path, files: dict[str, str], licence: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    base = read_base(topology(f'model.path="{tmp_path}"'), tmp_path)
    assert base.licence == licence
    assert base.hub == ("org/first" if licence == "mit" else None)


def test_the_card_of_a_checkpoint_passes_licence_and_base_on_to_the_next_run(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(card(topology(), Position(1, 0, 45), BASE, []))
    assert read_base(topology(f'model.path="{tmp_path}"'), tmp_path) == BASE
    fresh = replace(BASE, name="a model with fresh weights", licence="unknown", hub=None)
    made = load_topology(Path("examples/quickstart/quickstart.toml"))
    assert read_base(made, tmp_path) == fresh


def test_settings_that_only_sound_like_files_are_no_data() -> None:
    given = topology('environments.0.settings={files = ["a.jsonl"], most_files = 3}')
    assert ", a.jsonl |" in card(given, Position(0, 0, 0), BASE, [])
