"""What may change between two starts of one run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent_rl.config.load import load_topology
from agent_rl.config.topology import Topology
from agent_rl.records.continuing import made_with, remember
from agent_rl.records.history import MADE_WITH, check_history
from agent_rl.records.journal import JournalError, open_journal
from agent_rl.records.run_directory import RunRefused
from tests.end_to_end.topologies import write_micro


def topology(folder: Path, *overrides: str) -> Topology:
    path, _ = write_micro(folder)
    return load_topology(path, overrides)


@pytest.mark.parametrize(
    "override",
    ["run.seed=7", "model.initialise.layers=3", "algorithm.groups_per_step=5", 'stages.2.name="other"'],
)
def test_what_the_run_was_made_with_may_not_change(tmp_path: Path, override: str) -> None:
    remember(topology(tmp_path), tmp_path)
    with pytest.raises(RunRefused, match="set another run") as refused:
        remember(topology(tmp_path, override), tmp_path)
    key = override.split("=", maxsplit=1)[0]
    assert key.rsplit(".", 1)[0] in str(refused.value)


@pytest.mark.parametrize(
    "override",
    ["stages.2.steps=9", "run.max_minutes=3", "actors.learner.settings.threads=2", "model.parallel.tensor=2"],
)
def test_lengths_limits_and_actors_may_change(tmp_path: Path, override: str) -> None:
    remember(topology(tmp_path), tmp_path)
    remember(topology(tmp_path, override), tmp_path)


def test_a_run_of_an_earlier_release_may_change_its_layout(tmp_path: Path) -> None:
    remember(topology(tmp_path), tmp_path)
    path = tmp_path / "topology.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model.parallel": {"shard": 2, "tensor": 1}}))
    remember(topology(tmp_path), tmp_path)


def test_stages_may_be_appended_and_are_then_kept_too(tmp_path: Path) -> None:
    first = topology(tmp_path)
    shorter = first.model_copy(update={"stages": first.stages[:2]})
    remember(shorter, tmp_path)
    remember(first, tmp_path)
    with pytest.raises(RunRefused, match=r"stages\.3"):
        remember(shorter, tmp_path)


@pytest.mark.parametrize("left", ["", "{", "[1]", "\0" * 200])
def test_a_record_that_a_stopped_disk_has_broken_is_written_again(tmp_path: Path, left: str) -> None:
    """The journal holds the same settings: nobody is told to remove a run that is sound."""
    assert remember(topology(tmp_path), tmp_path) == ""
    path = tmp_path / "topology.json"
    whole = path.read_text()
    path.write_text(left)
    assert "topology.json was not readable, and is written again" in remember(topology(tmp_path), tmp_path)
    assert path.read_text() == whole
    assert remember(topology(tmp_path), tmp_path) == ""


def test_other_settings_are_refused_where_the_record_is_broken(tmp_path: Path) -> None:
    """The journal's settings are compared before the record is written again."""
    first = topology(tmp_path)
    journal = open_journal(tmp_path)
    journal.set_fact(MADE_WITH, json.dumps(made_with(first)))
    journal.commit()
    journal.close()
    (tmp_path / "topology.json").write_text("")
    check_history(tmp_path, first)
    with pytest.raises(JournalError, match=r"run\.seed: 0 then, 7 now"):
        check_history(tmp_path, topology(tmp_path, "run.seed=7"))


def test_a_record_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "topology.json").mkdir()
    with pytest.raises(RunRefused, match=r"topology\.json cannot be read \(Is a directory\); see to its disk"):
        remember(topology(tmp_path), tmp_path)
