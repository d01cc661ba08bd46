"""A topology as TOML text: as it is, for the processes of a run, or whole, with every default, for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from agent_rl.config.hidden import redacted
from agent_rl.config.plugins import resolve
from agent_rl.config.topology import EnvironmentEntry, Topology


def resolved_text(topology: Topology) -> str:
    """A topology as one file, with all actors and links; relative paths stay relative."""
    return toml_text(topology.model_dump(by_alias=True))


def full_text(topology: Topology, shown_settings: Callable[[EnvironmentEntry], Any]) -> str:
    """The same with every default of the actors' settings too, and without secrets of settings.

    ``shown_settings`` gives an environment's settings for people. Raises PluginError when a class cannot be loaded.
    """
    tables = topology.model_dump(by_alias=True)
    for entry in tables["actors"].values():
        settings = resolve("actor", entry["class"]).Settings
        entry["settings"] = redacted(settings.model_validate(entry["settings"]).model_dump(by_alias=True), settings)
    for entry, environment in zip(tables["environments"], topology.environments, strict=True):
        entry["settings"] = shown_settings(environment)
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
