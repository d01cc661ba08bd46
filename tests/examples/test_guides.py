"""Each tutorial, and the guide to writing an actor, is followed with nothing in mind but its page."""

import shutil
from pathlib import Path

import pytest

import agent_rl_contract
from actors.cli.main import main
from agent_rl.config.load import load_topology
from agent_rl.topology_checks.topology import check_topology
from tests.examples.following import FILES, GUIDE, LINES, ROOT, blocks, follow, obey

TUTORIALS = {path.stem: path for path in (ROOT / "docs" / "tutorials").glob("*.md")}
AFTER = {"own_reward": ("own_task",), "cluster": ("own_task",)}
"""The tutorials that a tutorial names as done before."""
FOR_DEVICES = {"pretrained", "one_gpu", "amd"}
"""Those that need a model from elsewhere or a GPU: their commands are read, not run."""
FOLLOWED = sorted(TUTORIALS.keys() - FOR_DEVICES)


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLLOWED)
def test_a_tutorial_does_what_it_says(name, tmp_path, record_property):
    folder = tmp_path / "reader"
    folder.mkdir()
    assert all(follow(TUTORIALS[each], folder, 900) for each in (*AFTER.get(name, ()), name))
    record_property("tutorials_followed", name)


def test_the_problems_of_the_pretrained_tutorial_become_demonstrations(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ((_, code),) = (block for block in blocks(TUTORIALS["pretrained"]) if block[0] == "python")
    exec(compile(code, "problems.py", "exec"), {})
    shown = ["--number", "240", "--out", "shown.jsonl", "--rest", "train.jsonl"]
    assert main(["data", "demonstrate", "problems.jsonl", *shown]) == 0
    counts = {name: len(Path(f"{name}.jsonl").read_text().splitlines()) for name in ("held_out", "shown", "train")}
    assert counts == {"held_out": 300, "shown": 240, "train": 1860}


def test_each_tutorial_says_first_what_the_reader_will_have():
    assert len(TUTORIALS) == 10
    assert set(TUTORIALS) > FOR_DEVICES
    for name, path in TUTORIALS.items():
        title, empty, first = path.read_text().splitlines()[:3]
        assert (title[:2], empty, first[:18]) == ("# ", "", "At the end you hav"), name


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where a reader who follows the guide to writing an actor ends up."""
    folder = tmp_path_factory.mktemp("guide") / "reader"
    shutil.copytree(ROOT / "examples" / "quickstart", folder)
    quickstart = (folder / "quickstart.toml").read_text()
    texts = FILES | {"mine.toml": quickstart + LINES[0], "with_log.toml": quickstart + LINES[1]}
    for name, text in texts.items():
        (folder / name).write_text(text)
    return folder


COMMANDS = [text for language, text in blocks(GUIDE) if language == "console"]


@pytest.mark.slow
@pytest.mark.parametrize("block", COMMANDS, ids=lambda block: block.splitlines()[0][2:])
def test_a_command_prints_what_the_guide_shows(folder, block):
    obey(block, folder, 120, fails="broken" in block)


def test_the_lines_that_the_guide_adds_make_sound_topologies_and_all_its_blocks_are_run(folder, monkeypatch):
    assert {language for language, _ in blocks(GUIDE)} == {"python", "toml", "console"}
    assert (len(FILES), len(LINES), len(LINES[0].splitlines())) == (5, 2, 2)
    monkeypatch.syspath_prepend(folder)
    for name, roles in (("mine.toml", 5), ("with_log.toml", 6)):
        topology = load_topology(folder / name)
        assert len(topology.actors) == roles
        assert check_topology(topology, folder / name) == []


def test_the_guide_names_each_suite_of_a_role():
    text = GUIDE.read_text()
    for suite in agent_rl_contract.__all__:
        assert suite in text or suite in {"EnvironmentContract", "RoleContract", "TrackerContract"}  # on other pages
