"""Make docs/messages.md from agent_rl/messages/: ``python docs/make_messages.py``; a test notices when it is old."""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from pathlib import Path

from agent_rl import messages

OUTPUT = Path(__file__).with_name("messages.md")


def page() -> str:
    """The whole page."""
    flow = inspect.getdoc(messages) or ""
    parts = [
        "# Messages",
        "",
        "Made from `agent_rl/messages/` by `python docs/make_messages.py`.",
        "",
        flow.replace("::\n", "\n\n```", 1),
    ]
    parts[-1] = parts[-1].replace("\n\nAnnouncements carry", "\n```\n\nAnnouncements carry", 1)
    for name, kind in vars(messages).items():
        if inspect.isclass(kind) and dataclasses.is_dataclass(kind) and kind.__module__.startswith(messages.__name__):
            parts += ["", f"## {name}", "", (inspect.getdoc(kind) or "").replace("``", "`"), ""]
            fields = ", ".join(f"`{field.name}: {field.type}`" for field in dataclasses.fields(kind))
            parts += textwrap.wrap(fields, 120, break_long_words=False)
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    OUTPUT.write_text(page())
