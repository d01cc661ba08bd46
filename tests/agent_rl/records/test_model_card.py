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
from agent_rl.records.model_card import Base, DataFile, Measured, card, data_files, read_base

BASE = Base("org/base", "apache-2.0", "org/base")
MEASURED = Measured("after", 45, "greedy", 0.38, 0.327, 0.436, 300)


def topology(*overrides: str) -> Topology:
    return load_topology(topology_file("smollm2_word_problems"), overrides)


def head(text: str) -> dict[str, object]:
    found: dict[str, object] = yaml.safe_load(text.split("---\n")[1])
    return found


def test_a_card_says_recipe_data_figures_licence_and_use() -> None:
    data = [DataFile("train.jsonl", "files", 1234), DataFile("far.jsonl", "files", None)]
    text = card(topology(), Position(1, 0, 45), BASE, data, [MEASURED])
    assert head(text) == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "license": "apache-2.0",
        "base_model": "org/base",
        "tags": ["reinforcement-learning", "tool-use", "agent-rl"],
    }
    for line in (
        "| after | 45 | greedy | 38.0% | 32.7% to 43.6% | 300 |",
        "| `train.jsonl` | files | 1,234 bytes |",
        "| `far.jsonl` | files | not on the learner's host |",
        "| `loss` | `grpo` |",
        "# smollm2_word_problems, version 45",
        'model = AutoModelForCausalLM.from_pretrained("PATH")',
    ):
        assert line in text.splitlines()
    assert text.count("(reached)") == 1


def test_what_is_not_known_is_said_and_left_out_of_the_metadata() -> None:
    text = card(topology(), Position(0, 0, 0), Base("mine", "unknown"), [], [])
    assert "base_model" not in head(text)
    assert head(text)["license"] == "unknown"
    assert "Licence: unknown: look for it where the base comes from." in text
    assert "No evaluation was complete when this card was written." in text
    assert "No files: the environments make their problems." in text


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
    (tmp_path / "README.md").write_text(card(topology(), Position(1, 0, 45), BASE, [], []))
    assert read_base(topology(f'model.path="{tmp_path}"'), tmp_path) == BASE
    fresh = replace(BASE, name="a model with fresh weights", licence="unknown", hub=None)
    made = load_topology(Path("examples/quickstart.toml"))
    assert read_base(made, tmp_path) == fresh


def test_data_files_have_sizes_and_patterns_name_each_file(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / "data" / name).write_text("x" * 5)
    sft = '{kind = "sft", name = "taught", steps = 1, data = ["data/*.jsonl"]}'
    found = data_files(
        topology(
            f"stages=[{sft}]", 'environments=[{class = "maths", settings = {files = ["data/a.jsonl", "none.jsonl"]}}]'
        ),
        tmp_path,
    )
    assert [(each.name, each.use, each.size) for each in found] == [
        ("data/a.jsonl", "files", 5),
        ("none.jsonl", "files", None),
        ("data/a.jsonl", "taught", 5),
        ("data/b.jsonl", "taught", 5),
    ]
