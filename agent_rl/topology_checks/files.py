"""Check that a topology's files exist, and that the journal comes to a disk that can hold it."""

from __future__ import annotations

import os
import shlex
from glob import glob
from os.path import normpath
from pathlib import Path

from agent_rl.config.selection import SelectStage
from agent_rl.config.source import Fault, Source
from agent_rl.config.topology import RlStage, SftStage, Topology
from agent_rl.files.file_systems import KERNEL_FILE_SYSTEMS, NETWORK_FILE_SYSTEMS, file_system_of
from agent_rl.rollout.prompts import OURS, template_file
from agent_rl.topology_checks.placement import is_here


def file_faults(topology: Topology, path: Path, source: Source, started: str | None = None) -> list[Fault]:
    """Missing files of conversations, templates or id lists; a run directory that cannot hold what comes there.

    The journal is looked at where its host is ``started`` here, or all hosts are.
    """
    faults = []
    for index, stage in enumerate(topology.stages):
        ids = stage.filter.ids if isinstance(stage, RlStage | SelectStage) else None
        if ids is not None and not (path.parent / ids).is_file():
            message = f"there is no file {path.parent / ids}"
            faults.append(source.fault(("stages", index, "filter", "ids"), message, _RELATIVE))
        for position, pattern in enumerate(stage.data if isinstance(stage, SftStage) else ()):
            if not _is_there(path.parent / pattern):
                message = f"no file matches {normpath((path.parent / pattern).absolute())}"
                remedy = fetching(topology, pattern, path.parent)
                faults.append(source.fault(("stages", index, "data", position), message, remedy))
    template = template_file(topology, path.parent)
    if template is not None and not template.is_file():
        message = f"there is no file {template}"
        ours = " or ".join(f'"{name}"' for name in OURS)
        faults.append(source.fault(("model", "chat_template"), message, f"{_RELATIVE}; or take ours, {ours}"))
    faults += _directory_faults(topology, source, started)
    return faults


_RELATIVE = "paths are relative to the topology file"


def fetching(topology: Topology, pattern: str, base: Path) -> str:
    """The remedy for a missing file: the command that fetches it, where the topology's ``fetch`` knows one."""
    for folder, arguments in topology.fetch.items():
        if Path(normpath(pattern)).is_relative_to(normpath(folder)):
            out = shlex.quote(normpath((base / folder).absolute()))
            return f"fetch it with agent-rl data fetch {arguments} --out {out}, or name another; {_RELATIVE}"
    return _RELATIVE


def _is_there(pattern: Path) -> bool:
    return pattern.is_file() or bool(glob(str(pattern), recursive=True))  # noqa: PTH207 - Path.glob refuses these


def _directory_faults(topology: Topology, source: Source, started: str | None) -> list[Fault]:
    place = ("run", "directory")
    if topology.run.directory == Path():
        return [source.fault(place, "is the working directory itself", 'name one for the run, as in "runs/name"')]
    try:
        directory = topology.run.directory.resolve()
        existing = next(parent for parent in (directory, *directory.parents) if parent.exists())
    except (OSError, ValueError) as error:
        return [source.fault(place, f"cannot be a directory: {error}", "name another")]
    if not existing.is_dir():
        return [source.fault(place, f"{existing} is a file", "name a directory")]
    kind = file_system_of(existing)
    here = is_here(topology, topology.main_host, started)
    if kind in KERNEL_FILE_SYSTEMS or (here and not os.access(existing, os.W_OK | os.X_OK)):
        why = f"its file system ({kind}) holds no files" if kind in KERNEL_FILE_SYSTEMS else "you may not write there"
        return [source.fault(place, f"{existing} takes no files: {why}", "name another directory")]
    keeper = topology.journal_host
    if kind in NETWORK_FILE_SYSTEMS and (keeper is None or started in {None, keeper}):
        message = f"{directory} is on a network file system ({kind}), which cannot hold the journal"
        remedy = "name a directory on a local disk; weights and other files of the run may be shared (docs/clusters.md)"
        return [source.fault(place, message, remedy)]
    return []
