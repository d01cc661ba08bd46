"""What the supervisor keeps on disk beside the journal: locks, sockets, logs, and the summary of a finished run."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, TypeAlias

from agent_rl.files.disk import DiskError, whole, writing
from agent_rl.files.leftovers import Unsafe, claim, listens, sweep_one
from agent_rl.files.reading_json import read_json

DYING_SECONDS = 5.0
"""How long the actors of a supervisor that was just killed may take to die with it."""


class RunRefused(Exception):  # noqa: N818 - named for what it is
    """The run cannot start, for a reason the user can mend; the message says which."""


def is_supervised(directory: Path, host: str) -> bool:
    """Whether a supervisor holds the run directory for this host now."""
    try:
        with _lock_file(directory, host).open("rb") as file:
            return not _locked(file, fcntl.LOCK_SH)
    except OSError:  # there is no such file, or it is another user's
        return False


def in_use(directory: Path) -> bool:
    """Whether a supervisor of any host holds the run directory now."""
    hosts = (
        path.name.removeprefix("supervisor.").removesuffix(".lock") for path in directory.glob("supervisor.*.lock")
    )
    return any(is_supervised(directory, host) for host in hosts)


def _locked(file: IO[bytes], kind: int) -> bool:
    """Whether the lock could be had at once."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_file(directory: Path, host: str) -> Path:
    return directory / f"supervisor.{host}.lock"


@contextlib.contextmanager
def run_lock(directory: Path, hosts: Iterable[str]) -> Iterator[None]:
    """Hold the run directory for these hosts' supervisor. Raises RunRefused, naming the process that holds it."""
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        for host in hosts:
            path = _lock_file(directory, host)
            with writing(path):
                file = stack.enter_context(path.open("a+b", buffering=0))
            while not _locked(file, fcntl.LOCK_EX):
                if not _locked(file, fcntl.LOCK_SH):
                    file.seek(0)
                    holder = file.read().decode().strip() or "unknown"
                    raise RunRefused(f"{directory} is in use by another supervisor (process {holder})")
                # Somebody asks is_supervised, which takes a moment.
            with writing(path):
                file.truncate(0)
                file.write(f"{os.getpid()}\n".encode())
        yield


@contextlib.contextmanager
def socket_directory(directory: Path, sockets: Iterable[str]) -> Iterator[None]:
    """Make the directory of a run's Unix sockets, for its owner alone.

    Afterwards these sockets are removed, and the directory if no other supervisor has its own in it. ``sockets`` are
    addresses; those that are not ``ipc://`` are passed over. Raises RunRefused when someone else's directory is in the
    way, or when a living process listens at one of the sockets.
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
                remedy = "an actor of this run that was left behind? end it, or choose another run.directory"
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
"""Number on the disk, which each summary that is written whole has of its own, and time of change in ns."""


def summary_file(directory: Path) -> SummaryFile | None:
    """Which file the summary is now; None: there is none."""
    try:
        found = (directory / "summary.json").stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


END = "end.json"
"""Why the newest start of the run ended before its recipe did; there is none while it runs, or when nothing was wrong."""


def record_end(directory: Path, exit_code: int, reason: str) -> None:
    """Leave why the run was stopped, for summary and report. Raises DiskError."""
    with whole(directory / END) as partial:
        partial.write_text(json.dumps({"exit_code": exit_code, "reason": reason}) + "\n", encoding="utf-8")


def read_end(directory: Path) -> str:
    """Why the newest start of the run was stopped; empty when nothing was wrong, or nobody could say."""
    try:
        end = read_json(directory / END)
    except (OSError, ValueError):
        return ""
    reason = end.get("reason") if isinstance(end, dict) else None
    return reason if isinstance(reason, str) else ""


def add_end(directory: Path, summary: dict[str, Any], reason: str) -> dict[str, Any]:
    """The summary with why the run was stopped; on disk too, if the disk takes it."""
    summary = {**summary, "stopped": reason}
    with contextlib.suppress(DiskError), whole(directory / "summary.json") as partial:
        partial.write_text(json.dumps(summary) + "\n", encoding="utf-8")
    return summary


def read_summary(directory: Path, before: SummaryFile | None) -> dict[str, Any] | None:
    """The summary this run wrote, a flat table of figures by name; None when it is the file it was ``before``, or there is none."""
    file = directory / "summary.json"
    try:
        if summary_file(directory) == before:
            return None
        summary = read_json(file)
    except FileNotFoundError:
        return None
    return summary if isinstance(summary, dict) else None
