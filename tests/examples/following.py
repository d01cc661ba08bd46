"""A page followed to the letter: its files are written, its commands run, their output held against the page.

A block ``python`` or ``toml`` that begins with ``# PATH`` is a file. A block ``console`` has commands after ``$``, each
with texts, a line each, that it prints: ``...`` stands for anything on the line, a number with a decimal point for any
such number, and the space of tables is as wide as it is.
"""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
BLOCK = re.compile(r"^ *```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\S+\.(?:py|toml))\n")
PROGRAMS = {"agent-rl": "-m actors.cli", "pytest": "-m pytest -p no:cacheprovider", "python": ""}


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of each block."""
    return [(language, textwrap.dedent(text)) for language, text in BLOCK.findall(page.read_text())]


GUIDE = ROOT / "docs" / "write_an_actor.md"
FILES = {FILE.match(text)[1]: text for language, text in blocks(GUIDE) if language == "python"}
LINES = [text for language, text in blocks(GUIDE) if language == "toml"]
"""What the guide to writing an actor adds to the quickstart."""


def pattern(text: str) -> str:
    """What finds a line of a page in what is printed."""
    loose = {"...": ".*"} | dict.fromkeys(re.findall(r"\d+\.\d+", text), r"\d+\.\d+")
    pieces = re.split(r"(\.\.\.|\d+\.\d+|[ │]+)", text)
    return "".join(loose.get(each) or (re.escape(each) if each.strip(" │") else r"[ │]+") for each in pieces if each)


def follow(page: Path, folder: Path, seconds: float) -> int:
    """Do what a page says in a folder; return the number of blocks that were followed."""
    followed = 0
    for language, text in blocks(page):
        if language == "console":
            obey(text, folder, seconds)
        elif file := FILE.match(text):
            path = folder / file[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        else:
            continue
        followed += 1
    return followed


def obey(block: str, folder: Path, seconds: float, *, fails: bool = False) -> None:
    """Run the commands of a block, and hold what they print against it."""
    tools = folder.parent / f"{folder.name}-tools"
    tools.mkdir(exist_ok=True)
    for name, arguments in PROGRAMS.items():
        (tools / name).write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        (tools / name).chmod(0o755)
    path, known = f"{tools}:{os.environ['PATH']}", os.pathsep.join([str(ROOT), os.environ["PYTHONPATH"]])
    how = {"cwd": folder, "env": {**os.environ, "PYTHONPATH": known, "PATH": path}, "timeout": seconds}
    for command in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        line, *shown = command.strip().splitlines()
        done = subprocess.run(["bash", "-c", line], **how, capture_output=True, text=True, check=False)
        printed = done.stdout + done.stderr
        assert (done.returncode != 0) == fails, f"$ {line}\n{printed}"
        for text in shown:
            assert re.search(pattern(text), printed), f"$ {line}\n{text}\n{printed}"
