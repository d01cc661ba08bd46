"""The card of a checkpoint: recipe, data with sizes, figures with intervals, and the licence of the base."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from agent_rl.config.examples import topology_file
from agent_rl.config.load import load_topology
from agent_rl.config.topology import Topology
from agent_rl.records.checkpoint_files import Position
from agent_rl.records.model_card import Base, Measured, card, read_base

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
