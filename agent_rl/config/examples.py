"""The topologies that come with the package: in a clone below ``examples/``, in a wheel inside ``agent_rl``.

An example is a file, or lies with its own modules in a folder. Its first line says what it takes and what it shows:
``# 5 minutes: A tiny model learns ...`` on two cores without a GPU, or ``# GPU: ...``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from agent_rl.config.suggestions import suggest

_PACKAGE = Path(__file__).parents[1]
EXAMPLES = next(
    (folder for folder in (_PACKAGE / "examples", _PACKAGE.parent / "examples") if folder.is_dir()),
    _PACKAGE / "examples",
)
"""The folder of the examples."""
PLACES = (Path(), Path("examples"))
"""Where the name of an example may seem to be."""
_FIRST_LINE = re.compile(r"# (\d+ minutes?|\d+ to \d+ minutes|\d* ?GPUs?): (.+)\n")


class Example(NamedTuple):
    """An example, as its first line describes it."""

    name: str
    takes: str
    """Minutes on two cores without a GPU, or the GPUs that it needs."""
    shows: str


def example_files() -> dict[str, Path]:
    """The topology file of each example, by the name of the example."""
    files = sorted([*EXAMPLES.glob("*.toml"), *EXAMPLES.glob("*/*.toml")], key=lambda file: file.name)
    return {file.stem: file for file in files}


def described_examples() -> list[Example]:
    """The examples whose first line describes them. A file that a user put beside them has no such line."""
    first = {name: _FIRST_LINE.match(file.read_text(encoding="utf-8")) for name, file in example_files().items()}
    return [Example(name, *line.groups()) for name, line in first.items() if line]


def named_example(path: Path) -> str:
    """The remedy for a file that is not there and could be meant as the name of an example; empty for another path."""
    if path.parent not in PLACES or path.suffix not in {"", ".toml"}:
        return ""
    return f"examples: {suggest(path.stem, list(example_files()))}"


def topology_file(name: str) -> Path:
    """The topology file that a user means: a path, or the name of an example where there is no such file.

    ``doors``, ``doors.toml`` and ``examples/doors.toml`` all name the example ``doors/doors.toml``. A path that is
    neither comes back as it is, and the caller says that there is no such file.
    """
    path = Path(name)
    if (path.is_dir() or not path.exists()) and path.parent in PLACES:
        return example_files().get(path.name.removesuffix(".toml"), path)
    return path
