"""Check that a topology's files exist, and that the journal comes to a disk that can hold it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from glob import glob
from os.path import normpath
from pathlib import Path

from agent_rl.config.selection import SelectStage
from agent_rl.config.source import Finding
from agent_rl.config.topology import RlStage, SftStage, Topology
from agent_rl.files.file_systems import KERNEL_FILE_SYSTEMS, NETWORK_FILE_SYSTEMS, file_system_of
from agent_rl.rollout.prompts import OURS, template_file
from agent_rl.topology_checks.facts import Facts

_RELATIVE = "paths are relative to the topology file"


def missing_files(topology: Topology, facts: Facts) -> Iterator[Finding]:
    """Files of conversations, templates or id lists that are not there."""
    base = facts.base
    for index, stage in enumerate(topology.stages):
        ids = stage.filter.ids if isinstance(stage, RlStage | SelectStage) else None
        if ids is not None and not (base / ids).is_file():
            yield Finding(("stages", index, "filter", "ids"), f"there is no file {base / ids}", _RELATIVE)
        for position, pattern in enumerate(stage.data if isinstance(stage, SftStage) else ()):
            if not _is_there(base / pattern):
                message = f"no file matches {normpath((base / pattern).absolute())}"
                yield Finding(("stages", index, "data", position), message, fetching(topology, pattern, base))
    template = template_file(topology, base)
    if template is not None and not template.is_file():
        ours = " or ".join(f'"{name}"' for name in OURS)
        remedy = f"{_RELATIVE}; or take ours, {ours}"
        yield Finding(("model", "chat_template"), f"there is no file {template}", remedy)


def fetching(topology: Topology, pattern: str, base: Path) -> str:
    """The remedy for a missing file: the command that fetches it, where the topology's ``fetch`` knows one."""
    for folder, arguments in topology.fetch.items():
        if Path(normpath(pattern)).is_relative_to(normpath(folder)):
            out = shlex.quote(normpath((base / folder).absolute()))
            return f"fetch it with agent-rl data fetch {arguments} --out {out}, or name another; {_RELATIVE}"
    return _RELATIVE


def _is_there(pattern: Path) -> bool:
    return pattern.is_file() or bool(glob(str(pattern), recursive=True))  # noqa: PTH207 - Path.glob refuses these


def run_directory(topology: Topology, facts: Facts) -> Iterator[Finding]:
    """A run directory that cannot be one, or that cannot hold the journal, where the journal's host is here."""
    place = ("run", "directory")
    if topology.run.directory == Path():
        yield Finding(place, "is the working directory itself", 'name one for the run, as in "runs/name"')
        return
    try:
        directory = topology.run.directory.resolve()
        existing = next(parent for parent in (directory, *directory.parents) if parent.exists())
    except (OSError, ValueError) as error:
        yield Finding(place, f"cannot be a directory: {error}", "name another")
        return
    if not existing.is_dir():
        yield Finding(place, f"{existing} is a file", "name a directory")
        return
    kind, keeper = file_system_of(existing), topology.journal_host
    here = facts.is_here(topology, topology.main_host)
    if kind in KERNEL_FILE_SYSTEMS or (here and not os.access(existing, os.W_OK | os.X_OK)):
        why = f"its file system ({kind}) holds no files" if kind in KERNEL_FILE_SYSTEMS else "you may not write there"
        yield Finding(place, f"{existing} takes no files: {why}", "name another directory")
        return
    if kind in NETWORK_FILE_SYSTEMS and (keeper is None or facts.started in {None, keeper}):
        message = f"{directory} is on a network file system ({kind}), which cannot hold the journal"
        remedy = "name a directory on a local disk; weights and other files of the run may be shared (docs/clusters.md)"
        yield Finding(place, message, remedy)
