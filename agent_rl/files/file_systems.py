"""Which file systems a network brings.

A file that is written whole and then renamed, and a lock of a file, are safe on these file systems. What is not safe is
a file that processes map into their memory to share it, as SQLite's write-ahead log does with the index of the log: one
host does not see what another host writes there, so that a reader gets wrong rows, or a second writer damages the file.
"""

from __future__ import annotations

import re
from pathlib import Path

NETWORK_FILE_SYSTEMS = frozenset(
    {
        *("9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs"),
        *("glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "orangefs", "smb", "smb2", "smb3", "smbfs"),
    }
)
"""File systems on which several hosts may have one file open, and map different versions of it into memory."""

MOUNTS = Path("/proc/mounts")


KERNEL_FILE_SYSTEMS = frozenset(
    {
        *("bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "efivarfs", "fusectl", "mqueue", "proc"),
        *("pstore", "securityfs", "selinuxfs", "sysfs", "tracefs"),
    }
)
"""File systems that show the state of the kernel, and hold no files."""


def network_file_system(path: Path) -> str:
    """The type of the network file system that an existing path is on; empty when it is on a local disk."""
    kind = file_system_of(path)
    return kind if kind in NETWORK_FILE_SYSTEMS else ""


def file_system_of(path: Path) -> str:
    """The type of the file system that an existing path is on; empty when it is not known."""
    return file_system(path.resolve(), MOUNTS.read_text(encoding="utf-8")) if MOUNTS.exists() else ""


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
