"""Each example is found by its name, says what it takes and shows, and is in the gallery."""

import re
from pathlib import Path

import pytest

from actors.cli.main import main
from agent_rl.config.examples import EXAMPLES, described_examples, example_files, topology_file

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "gallery.md").read_text()
PARTS = [each for each in re.split(r"(?m)^#+ |^(?=\|)", PAGE) if "agent-rl" in each]
"""Sections, and rows of tables."""


def test_the_first_line_of_each_example_says_what_it_takes_and_shows():
    assert [example.name for example in described_examples()] == list(example_files())
    assert len(example_files()) == len([*EXAMPLES.glob("*.toml"), *EXAMPLES.glob("*/*.toml")])


@pytest.mark.parametrize("name", example_files())
def test_an_example_is_found_by_its_name_also_beside_a_folder_of_that_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    for given in (name, f"{name}.toml", f"examples/{name}", f"examples/{name}.toml"):
        assert topology_file(given) == example_files()[name]
    (tmp_path / f"{name}.toml").touch()
    assert topology_file(f"{name}.toml") == Path(f"{name}.toml")
    assert topology_file(f"elsewhere/{name}") == Path(f"elsewhere/{name}")


def test_a_run_without_a_file_lists_the_examples(capsys):
    assert main(["run"]) == 2
    out, err = capsys.readouterr()
    listed = [line.split() for line in out.splitlines()[1:]]
    assert listed == [" ".join(example).split() for example in described_examples()]
    assert err == (
        "agent-rl: name a topology file or an example: agent-rl run FILE (agent-rl run --help tells what there is)\n"
    )


@pytest.mark.parametrize("example", described_examples(), ids=lambda example: example.name)
def test_the_gallery_says_of_an_example_what_it_takes_and_shows(example):
    name, takes, shows = example
    (part,) = (
        part for part in PARTS if re.search(rf"agent-rl [a-z]+ (MODEL --topology )?{re.escape(name)}[\n`]", part)
    )
    assert shows in " ".join(part.split())
    assert re.search(rf"(^|\n|\| ){takes}(: | \|)", part)
