"""Each tutorial is followed with nothing in mind but its page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.examples.following import ROOT, follow

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
    blocks = [follow(TUTORIALS[each], folder, 900) for each in (*AFTER.get(name, ()), name)]
    assert all(blocks)
    record_property("docs_blocks_run", blocks[-1])


def test_each_tutorial_says_first_what_the_reader_will_have() -> None:
    assert {
        "first_run",
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
