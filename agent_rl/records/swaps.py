"""The roles that were swapped while a run was under way, for the notice of the next start.

The topology file stays the truth. A swap holds until the run ends or is stopped, also for processes that are restarted.
The next start goes by the file, and says for which roles the last start went by something else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agent_rl.config.topology import Topology
from agent_rl.files.disk import whole
from agent_rl.files.reading_json import read_json

FILE = "swaps.json"


def record_swap(directory: Path, role: str, topology: Topology) -> None:
    """Store the class and the settings that a role has from now on. Raises DiskError."""
    swaps = {**_read(directory), role: _entry(topology, role)}
    with whole(directory / FILE) as partial:
        partial.write_text(json.dumps(swaps, indent=1) + "\n", encoding="utf-8")


def forget_swaps(directory: Path, topology: Topology) -> list[str]:
    """Forget the swaps of the last start; one line for each role to which this start gives something else."""
    differing = list(_differences(_read(directory), topology))
    (directory / FILE).unlink(missing_ok=True)
    return differing


def _differences(swaps: dict[str, Any], topology: Topology) -> Iterable[str]:
    for role, then in swaps.items():
        if role not in topology.actors:
            continue
        now = _entry(topology, role)
        if now != then:
            yield (
                f"{role} was swapped in the last start, and now is what the file says: class {now['class']}, "
                f"settings {json.dumps(now['settings'])}; it was class {then['class']}, "
                f"settings {json.dumps(then['settings'])}"
            )


def _entry(topology: Topology, role: str) -> dict[str, Any]:
    entry = topology.actors[role].model_dump(mode="json", by_alias=True)
    return {"class": entry["class"], "settings": entry["settings"]}


def _read(directory: Path) -> dict[str, Any]:
    """The swaps of the last start, by role. A file that cannot be read counts as none: it serves a notice alone."""
    try:
        swaps = read_json(directory / FILE)
    except (OSError, ValueError):
        return {}
    return {role: each for role, each in swaps.items() if _whole(each)} if isinstance(swaps, dict) else {}


def _whole(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.keys() >= {"class", "settings"}
