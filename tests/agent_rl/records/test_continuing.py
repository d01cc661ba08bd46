"""What may change between two starts of one run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent_rl.config.load import load_topology
from agent_rl.config.topology import Topology
from agent_rl.records.continuing import remember
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


def test_a_record_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "topology.json").write_text("{")
    with pytest.raises(RunRefused, match=r"topology\.json cannot be read"):
        remember(topology(tmp_path), tmp_path)
