"""Remove what a run has put outside its run directory, however its processes end.

Directories for sockets, the sandbox and fetched weights are named ``agent-rl.*`` and are in the folder for temporary
files or in shared memory. Each process that uses such a directory holds a shared lock on it, which the kernel releases
when the process ends. A directory that nobody holds a lock on is stale. Stale directories are removed by the next start
of any run, by the end of any run, and by the janitor. Control groups are removed with the directory that has links to
them.

The janitor is a small process of each supervisor. The janitor outlives the supervisor, kills the remaining process
groups of the actors and removes stale directories. After an orderly end it has nothing to do. Only if supervisor *and*
janitor are killed, a directory stays until the next run of this user.

This file uses the standard library only, since the janitor runs it as a script.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "agent-rl."
JANITOR_SECONDS = 5.0
"""How long an orderly end waits for the janitor to end."""
DYING_SECONDS = 30.0
"""How long the janitor waits for a dying process, which still holds its locks."""
GROUP_SECONDS = 5.0
"""How long the processes of a control group may take to end after they were killed."""
DISMISSED = ".\n"


class Unsafe(Exception):  # noqa: N818 - named for what it is
    """A directory of this name exists that other users own or can access."""


class Claim:
    """A shared lock on a directory, held until ``release`` or the end of the process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Let go of the lock."""
        os.close(self._descriptor)


def claim(directory: Path) -> Claim:
    """Create the directory, accessible to its owner only, if it does not exist, and lock it. Raises Unsafe."""
    while True:
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=0o700)
        try:
            status = directory.lstat()
        except FileNotFoundError:  # another process took it for stale, and has swept it
            continue
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            remedy = "remove it, or set TMPDIR to a folder of yours for the run and all commands about it"
            raise Unsafe(f"{directory} is not a directory of yours alone; {remedy}")
        lock = _hold(directory)
        if lock is not None:
            return lock


def claimed_directory(kind: str, base: Path | None = None) -> tuple[Path, Claim]:
    """A new directory in ``base`` (None: where temporary files go), which is stale once this process releases it."""
    while True:
        directory = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{kind}-", dir=base))
        lock = _hold(directory)
        if lock is not None:
            return directory, lock


@contextlib.contextmanager
def temporary_directory(kind: str) -> Iterator[Path]:
    """A claimed directory for the duration of the context. If this process is killed, a sweep removes it."""
    directory, held = claimed_directory(kind)
    try:
        yield directory
    finally:
        with contextlib.suppress(RecursionError):  # a program may leave more folders in each other than Python removes
            remove_tree(directory)
        held.release()


def _hold(directory: Path) -> Claim | None:
    """Lock an existing directory; None when another process has removed it."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    try:
        if os.path.samestat(os.fstat(descriptor), directory.lstat()):
            return Claim(descriptor)
    except FileNotFoundError:
        pass
    os.close(descriptor)
    return None


def sweep() -> list[Path]:
    """Remove this user's stale directories; return them."""
    bases = {tempfile.gettempdir(), "/tmp", "/dev/shm"}  # noqa: S108
    directories = {path for base in bases for path in Path(base).glob(f"{PREFIX}*")}
    return [path for path in sorted(directories) if sweep_one(path)]


def sweep_one(directory: Path) -> bool:
    """Remove a directory if it is stale and belongs to this user; return whether it was removed."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # gone, a link, a file, or another user's
        return False
    try:
        if os.fstat(descriptor).st_uid != os.getuid():
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if any(path.is_socket() and listens(path) for path in directory.iterdir()):
            return False  # a process was left behind: the next run must report it
        if not remove_groups(directory):
            return False
        remove_tree(directory)
    except OSError as error:
        gone = errno.ENOENT  # another process has swept it meanwhile
        if error.errno not in {errno.EWOULDBLOCK, errno.EACCES, errno.ENOTSUP, errno.ENOLCK, gone}:
            raise
        return False
    finally:
        os.close(descriptor)
    return not directory.exists()


def listens(path: Path, patience: float = 0.0) -> bool:
    """Whether a process listens at a Unix socket and still does after ``patience`` seconds."""
    deadline = time.monotonic() + patience
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
            while select.select([probe], [], [], max(0.0, deadline - time.monotonic()))[0]:
                if not probe.recv(1 << 12):  # the connection ends with the process, which may send something before
                    return False
        except BlockingIOError:  # the backlog is full, so a process listens
            return True
        except OSError:
            return False
    return True


def remove_tree(directory: Path) -> None:
    """Remove a directory, whatever permissions its content has."""
    shutil.rmtree(directory, ignore_errors=True)
    if os.path.lexists(directory):
        for _, names, _, parent in os.fwalk(directory):
            for name in names:
                try:  # not by its path: a process left running may replace it with a link at any time
                    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY, dir_fd=parent)
                except OSError:  # a link, or gone
                    continue
                Path(f"/proc/self/fd/{fd}").chmod(0o700)
                os.close(fd)
        shutil.rmtree(directory, ignore_errors=True)


def remove_groups(directory: Path) -> bool:
    """Remove the control groups that links in ``directory`` name, with their processes; return whether all are gone."""
    links = [path for path in directory.iterdir() if path.is_symlink()]
    groups = {path.readlink() for path in links}
    removed = [remove_group(group) for group in groups if group.name.startswith(PREFIX)]
    return all(removed)


def remove_group(group: Path) -> bool:
    """Remove a control group and its subgroups, and kill their processes; return whether the group is gone."""
    deadline = time.monotonic() + GROUP_SECONDS
    while (group / "cgroup.procs").exists():  # otherwise the group is gone, or the folder is no control group
        below = [Path(path) for path, _, _ in os.walk(group, topdown=False)][:-1]
        pids = [pid for one in (group, *below) for pid in _members(one)]
        try:
            for one in (*below, group):
                one.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY or not any(pids) or time.monotonic() > deadline:
                return False
        for pid in filter(None, pids):  # 0: of another PID namespace
            with contextlib.suppress(ProcessLookupError):
                process = os.pidfd_open(pid)
                try:
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                    select.select([process], [], [], max(0.0, deadline - time.monotonic()))
                finally:
                    os.close(process)
    return True


def _members(group: Path) -> list[int]:
    """The processes in a control group; empty when the group is just removed, is no group, or its parent lists them."""
    try:
        return [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP}:
            return []
        raise


class Janitor:
    """The supervisor's end of the pipe to its janitor, which carries the process groups of the actors."""

    def __init__(self) -> None:
        command = [sys.executable, "-I", "-S", "-B", str(Path(__file__)), str(os.getpid())]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, cwd="/"
        )

    def started(self, group: int) -> None:
        """A process group exists."""
        self._tell(f"+{group}\n")

    def ended(self, group: int) -> None:
        """A process group is gone; its number may be used again."""
        self._tell(f"-{group}\n")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the janitor was killed; the run does not depend on it
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()

    def dismiss(self) -> None:
        """The supervisor ends in order and has cleaned up: wait for the janitor to end."""
        self._tell(DISMISSED)
        try:
            self._process.communicate(timeout=JANITOR_SECONDS)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()


def main() -> None:
    """The janitor: read until the supervisor is gone, then kill its processes and remove its directories."""
    parent = int(sys.argv[1])
    supervisor = _watch(parent)
    if os.getppid() != parent and supervisor is not None:  # the supervisor has ended; its number may be used again
        os.close(supervisor)
        supervisor = None
    groups: set[int] = set()
    for line in sys.stdin:
        if line == DISMISSED:
            return
        if line.endswith("\n"):
            (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    _await(supervisor)  # the pipe may close before the supervisor's locks are released
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    for group in groups:
        _await(_watch(group))
    sweep()


def _watch(pid: int) -> int | None:
    """A descriptor that is readable once the process has ended; None when it has ended, or without pidfd support."""
    if not hasattr(os, "pidfd_open"):  # not Linux
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _await(process: int | None) -> None:
    if process is not None:
        select.select([process], [], [], DYING_SECONDS)
        os.close(process)


if __name__ == "__main__":
    main()
