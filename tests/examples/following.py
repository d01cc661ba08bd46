"""A page followed to the letter: its files are written, its commands run, their output held against the page.

A block ``python`` or ``toml`` that begins with ``# PATH`` is a file. A block ``console`` has commands after ``$``, each
with texts, a line each, that it prints: ``...`` stands for anything on the line, a number with a decimal point for any
such number, and the space of tables is as wide as it is.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
BLOCK = re.compile(r"^ *```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\S+\.(?:py|toml))\n")


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of each block."""
    return [(language, textwrap.dedent(text)) for language, text in BLOCK.findall(page.read_text())]


def pattern(text: str) -> str:
    """What finds a line of a page in what is printed."""
    loose = {"...": ".*"} | dict.fromkeys(re.findall(r"\d+\.\d+", text), r"\d+\.\d+")
    pieces = re.split(r"(\.\.\.|\d+\.\d+|[ │]+)", text)
    return "".join(loose.get(each) or (re.escape(each) if each.strip(" │") else r"[ │]+") for each in pieces if each)


def follow(page: Path, folder: Path, seconds: float) -> int:
    """Do what a page says in a folder; return the number of blocks that were followed."""
    tools = folder.parent / f"{folder.name}-tools"
    tools.mkdir(exist_ok=True)
    for name, arguments in (
        ("agent-rl", "-m actors.cli"),
        ("pytest", "-m pytest -p no:cacheprovider"),
        ("python", ""),
    ):
        (tools / name).write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        (tools / name).chmod(0o755)
    followed = 0
    for language, text in blocks(page):
        if language == "console":
            for command in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                _run(command, folder, tools, seconds)
        elif file := FILE.match(text):
            path = folder / file[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        else:
            continue
        followed += 1
    return followed


def _run(command: str, folder: Path, tools: Path, seconds: float) -> None:
    line, *shown = command.strip().splitlines()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ["PYTHONPATH"]]),
        "PATH": f"{tools}:{os.environ['PATH']}",
    }
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )
    printed = done.stdout + done.stderr
    assert done.returncode == 0, f"$ {line}\n{printed}"
    for text in shown:
        assert re.search(pattern(text), printed), f"$ {line}\n{text}\n{printed}"
