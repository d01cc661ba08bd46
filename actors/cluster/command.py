"""The words that start ``agent-rl`` as this process was started."""

from __future__ import annotations

import sys
from pathlib import Path


def own_command() -> list[str]:
    """The script beside this interpreter, or the interpreter with the module."""
    script = Path(sys.executable).with_name("agent-rl")
    return [str(script)] if script.exists() else [sys.executable, "-m", "actors.cli"]
