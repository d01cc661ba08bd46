"""The guide to writing an actor does what it says: its files are written, its commands run, their output held against
it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agent_rl.config.load import load_topology
from agent_rl.topology_checks.topology import check_topology
from tests.examples.guide import BLOCKS, COMMANDS, FILES, GUIDE, LINES, ROOT


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader who follows the guide ends up."""
    folder = tmp_path_factory.mktemp("guide")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    shutil.copy(ROOT / "examples/quickstart/arithmetic.py", folder)
    quickstart = (ROOT / "examples/quickstart/quickstart.toml").read_text()
    (folder / "mine.toml").write_text(quickstart + LINES[0])
    (folder / "with_log.toml").write_text(quickstart + LINES[1])
    return folder


def test_every_block_is_of_a_kind_that_is_run() -> None:
    assert {language for language, _ in BLOCKS} == {"python", "toml", "console"}
    assert len(FILES) == 5
    assert len(LINES) == 2


@pytest.mark.slow
@pytest.mark.parametrize("block", COMMANDS, ids=lambda block: block.splitlines()[0][2:])
def test_a_command_prints_what_the_guide_shows(folder: Path, block: str) -> None:
    command, *shown = block.splitlines()
    program, *arguments = shlex.split(command.removeprefix("$ "))
    module = {"agent-rl": ["actors.cli"], "pytest": ["pytest", "-p", "no:cacheprovider"]}[program]
    done = subprocess.run(
        [sys.executable, "-m", *module, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ["PYTHONPATH"]])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    printed = done.stdout + done.stderr
    for line in shown:
        assert line in printed, printed


def test_the_added_lines_make_sound_topologies(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    for name, roles in (("mine.toml", 5), ("with_log.toml", 6)):
        topology = load_topology(folder / name)
        assert len(topology.actors) == roles
        assert check_topology(topology, folder / name) == []
    assert len(LINES[0].splitlines()) == 2


def test_what_the_guide_names_is_there() -> None:
    text = GUIDE.read_text()
    for linked in re.findall(r"\]\((\.\./[^)#]+|[^)#:]+\.md)\)", text):
        assert (GUIDE.parent / linked).exists(), linked
    import agent_rl_contract

    for suite in agent_rl_contract.__all__:
        assert suite in text or suite in {"EnvironmentContract", "RoleContract", "TrackerContract"}  # on other pages
