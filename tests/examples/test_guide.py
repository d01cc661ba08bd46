"""The guide to writing an actor does what it says: its files are written, its commands run, their output held against it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from agent_rl.check import check_topology
from agent_rl.load import load_topology

ROOT = Path(__file__).parent.parent.parent
GUIDE = ROOT / "docs" / "write_an_actor.md"
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
FILES = {re.match(r"# (\S+\.py)\n", text)[1]: text for language, text in BLOCKS if language == "python"}  # type: ignore[index]
LINES = [tomllib.loads(text) for language, text in BLOCKS if language == "toml"]
COMMANDS = [text for language, text in BLOCKS if language == "console"]


def with_changes(text: str, changes: dict[str, Any]) -> str:
    """The quickstart with what a block of the guide says of its actors."""
    for role, entry in changes["actors"].items():
        start = text.find(f"[actors.{role}]\n")
        if start < 0:
            inline = ", ".join(f'{key} = "{value}"' for key, value in entry.get("settings", {}).items())
            text += f'\n[actors.{role}]\nclass = "{entry["class"]}"\nsettings = {{ {inline} }}\n'
            continue
        end = text.find("\n\n", start) % (len(text) + 1)
        table = re.sub(r'class = ".*"', f'class = "{entry["class"]}"', text[start:end])
        for link, leads_to in entry.get("links", {}).items():
            shown = str(leads_to).replace("'", '"') if isinstance(leads_to, list) else f'"{leads_to}"'
            table = re.sub(rf'{link} = (\[.*?\]|".*?")', f"{link} = {shown}", table)
        text = text[:start] + table + text[end:]
    return text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader who follows the guide ends up."""
    folder = tmp_path_factory.mktemp("guide")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    quickstart = (ROOT / "examples" / "quickstart.toml").read_text()
    (folder / "mine.toml").write_text(with_changes(quickstart, LINES[0]))
    (folder / "with_log.toml").write_text(with_changes(quickstart, LINES[1]))
    return folder


def test_every_block_is_of_a_kind_that_is_run() -> None:
    assert {language for language, _ in BLOCKS} == {"python", "toml", "console"}
    assert len(FILES) == 5
    assert len(LINES) == 2


@pytest.mark.parametrize("block", COMMANDS, ids=lambda block: block.splitlines()[0][2:])
def test_a_command_prints_what_the_guide_shows(folder: Path, block: str) -> None:
    command, *shown = block.splitlines()
    program, *arguments = shlex.split(command.removeprefix("$ "))
    module = {"agent-rl": ["agent_rl"], "pytest": ["pytest", "-p", "no:cacheprovider"]}[program]
    done = subprocess.run(
        [sys.executable, "-m", *module, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    printed = done.stdout + done.stderr
    for line in shown:
        assert line in printed, printed


def test_the_changed_lines_make_sound_topologies(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    for name, roles in (("mine.toml", 5), ("with_log.toml", 6)):
        topology = load_topology(folder / name)
        assert len(topology.actors) == roles
        assert check_topology(topology, folder / name) == []
    before = (ROOT / "examples" / "quickstart.toml").read_text().splitlines()
    after = (folder / "mine.toml").read_text().splitlines()
    assert sum(one != other for one, other in zip(before, after, strict=True)) == 1


def test_what_the_guide_names_is_there() -> None:
    text = GUIDE.read_text()
    for linked in re.findall(r"\]\((\.\./[^)#]+|[^)#:]+\.md)\)", text):
        assert (GUIDE.parent / linked).exists(), linked
    import actors.contract

    for suite in actors.contract.__all__:
        assert suite in text or suite == "RoleContract"
