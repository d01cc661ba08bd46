"""The supervisor's files in the run directory: locks, sockets, why a run ended, and the summary of a finished run."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias

from agent_rl.files.disk import DiskError, whole, writing
from agent_rl.files.leftovers import Unsafe, claim, listens, sweep_one
from agent_rl.files.reading_json import open_file, read_object, read_text

RUN_LOCK = "supervisor.lock"
"""Shared by the supervisors of all hosts of a run; names its main host."""
DYING_SECONDS = 5.0
"""How long the actors may take to end after their supervisor was killed."""


class RunRefused(Exception):  # noqa: N818 - named for what it is
    """The run cannot start; the message says why and what the user can do."""


def is_supervised(directory: Path, host: str) -> bool:
    """Whether a supervisor holds the run directory for this host now."""
    try:
        with open_file(_lock_file(directory, host)) as file:
            return not _locked(file, fcntl.LOCK_SH)
    except OSError:  # there is no such file, or it belongs to another user
        return False


def in_use(directory: Path) -> bool:
    """Whether a supervisor of any host holds the run directory now."""
    names = (path.name for path in directory.glob("supervisor.*.lock"))
    return any(is_supervised(directory, name.removeprefix("supervisor.").removesuffix(".lock")) for name in names)


def _locked(file: IO[bytes], kind: int) -> bool:
    """Try to take the lock; whether it was free."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _refuse_no_locks(path: Path, file: IO[bytes]) -> None:
    """Raises RunRefused on a file system that is mounted without locks."""
    try:
        _locked(file, fcntl.LOCK_SH)
    except OSError as error:
        what = f"{path} cannot be locked ({error.strerror})"
        remedy = "mount its file system with locks (Lustre: -o flock), or name another run.directory"
        raise RunRefused(f"{what}; {remedy}") from error


def _lock_file(directory: Path, host: str) -> Path:
    return directory / f"supervisor.{host}.lock"


def _opened(path: Path, mode: int = 0o666) -> IO[bytes]:
    """A file to lock, made where there is none. Raises RunRefused for a pipe or a device."""
    with writing(path):
        path.touch(mode)
    try:
        open_file(path).close()
    except OSError as error:
        raise RunRefused(f"{path} is no file that can be locked ({error.strerror}); remove it") from error
    with writing(path):
        return path.open("a+b", buffering=0)


@contextlib.contextmanager
def run_lock(directory: Path, hosts: Iterable[str], main_host: str = "") -> Iterator[None]:
    """Lock the run directory for these hosts' supervisor, and for runs with this main host.

    Raises RunRefused, which names the process or the run that holds the lock.
    """
    with writing(directory):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        for host in hosts:
            path = _lock_file(directory, host)
            file = stack.enter_context(_opened(path))
            _refuse_no_locks(path, file)
            until = time.monotonic() + DYING_SECONDS
            while not _locked(file, fcntl.LOCK_EX):
                if not _locked(file, fcntl.LOCK_SH):
                    file.seek(0)
                    holder = file.read().decode(errors="replace").strip() or "unknown"
                    raise RunRefused(f"{directory} is in use by another supervisor (process {holder})")
                if time.monotonic() > until:
                    raise RunRefused(f"another process holds {path}; end it")
                time.sleep(0.01)  # only a shared lock: another process is in is_supervised, which ends in a moment
            with writing(path):
                file.truncate(0)
                file.write(f"{os.getpid()}\n".encode())
        shared = stack.enter_context(_opened(directory / RUN_LOCK, 0o600))
        until = time.monotonic() + DYING_SECONDS
        while time.monotonic() < until:
            if _locked(shared, fcntl.LOCK_EX):  # no other host's supervisor is there
                shared.truncate(0)
                shared.write(main_host.encode())
            if _locked(shared, fcntl.LOCK_SH):
                break
            time.sleep(0.01)
        else:
            raise RunRefused(f"another process holds {directory / RUN_LOCK}; end it")
        shared.seek(0)
        if (other := shared.read().decode(errors="replace")) != main_host:
            remedy = "stop it, or name another run.directory"
            raise RunRefused(f"{directory} is in use by another run, whose main host is {other!r}; {remedy}")
        yield


@contextlib.contextmanager
def socket_directory(directory: Path, sockets: Iterable[str]) -> Iterator[None]:
    """Make the directory of a run's Unix sockets, accessible to its owner only.

    On exit the sockets are removed, and the directory too if no other supervisor has sockets there. ``sockets`` are
    addresses; only ``ipc://`` addresses count. Raises RunRefused when the directory belongs to another user, or when
    a living process listens at one of the sockets.
    """
    files = [Path(address.removeprefix("ipc://")) for address in sockets if address.startswith("ipc://")]
    if not files:
        yield
        return
    try:
        held = claim(directory)
    except Unsafe as error:
        raise RunRefused(str(error)) from None
    try:
        for file in files:
            if listens(file, DYING_SECONDS):
                remedy = "end it (it may be an actor of an earlier start), or choose another run.directory"
                raise RunRefused(f"a living process listens at {file}: {remedy}")
            file.unlink(missing_ok=True)
        try:
            yield
        finally:
            for file in files:
                file.unlink(missing_ok=True)
    finally:
        held.release()
        sweep_one(directory)


SummaryFile: TypeAlias = tuple[int, int]
"""Inode number, which every new summary changes, and time of change in ns."""


def summary_file(directory: Path) -> SummaryFile | None:
    """Identify the present summary; None when there is none."""
    try:
        found = (directory / "summary.json").stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


END = "end.json"
"""Says why the newest start of the run stopped early. It is missing while a run is under way and after success."""


def record_end(directory: Path, exit_code: int, reason: str) -> None:
    """Store why the run was stopped, for summary and report. Raises DiskError."""
    with whole(directory / END) as partial:
        partial.write_text(json.dumps({"exit_code": exit_code, "reason": reason}) + "\n", encoding="utf-8")


def read_end(directory: Path) -> str:
    """Why the newest start of the run was stopped; empty when that is not known or nothing was wrong."""
    reason = (read_object(directory / END) or {}).get("reason")
    return reason if isinstance(reason, str) else ""


MEMORY_KILLS = "memory_kills.json"
"""Says how often the kernel killed the process of each actor for lack of memory, in all starts of the run."""


def record_memory_kill(directory: Path, actor: str) -> None:
    """Count a kill of an actor's process, for summary and report. Raises DiskError."""
    kills = read_memory_kills(directory)
    with whole(directory / MEMORY_KILLS) as partial:
        partial.write_text(json.dumps({**kills, actor: kills.get(actor, 0) + 1}) + "\n", encoding="utf-8")


def read_memory_kills(directory: Path) -> dict[str, int]:
    """The kills for lack of memory by actor; empty where none is recorded."""
    kills = read_object(directory / MEMORY_KILLS) or {}
    return {name: count for name, count in kills.items() if type(count) is int}


def memory_kills_in_words(kills: Mapping[str, int]) -> str:
    """A sentence for summary and report."""
    killed = ", ".join(f"{name} ({count:,} time{'' if count == 1 else 's'})" for name, count in sorted(kills.items()))
    return (
        f"the kernel killed {killed} for lack of memory: give the host or its control group more, or take less "
        "(`agent-rl check` prints the memory plan)"
    )


def add_end(directory: Path, summary: dict[str, Any], reason: str) -> dict[str, Any]:
    """Add the reason why the run was stopped to the summary, and to its file unless the disk is full."""
    summary = {**summary, "stopped": reason}
    with contextlib.suppress(DiskError), whole(directory / "summary.json") as partial:
        partial.write_text(json.dumps(summary) + "\n", encoding="utf-8")
    return summary


def read_summary(directory: Path, before: SummaryFile | None) -> dict[str, Any] | None:
    """The summary that this run wrote: figures by name. None when there is none, it is damaged or still ``before``."""
    return None if summary_file(directory) == before else read_object(directory / "summary.json")


RESTARTS = 1 << 20
"""An upper bound of an actor's restarts in one start. With it, an incarnation fits an int64."""


def next_start(directory: Path, hosts: Sequence[str], wall: Callable[[], float] = time.time) -> int:
    """Number a new start of these hosts' supervisor, and store the number. The caller holds the run's lock.

    Where a stopped disk has left no number, the file's time of change counts: the number was about that time.
    Raises RunRefused when there is no file that can be read.
    """
    files = [directory / f"starts.{host}" for host in hosts]
    start = max(int(wall()), *(_last_start(file) + 1 for file in files))
    for file in files:
        with whole(file) as partial:
            partial.write_text(f"{start}\n")
    return start


def _last_start(file: Path) -> int:
    try:
        start = int(read_text(file, 4096)[:20])
        if start * RESTARTS < 1 << 63:
            return start
    except FileNotFoundError:
        return 0
    except ValueError:
        pass
    except OSError as error:
        raise RunRefused(f"{file} cannot be read ({error.strerror}); it holds the number of a start") from error
    return int(file.stat().st_mtime)


def is_first(incarnation: int) -> bool:
    """Whether this is the actor's first process in this start."""
    return incarnation % RESTARTS == 0


def read_epoch() -> float:
    """The seconds since the epoch at which the monotonic clock was 0. All processes of a machine share that clock."""
    return time.time() - time.monotonic()


def run_clock(epoch: float) -> Callable[[], float]:
    """A clock of seconds since the epoch. A start has one ``epoch``, so that setting the clock has no effect."""
    return lambda: time.monotonic() + epoch
