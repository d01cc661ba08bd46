"""Make docs/command_line.md from the commands: ``python docs/make_command_line.py``; a test notices when it is old."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from pathlib import Path

from cyclopts import App
from rich.console import Console

from actors.cli.main import COMMANDS, command_line

OUTPUT = Path(__file__).with_name("command_line.md")
HEAD = """\
# Command line

Every command of `agent-rl` with its arguments and options, as `--help` prints them. Made from the commands by
`python docs/make_command_line.py`. [running.md](running.md#commands) says when each command is of use.
"""


def page() -> str:
    """The whole page."""
    app = command_line()
    parts = [HEAD]
    for heading, commands in COMMANDS.items():
        parts.append(f"## {heading}\n")
        for command in commands:
            if not command.hidden:
                parts += [
                    f"### `agent-rl {' '.join(words)}`\n\n```text\n{_help(app, words)}\n```\n"
                    for words in _names(app[command.name], command.name)
                ]
    return "\n".join(parts).rstrip() + "\n"


def _names(app: App, name: str) -> Iterator[tuple[str, ...]]:
    """A command, or instead of it the commands that it has."""
    below = [each for each in app if not each.startswith("-")]
    yield from [(name, each) for each in below] or [(name,)]


def _help(app: App, words: tuple[str, ...]) -> str:
    text = StringIO()
    app.help_print(list(words), console=Console(file=text, width=112, force_terminal=False, color_system=None))
    return "\n".join(line.rstrip() for line in text.getvalue().strip().splitlines())


if __name__ == "__main__":
    OUTPUT.write_text(page())
