"""Where a topology's modules are searched: installed packages, the working directory, the topology's folder.

In this order, so that a user's folder ``actors/`` or file ``random.py`` replaces no installed module.
"""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]
"""Where agent_rl, actors, transport and benchmarks lie side by side, in a clone as in an installation."""
_SUITES = _ROOT / "tests" / "contract"
"""Where agent_rl_contract lies in a clone."""


def look_in_working_directory() -> None:
    """From now on this process also finds modules in its working directory, after all others."""
    for folder in map(str, (_ROOT, _SUITES, Path.cwd())):
        if folder not in sys.path:
            sys.path.append(folder)


def look_beside(topology_file: Path) -> None:
    """From now on this process also finds modules in the topology file's folder, after all others."""
    folder = str(topology_file.absolute().parent)
    if folder not in sys.path:
        sys.path.append(folder)
