"""The roles that were swapped or scaled while a run is under way.

The topology file stays the truth. A swap, or a number of processes, holds until the run ends or is stopped, also for
processes that are restarted, and for a supervisor that is killed and started again. The next start goes by the file,
and says for which roles the last start went by something else.

::

    swaps.json: in force --(the run ends, or is stopped)--> ended_swaps.json --(the next start: a line each)--> removed
        `-(the supervisor is killed, and started again)--> in force

"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_rl.config.hidden import redacted
from agent_rl.config.topology import Topology
from agent_rl.files.disk import whole
from agent_rl.files.reading_json import read_json

FILE = "swaps.json"
ENDED = "ended_swaps.json"


def record_swap(directory: Path, role: str, topology: Topology, keys: Sequence[str] = ()) -> None:
    """Store the class, the settings and the number of processes that a role has from now on. Raises DiskError.

    ``keys``: the swap, as ``KEY=VALUE`` of the topology; empty when the role was scaled.
    """
    swaps = _read(directory / FILE)
    before = swaps[role]["keys"] if role in swaps else []
    swaps[role] = {**_entry(topology, role), "keys": [*before, *keys]}
    with whole(directory / FILE, private=True) as partial:
        partial.write_text(json.dumps(swaps, indent=1) + "\n", encoding="utf-8")


def swaps_in_force(directory: Path) -> dict[str, list[str]]:
    """The swaps of a supervisor that was killed, by role, as ``KEY=VALUE`` of the topology."""
    return {role: each["keys"] for role, each in _read(directory / FILE).items() if each["keys"]}


def numbers_in_force(directory: Path) -> dict[str, int]:
    """How many processes the swapped and scaled roles of a run under way are to have."""
    return {role: each["replicas"] for role, each in _read(directory / FILE).items()}


def with_swaps(topology: Topology, directory: Path) -> Topology:
    """The topology with the swaps and numbers of processes in force. Roles that it has no more are left out."""
    actors = dict(topology.actors)
    kept = _read(directory / FILE)
    for role, each in kept.items():
        if each["keys"] and role in actors:
            now = {"class_path": each["class"], "settings": each["settings"]}
            actors[role] = actors[role].model_copy(update=now)
    swapped = topology.model_copy(update={"actors": actors})
    numbers = {role: min(each["replicas"], len(actors[role].homes)) for role, each in kept.items() if role in actors}
    return swapped.scaled({role: number for role, number in numbers.items() if number != len(topology.wanted(role))})


def end_swaps(directory: Path) -> None:
    """The run ends, or is stopped: nothing is in force any more."""
    if (directory / FILE).exists():
        (directory / FILE).replace(directory / ENDED)


def forget_swaps(directory: Path, topology: Topology) -> list[str]:
    """Forget the swaps of the last start that have ended; one line for each role to which this start gives another."""
    differing = list(_differences(_read(directory / ENDED), topology))
    (directory / ENDED).unlink(missing_ok=True)
    return differing


def _differences(swaps: Mapping[str, Any], topology: Topology) -> Iterable[str]:
    for role, then in swaps.items():
        if role not in topology.actors:
            continue
        now = _entry(topology, role)
        if any(now[key] != then[key] for key in ("class", "settings")):
            yield (
                f"{role} was swapped in the last start, and now is what the file says: class {now['class']}, "
                f"settings {json.dumps(redacted(now['settings']))}; it was class {then['class']}, "
                f"settings {json.dumps(redacted(then['settings']))}"
            )
        if now["replicas"] != then["replicas"]:
            yield (
                f"{role} was scaled in the last start, and now has as many processes as the file says: "
                f"{now['replicas']}; it had {then['replicas']}"
            )


def _entry(topology: Topology, role: str) -> dict[str, Any]:
    entry = topology.actors[role].model_dump(mode="json", by_alias=True)
    return {"class": entry["class"], "settings": entry["settings"], "replicas": len(topology.wanted(role))}


def _read(file: Path) -> dict[str, Any]:
    """What a file holds, by role. One that cannot be read counts as none: then the file of the topology holds."""
    try:
        swaps = read_json(file)
    except (OSError, ValueError):
        return {}
    return {role: each for role, each in swaps.items() if _whole(each)} if isinstance(swaps, dict) else {}


def _whole(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.keys() >= {"class", "settings", "replicas", "keys"}
