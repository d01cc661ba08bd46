"""The guide to writing an actor, taken apart: its files, its lines of topologies, its commands."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

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
