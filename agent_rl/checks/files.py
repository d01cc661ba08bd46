"""Check that a topology's files exist, and that the run directory is on a disk that can hold a journal."""

from __future__ import annotations

import re
import shlex
from glob import glob
from os.path import normpath
from pathlib import Path

from agent_rl.config.source import Fault, Source
from agent_rl.config.topology import RlStage, SftStage, Topology
from agent_rl.rollout.chat_templates import OURS, template_file

NETWORK_FILE_SYSTEMS = frozenset(
    {
        *("9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs"),
        *("glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "orangefs", "smb", "smb2", "smb3", "smbfs"),
    }
)
"""File systems whose locks or shared memory SQLite's write-ahead log cannot rely on."""


def file_faults(topology: Topology, path: Path, source: Source) -> list[Fault]:
    """Missing files of conversations, templates or id lists; a run directory that is no local directory."""
    faults = []
    for index, stage in enumerate(topology.stages):
        ids = stage.filter.ids if isinstance(stage, RlStage) else None
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
    faults += _directory_faults(topology, source)
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


def _directory_faults(topology: Topology, source: Source) -> list[Fault]:
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
    mounts = Path("/proc/mounts")
    kind = file_system(existing, mounts.read_text(encoding="utf-8")) if mounts.exists() else ""
    if kind in NETWORK_FILE_SYSTEMS:
        message = f"{directory} is on a network file system ({kind}), which cannot hold the journal"
        return [source.fault(place, message, "name a directory on a local disk")]
    return []


def file_system(path: Path, mounts: str) -> str:
    """The type of the file system an absolute path is on, by the text of ``/proc/mounts``; empty when none is known."""
    best, kind = -1, ""
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        # The kernel writes blanks and backslashes of a mount point in octal.
        point = Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[1]))
        # Of two mounts on one point, the later hides the earlier.
        if (path == point or point in path.parents) and len(point.parts) >= best:
            best, kind = len(point.parts), fields[2]
    return kind
