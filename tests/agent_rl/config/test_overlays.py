"""Topologies of several files, and written out whole."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.cli.main import main
from agent_rl.config.examples import example_files
from agent_rl.config.full import full_text, resolved_text
from agent_rl.config.load import load_topology
from agent_rl.config.plugins import resolve
from agent_rl.config.source import Source, TopologyError
from agent_rl.config.topology import Topology
from agent_rl.environments.load import shown_settings
from tests.agent_rl.config.test_standard import FIRST
from tests.end_to_end.topologies import MICRO, write_micro


@pytest.fixture
def base(tmp_path: Path) -> Path:
    path = tmp_path / "base.toml"
    path.write_text(FIRST.format(directory=tmp_path / "run"))
    return path


def over(base: Path, text: str, name: str = "mine.toml") -> Path:
    path = base.with_name(name)
    path.write_text(text)
    return path


def test_later_files_win_table_by_table_and_arrays_of_tables_as_a_whole(base: Path) -> None:
    mine = over(base, "[run]\nseed = 3\n[algorithm]\nkeep = 2\n[actors.learner]\nsettings = { threads = 2 }\n")
    last = over(base, "[run]\nseed = 4\n[actors.learner.settings]\nlogits_mib = 64\n", "last.toml")
    topology = load_topology([base, mine, last], ["algorithm.samples=6"])
    assert (topology.run.name, topology.run.seed) == ("first", 4)
    assert (topology.algorithm.groups_per_step, topology.algorithm.keep, topology.algorithm.samples) == (4, 2, 6)
    assert topology.actors["learner"].settings == {"threads": 2, "logits_mib": 64}
    assert load_topology([base]) == load_topology(base)
    mine = over(base, '[[stages]]\nkind = "sft"\nsteps = 1\n')
    assert [stage.kind for stage in load_topology([base, mine]).stages] == ["sft"]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('[model]\npath = "x"\n', {"path": "x"}),
        ("[model]\ndtype = 'bfloat16'\n", {"initialise": {"hidden_size": 64, "layers": 2}, "dtype": "bfloat16"}),
    ],
)
def test_one_of_two_takes_the_place_of_the_other(base: Path, text: str, kept: dict) -> None:
    mine = over(base, text)
    assert Source([base, mine]).data["model"] == kept
    load_topology([base, mine])


def test_an_error_names_the_file_and_line_that_the_value_came_from(base: Path) -> None:
    mine = over(base, "\n[algorithm]\nkeep = 0\n\n[run]\nsede = 1\n")
    last = over(base, '[[stages]]\nkind = "sft"\nstep = 1\n', "last.toml")
    base.write_text(base.read_text().replace("samples = 8", "samples = -8"))
    with pytest.raises(TopologyError) as caught:
        load_topology([base, mine, last], ["run.seed=x"])
    said = str(caught.value).splitlines()
    assert [line.partition(": ")[0] for line in said] == [
        f"{base}:14",
        f"{last}:3",
        f"{mine}:3",
        f"{mine}:6",
        f"{base}",
    ]
    assert "run.seed: must be a whole number, not 'x' (from --set)" in said[-1]


@pytest.mark.parametrize(("text", "place"), [("[run\n", ":1"), (None, ""), ("[run]\nseed = 1\nseed = 2\n", ":3")])
def test_a_file_that_cannot_be_read_is_named_itself(base: Path, text: str | None, place: str, capsys) -> None:
    mine = base.with_name("mine.toml")
    if text is not None:
        mine.write_text(text)
    assert main(["check", str(base), str(mine)]) == 2
    assert capsys.readouterr().err.startswith(f"{mine}{place}: ")


# Whole ----------------------------------------------------------------------------------------------------------------


def meaning(topology: Topology) -> Topology:
    """With the settings that actors are given."""
    actors = {
        role: entry.model_copy(
            update={"settings": resolve("actor", entry.class_path).Settings.model_validate(entry.settings)}
        )
        for role, entry in topology.actors.items()
    }
    return topology.model_copy(update={"actors": actors})


def assert_same(topology: Topology, folder: Path) -> None:
    """Both texts of it mean the same, and need nothing that is not in them."""
    path = folder / "written.toml"
    path.write_text(resolved_text(topology))
    assert load_topology(path) == topology
    path.write_text(full_text(topology, shown_settings))
    assert meaning(load_topology(path)) == meaning(topology)
    assert full_text(load_topology(path), shown_settings) == path.read_text()


@pytest.mark.parametrize("example", example_files())
def test_each_example_means_the_same_when_it_is_written_out(example: str, tmp_path: Path) -> None:
    assert_same(load_topology(example_files()[example]), tmp_path)


numbers = st.floats(min_value=1e-300, max_value=1e300)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@settings(max_examples=40, deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "clip_high": numbers,
            "correction": st.sampled_from(["none", "masked"]),
            "sequence_mask": st.tuples(st.floats(0.1, 1), st.floats(1, 9)),
            "refill": st.booleans(),
        },
    ),
    st.dictionaries(
        texts, st.recursive(st.none() | st.integers(-(2**63), 2**63 - 1) | numbers | texts, st.lists), max_size=3
    ),
    st.one_of(st.just(math.inf), numbers),
    texts,
)
def test_any_topology_means_the_same_when_it_is_written_out(
    tmp_path_factory, algorithm, engine, seconds, prompt
) -> None:
    folder = tmp_path_factory.mktemp("written")
    data = tomllib.loads(MICRO.format(directory="run", steps=1, hosts="", a="local", b="local"))
    data["algorithm"] |= algorithm
    data["environments"][0]["settings"] = {prompt: 1} if prompt else {}
    data["actors"]["rollout_generator"]["settings"]["engine_settings"] = {
        key: value for key, value in engine.items() if not _holds_none(value)
    }
    data["actors"]["learner"] |= {"silent_seconds": seconds}
    assert_same(Topology.model_validate(data), folder)


def _holds_none(value) -> bool:
    return value is None or (isinstance(value, list) and any(map(_holds_none, value)))


def test_the_command_prints_a_topology_that_checks_and_holds_every_default(base: Path, capsys) -> None:
    mine = over(base, "[actors.tool_executor]\nreplicas = 2\n")
    assert main(["check", str(base), str(mine), "--set", "run.seed=5", "--full"]) == 0
    text = capsys.readouterr().out
    printed = tomllib.loads(text)
    assert printed["run"]["seed"] == 5
    assert printed["actors"]["tool_executor"]["replicas"] == 2
    assert printed["actors"]["learner"]["links"]["policy"] == ["kv_scheduler", "rollout_generator"]
    assert printed["actors"]["rollout_generator"]["settings"]["tool_attempts"] == 3
    assert printed["algorithm"]["clip_high"] == 0.28
    whole = over(base, text, "whole.toml")
    assert main(["check", str(whole)]) == 0


@pytest.mark.slow
def test_a_run_of_two_files_goes_on_with_what_it_was_started_with(tmp_path: Path) -> None:
    path, directory = write_micro(tmp_path, steps=2)
    stages = '[[stages]]\nkind = "sft"\nsteps = 2\nbatch = 4\n'
    mine = over(path, f"[algorithm]\nkeep = 3\n{stages}")
    command = [sys.executable, "-m", "actors.cli", "run", str(path), str(mine), "--set", "run.seed=3"]
    for _ in range(2):  # the second start finds that all is done
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=dict(os.environ))
        assert done.returncode == 0, done.stdout + done.stderr
    written = directory / "topology.local.toml"
    assert load_topology(written) == load_topology([path, mine], ["run.seed=3"])
    assert f"agent-rl run {path} {mine} --set run.seed=3\n" in written.read_text()
    done = subprocess.run(
        [*command[:4], str(path), "--set", "run.seed=3"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert "algorithm.keep: 3 then, 2 now" in done.stderr
