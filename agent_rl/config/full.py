"""A topology as TOML text: as it is, for the processes of a run, or whole, with every default, for people."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from agent_rl.config.plugins import resolve
from agent_rl.config.topology import Topology


def resolved_text(topology: Topology) -> str:
    """A topology as one file, with all actors and links; relative paths stay relative."""
    return toml_text(topology.model_dump(by_alias=True))


def full_text(topology: Topology) -> str:
    """The same with every default of the actors' settings too. Raises PluginError when a class cannot be loaded."""
    tables = topology.model_dump(by_alias=True)
    for entry in tables["actors"].values():
        settings = resolve("actor", entry["class"]).Settings
        entry["settings"] = settings.model_validate(entry["settings"]).model_dump(by_alias=True)
    return toml_text(tables)


def toml_text(tables: Mapping[str, Any]) -> str:
    """Tables as TOML, without the keys that are None."""
    return tomli_w.dumps(_plain(tables))


def _plain(value: Any) -> Any:
    """A value that TOML can hold."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
