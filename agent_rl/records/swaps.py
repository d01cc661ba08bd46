"""The roles that were swapped or scaled while a run was under way, for the notice of the next start.

The topology file stays the truth. A swap, or a number of processes, holds until the run ends or is stopped, also for
processes that are restarted. The next start goes by the file, and says for which roles the last start went by
something else.
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
    """Store the class, the settings and the number of processes that a role has from now on. Raises DiskError."""
    swaps = {**_read(directory), role: _entry(topology, role)}
    with whole(directory / FILE) as partial:
        partial.write_text(json.dumps(swaps, indent=1) + "\n", encoding="utf-8")


def swapped_roles(directory: Path) -> list[str]:
    """The roles that were swapped or scaled in the last start: processes of other hosts may still be."""
    return list(_read(directory))


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
        if any(now[key] != then[key] for key in ("class", "settings")):
            yield (
                f"{role} was swapped in the last start, and now is what the file says: class {now['class']}, "
                f"settings {json.dumps(now['settings'])}; it was class {then['class']}, "
                f"settings {json.dumps(then['settings'])}"
            )
        if now["replicas"] != then["replicas"]:
            yield (
                f"{role} was scaled in the last start, and now has as many processes as the file says: "
                f"{now['replicas']}; it had {then['replicas']}"
            )


def _entry(topology: Topology, role: str) -> dict[str, Any]:
    entry = topology.actors[role].model_dump(mode="json", by_alias=True)
    homes = topology.homes(role).values()
    of_the_file = sum(not topology.hosts[host].joined for host in homes)  # hosts that join are no change of the role
    return {"class": entry["class"], "settings": entry["settings"], "replicas": of_the_file}


def _read(directory: Path) -> dict[str, Any]:
    """The swaps of the last start, by role. A file that cannot be read counts as none: it serves a notice alone."""
    try:
        swaps = read_json(directory / FILE)
    except (OSError, ValueError):
        return {}
    return {role: each for role, each in swaps.items() if _whole(each)} if isinstance(swaps, dict) else {}


def _whole(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.keys() >= {"class", "settings", "replicas"}
