"""``agent-rl import-config``: a topology from the settings of another trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from actors.cli.output import Mistake


def import_config(
    trainer: Annotated[Literal["verl", "trl"], Parameter(name="TRAINER", help="whose settings they are")],
    file: Annotated[Path, Parameter(name="FILE", help="YAML, JSON, a script that starts the trainer, or Python")],
    /,
    *,
    out: Annotated[Path | None, Parameter(metavar="FILE", help="the new file; left out: that name with .toml")] = None,
) -> None:
    """Write a topology, with a comment for each key that has no counterpart."""
    from agent_rl.adapters.config_import import topology_text
    from agent_rl.adapters.written_settings import SettingsError

    path = out or file.with_suffix(".toml")
    try:
        text, translated, left = topology_text(trainer, file)
    except SettingsError as error:
        raise Mistake(str(error)) from error
    if path.exists():
        raise Mistake(f"{path}: is there already; name another file with --out")
    path.write_text(text, encoding="utf-8")
    print(f"wrote {path}: {translated} keys translated, {left} without a counterpart, which its comments list")
    print(f"next: agent-rl check {path}")
