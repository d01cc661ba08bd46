"""Where the modules that a topology names are looked for: what is installed, the working directory, and the topology's own folder.

In this order, so that a folder ``actors/`` or a file ``random.py`` of the user takes the place of nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = str(Path(__file__).parents[2])
"""Where agent_rl, actors, transport and benchmarks lie side by side, in a clone as in an installation."""


def look_in_working_directory() -> None:
    """From now on this process also finds modules in its working directory, after all others."""
    for folder in (_ROOT, str(Path.cwd())):
        if folder not in sys.path:
            sys.path.append(folder)


def look_beside(topology_file: Path) -> None:
    """From now on this process also finds modules in the topology file's folder, after all others."""
    folder = str(topology_file.absolute().parent)
    if folder not in sys.path:
        sys.path.append(folder)
