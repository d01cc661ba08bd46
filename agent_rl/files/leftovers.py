"""What a run puts outside its directory, and how nothing of it stays behind, however its processes end.

Directories for sockets, the sandbox and fetched weights are named ``agent-rl.*``, where temporary files go or in shared memory. Whoever uses one holds a shared
lock on it, which the kernel lets go of when the holder ends, so a directory whose lock can be had alone is nobody's: it is swept
by the next start of any run, by the end of any run, and by the janitor. Control groups are swept with the directory that has links to them.

The janitor is a small process of each supervisor's own: it outlives the supervisor, kills what is left of the actors'
process groups and sweeps. Nothing remains for it to do after an orderly end. Only if supervisor *and* janitor are
killed does a directory wait for the next run of this user.

Standard library only: the janitor runs this file by itself.
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
from pathlib import Path

PREFIX = "agent-rl."
JANITOR_SECONDS = 5.0
"""How long an orderly end waits for the janitor to see that there is nothing to do."""
DYING_SECONDS = 30.0
"""How long the janitor waits for a process that is dying to be gone, and its locks with it."""
GROUP_SECONDS = 5.0
"""How long what is in a control group may take to end once it is killed."""
DISMISSED = ".\n"


class Unsafe(Exception):  # noqa: N818 - named for what it is
    """A directory is in the way that is not this user's alone."""


class Claim:
    """A shared lock on a directory, held until ``release`` or the end of the process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Let go of the lock."""
        os.close(self._descriptor)


def claim(directory: Path) -> Claim:
    """Make the directory, for its owner alone, unless it is there, and hold it. Raises Unsafe."""
    while True:
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=0o700)
        found = directory.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise Unsafe(f"{directory} is not a directory of yours alone; remove it")
        held = _hold(directory)
        if held is not None:
            return held


def claimed_directory(kind: str) -> tuple[Path, Claim]:
    """A new directory for temporary files, swept once this process no longer holds it."""
    while True:
        directory = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{kind}-"))
        held = _hold(directory)
        if held is not None:
            return directory, held


def _hold(directory: Path) -> Claim | None:
    """Lock an existing directory; None when somebody swept it meanwhile."""
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
    """Remove this user's directories that nobody holds; those removed."""
    bases = {tempfile.gettempdir(), "/tmp", "/dev/shm"}  # noqa: S108
    found = {path for base in bases for path in Path(base).glob(f"{PREFIX}*")}
    return [path for path in sorted(found) if sweep_one(path)]


def sweep_one(directory: Path) -> bool:
    """Remove a directory unless somebody holds it, or it is not this user's; whether it was removed."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # gone, a link, a file, or another user's
        return False
    try:
        if os.fstat(descriptor).st_uid != os.getuid():
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if any(path.is_socket() and listens(path) for path in directory.iterdir()):
            return False  # a process was left behind: whoever needs its place must hear of it
        if not remove_groups(directory):
            return False
        remove_tree(directory)
    except OSError as error:
        if error.errno not in {errno.EWOULDBLOCK, errno.EACCES, errno.ENOTSUP, errno.ENOLCK}:
            raise
        return False
    finally:
        os.close(descriptor)
    return not directory.exists()


def listens(path: Path, patience: float = 0.0) -> bool:
    """Whether a living process listens at a Unix socket, and does not end within ``patience`` seconds."""
    deadline = time.monotonic() + patience
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
            while select.select([probe], [], [], max(0.0, deadline - time.monotonic()))[0]:
                if not probe.recv(1 << 12):  # the connection ends with the process; before, it may say something
                    return False
        except BlockingIOError:  # its backlog is full: there is one
            return True
        except OSError:
            return False
    return True


def remove_tree(directory: Path) -> None:
    """Remove a directory, whatever was made of the permissions of what is in it."""
    shutil.rmtree(directory, ignore_errors=True)
    if os.path.lexists(directory):
        for _, names, _, parent in os.fwalk(directory):
            for name in names:
                try:  # not by its path: what has been left running may put a link in its place at any time
                    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY, dir_fd=parent)
                except OSError:  # a link, or gone
                    continue
                Path(f"/proc/self/fd/{fd}").chmod(0o700)
                os.close(fd)
        shutil.rmtree(directory, ignore_errors=True)


def remove_groups(directory: Path) -> bool:
    """Remove the control groups that links in ``directory`` name, with all that is in them; whether they are gone."""
    links = [path for path in directory.iterdir() if path.is_symlink()]
    groups = {path.readlink() for path in links}
    removed = [remove_group(group) for group in groups if group.name.startswith(PREFIX)]
    return all(removed)


def remove_group(group: Path) -> bool:
    """Remove a control group with those below it, and kill what is in them; whether it is gone."""
    deadline = time.monotonic() + GROUP_SECONDS
    while (group / "cgroup.procs").exists():  # else it is gone, or is no control group
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
    """The processes in a control group; none where it goes at this moment, or is no control group, or its parent counts them."""
    try:
        return [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP}:
            return []
        raise


class Janitor:
    """The supervisor's end of its janitor: a pipe over which it learns which process groups there are."""

    def __init__(self) -> None:
        command = [sys.executable, "-I", "-S", "-B", str(Path(__file__)), str(os.getpid())]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, cwd="/"
        )

    def started(self, group: int) -> None:
        """A process group exists."""
        self._tell(f"+{group}\n")

    def ended(self, group: int) -> None:
        """A process group is gone, and its number may become another's."""
        self._tell(f"-{group}\n")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # somebody killed it: the run can do without
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()

    def dismiss(self) -> None:
        """The supervisor ends in good order, and cleans up itself: wait for the janitor to end too."""
        self._tell(DISMISSED)
        try:
            self._process.communicate(timeout=JANITOR_SECONDS)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()


def main() -> None:
    """What the janitor does: read until the supervisor is gone, then end and remove what it left."""
    parent = int(sys.argv[1])
    supervisor = _watch(parent)
    if os.getppid() != parent and supervisor is not None:  # it has ended already, and the number may be another's
        os.close(supervisor)
        supervisor = None
    groups: set[int] = set()
    for line in sys.stdin:
        if line == DISMISSED:
            return
        if line.endswith("\n"):
            (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    _await(supervisor)  # the pipe may close before its locks
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    for group in groups:
        _await(_watch(group))
    sweep()


def _watch(pid: int) -> int | None:
    """A descriptor that is readable once the process has ended; None when it has, or where there is no such thing."""
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
