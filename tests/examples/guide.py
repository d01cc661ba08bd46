"""The guide to writing an actor, taken apart: its files, its lines of topologies, its commands."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
GUIDE = ROOT / "docs" / "write_an_actor.md"
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
FILES = {re.match(r"# (\S+\.py)\n", text)[1]: text for language, text in BLOCKS if language == "python"}  # type: ignore[index]
LINES = [text for language, text in BLOCKS if language == "toml"]
"""What is added to the quickstart."""
COMMANDS = [text for language, text in BLOCKS if language == "console"]


def played(text: str, role: str, class_path: str) -> str:
    """A topology with one role played by another class."""
    table = next((line for line in text.splitlines() if line.startswith(f"[actors.{role}]")), "")
    if not table:
        return f'{text}[actors.{role}]\nclass = "{class_path}"\n'
    return text.replace(table, f'{table}\nclass = "{class_path}"')
