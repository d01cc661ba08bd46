"""The topologies that come with the package: in a clone below ``examples/``, in a wheel inside ``agent_rl``."""

from __future__ import annotations

from pathlib import Path

from agent_rl.config.suggestions import suggest

_PACKAGE = Path(__file__).parents[1]
EXAMPLES = next(
    (folder for folder in (_PACKAGE / "examples", _PACKAGE.parent / "examples") if folder.is_dir()),
    _PACKAGE / "examples",
)
"""The folder of the examples."""
PLACES = (Path(), Path("examples"))
"""Where the name of an example may seem to be."""


def named_example(path: Path) -> str:
    """The remedy for a file that is not there and could be meant as the name of an example; empty for another path."""
    if path.parent not in PLACES or path.suffix not in {"", ".toml"}:
        return ""
    return f"examples: {suggest(path.stem, sorted(file.stem for file in EXAMPLES.glob('*.toml')))}"


def topology_file(name: str) -> Path:
    """The topology file that a user means: a path, or the name of an example where there is no such file.

    ``quickstart``, ``quickstart.toml`` and ``examples/quickstart.toml`` all name the example ``quickstart.toml``. A
    path that is neither comes back as it is, and the caller says that there is no such file.
    """
    path = Path(name)
    if not path.exists() and path.parent in PLACES and path.suffix in {"", ".toml"}:
        example = EXAMPLES / path.with_suffix(".toml").name
        if example.is_file():
            return example
    return path
