"""Which settings the hosts of a run must agree on, and how two hosts compare theirs.

Every host reads its own copy of the topology, with its own overlays and ``--set``. What follows from the file on more
than one host must be the same: names, addresses, links, the recipe. What only the processes of one host use may differ:
the settings of actors, restarts, sizes of logs. Of an absolute path only the last part is compared, since hosts keep
files in different places.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from agent_rl.config.hidden import HIDDEN, redacted
from agent_rl.config.topology import EnvironmentEntry, Topology

OWN = (
    "run.directory",
    "run.log_mib",
    "run.timeline_mib",
    "run.report_standstill_seconds",
    "run.trackers*",
    "run.metrics_*",
    "environments.*.base",
    "fetch.*",
    "security.*",
    "hosts.*.address",
    "actors.*.settings*",
    "actors.*.restarts",
    "actors.*.restart_window_seconds",
    "actors.*.silent_seconds",
)
"""Keys that each host may have its own value of."""
_SHOWN = 80
"""Longer values are compared by digest."""
_NAMED = 6
"""With more differing keys, the others are counted."""


def secrets(topology: Topology, shown_settings: Callable[[EnvironmentEntry], Any]) -> dict[str, Any]:
    """The secrets of a topology, by dotted key. ``shown_settings`` gives an environment's settings for people."""
    tables = topology.model_dump(mode="json", by_alias=True)
    shown = redacted(tables)
    for table, entry in zip(shown["environments"], topology.environments, strict=True):
        table["settings"] = shown_settings(entry)
    hidden = {key for key, value in _flat("", shown) if value == HIDDEN}
    return {key: value for key, value in _flat("", tables) if key in hidden}


def settings_to_agree(topology: Topology, shown_settings: Callable[[EnvironmentEntry], Any]) -> dict[str, str]:
    """The values that all hosts must have, by dotted key: as JSON, or a digest of it. Of secrets only digests leave."""
    kept = secrets(topology, shown_settings)
    return {
        key: _written(value, secret=key in kept)
        for key, value in _flat("", topology.model_dump(mode="json", by_alias=True))
        if not any(fnmatchcase(key, pattern) for pattern in OWN)
    }


def differences(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """The keys in which two hosts differ, with both values; empty when they agree."""
    keys = [key for key in dict.fromkeys([*here, *there]) if here.get(key) != there.get(key)]
    words = [f"{key} is {here.get(key, 'not set')} here and {there.get(key, 'not set')} there" for key in keys[:_NAMED]]
    return "; ".join([*words, *([f"{len(keys) - _NAMED} more keys differ"] if len(keys) > _NAMED else [])])


def _flat(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list) and value:
        for name, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _flat(f"{key}.{name}" if key else str(name), part)
    else:
        yield key, value


def _written(value: Any, *, secret: bool) -> str:
    if isinstance(value, str) and value.startswith(("/", "~")):
        value = f".../{value.rstrip('/').rpartition('/')[2]}"
    text = json.dumps(value)
    if secret or len(text) > _SHOWN:
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    return text
