"""Make docs/messages.md from agent_rl/messages/: ``python docs/make_messages.py``; a test notices when it is old."""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from agent_rl import messages
from agent_rl.messages import pipes

OUTPUT = Path(__file__).with_name("messages.md")


def page() -> str:
    """The whole page."""
    parts = ["# Messages", "", "Made from `agent_rl/messages/` by `python docs/make_messages.py`.", ""]
    parts += [*_chapter(messages, "Announcements carry", "##")]
    parts += ["", "## Over pipes", "", *_chapter(pipes, "The end of a pipe", "###")]
    return "\n".join(parts).rstrip() + "\n"


def _chapter(module: ModuleType, after: str, level: str) -> Iterator[str]:
    """The flow of the messages of a module, which ends before ``after``, and each message."""
    flow = (inspect.getdoc(module) or "").replace("::\n", "\n\n```", 1)
    yield flow.replace(f"\n\n{after}", f"\n```\n\n{after}", 1)
    for name, kind in vars(module).items():
        if inspect.isclass(kind) and dataclasses.is_dataclass(kind) and kind.__module__.startswith(module.__name__):
            yield from ("", f"{level} {name}", "", (inspect.getdoc(kind) or "").replace("``", "`"))
            if fields := ", ".join(f"`{field.name}: {field.type}`" for field in dataclasses.fields(kind)):
                yield from ("", *textwrap.wrap(fields, 120, break_long_words=False))


if __name__ == "__main__":
    OUTPUT.write_text(page())
