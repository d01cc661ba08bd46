"""Each tutorial is followed with nothing in mind but its page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from actors.cli.main import main
from tests.examples.following import ROOT, blocks, follow

TUTORIALS = {path.stem: path for path in (ROOT / "docs" / "tutorials").glob("*.md")}
AFTER = {"own_reward": ("own_task",), "cluster": ("own_task",)}
"""The tutorials that a tutorial names as done before."""
FOR_DEVICES = {"pretrained", "one_gpu", "amd"}
"""Those that need a model from elsewhere or a GPU: their commands are read, not run."""
FOLLOWED = sorted(TUTORIALS.keys() - FOR_DEVICES)


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLLOWED)
def test_a_tutorial_does_what_it_says(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    folder = tmp_path / "reader"
    folder.mkdir()
    assert all(follow(TUTORIALS[each], folder, 900) for each in (*AFTER.get(name, ()), name))
    record_property("tutorials_followed", name)


def test_the_problems_of_the_pretrained_tutorial_become_demonstrations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ((_, code),) = (block for block in blocks(TUTORIALS["pretrained"]) if block[0] == "python")
    exec(compile(code, "problems.py", "exec"), {})
    shown = ["--number", "240", "--out", "shown.jsonl", "--rest", "train.jsonl"]
    assert main(["data", "demonstrate", "problems.jsonl", *shown]) == 0
    counts = {name: len(Path(f"{name}.jsonl").read_text().splitlines()) for name in ("held_out", "shown", "train")}
    assert counts == {"held_out": 300, "shown": 240, "train": 1860}


def test_each_tutorial_says_first_what_the_reader_will_have() -> None:
    assert {
        "first_run",
        "in_python",
        "own_task",
        "own_tool",
        "own_reward",
        "pretrained",
        "one_gpu",
        "cluster",
        "amd",
        "own_agent",
    } == (TUTORIALS.keys())
    for name, path in TUTORIALS.items():
        title, empty, first = path.read_text().splitlines()[:3]
        assert (title[:2], empty, first[:18]) == ("# ", "", "At the end you hav"), name
