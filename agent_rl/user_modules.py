"""Where the modules that a topology names are looked for: the working directory, what is installed, and its own folder."""

from __future__ import annotations

import sys
from pathlib import Path


def look_beside(topology_file: Path) -> None:
    """From now on this process also finds modules in the topology file's folder, after all others.

    After, so that a ``random.py`` beside a topology takes the place of nothing.
    """
    folder = str(topology_file.absolute().parent)
    if folder not in sys.path:
        sys.path.append(folder)
