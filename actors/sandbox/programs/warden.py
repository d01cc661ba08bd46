"""Runs one program, then looks at what it left, and tells its owner. Standard library alone.

::

    owner <--control--> warden --fork--> the program ... --fork--> the check
             ready (and the jail's listening socket)
             <-- stop, or the end of the owner
             result: status, files, check

In a jail the warden is process 1, so that nothing outlives it, and files are read where their links lead nowhere else.
Without a jail the program is a plain process, with all that it starts in its group.
"""

# A process 1 stays small:
# ruff: noqa: PTH101, PTH103, PTH106, PTH108, PTH113, PTH118, PTH120, PTH123, PTH207

from __future__ import annotations

import contextlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from glob import iglob
from typing import Any

MOST_DESCRIPTORS = 4096
FILE_BYTES, FILES_BYTES, MOST_FILES = 64 * 1024, 1024 * 1024, 256
"""Of collected files: of one, of all, and their number."""
CHECK_BYTES = 16 * 1024
"""The end of a check's output that is kept."""


class Warden:
    """Of one program. ``jailed``: this is process 1 of a jail."""

    def __init__(self, control: socket.socket, *, jailed: bool) -> None:
        self._control, self._jailed = control, jailed
        self._woken, wakes = os.pipe()
        for end in (self._woken, wakes):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wakes)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.stopped = False

    def tell(self, told: Mapping[str, Any], listener: socket.socket | None = None) -> None:
        """A line to the owner."""
        line = json.dumps(told).encode() + b"\n"
        if listener is not None:
            socket.send_fds(self._control, [line], [listener.fileno()])
        else:
            self._control.sendall(line)

    def run(self, begin: Callable[[], None], output: int, folder: str, seconds: float) -> str:
        """How a process ended, which becomes what ``begin`` does; all that it has started is ended too."""
        child = os.fork()
        if child == 0:
            _become(begin, output, folder)
        status, until = "", time.monotonic() + seconds
        while not status and not self.stopped:
            left = until - time.monotonic()
            if left <= 0:
                status = f"no end within {seconds:g} s"
                break
            status = self._wait(child, left)
        self._end_all(child)
        return status or "stopped"

    def _wait(self, child: int, seconds: float) -> str:
        """The status of the child, if it has ended by the next event."""
        control = self._control.fileno()
        readable, _, _ = select.select([self._woken, control], [], [], seconds)
        if control in readable:  # the owner wants an end, or has ended itself
            self.stopped = True
            if not self._control.recv(64):
                self._end_all(child)
                os._exit(1)
        if self._woken in readable:
            os.read(self._woken, 4096)
        return self._reaped(child)

    @staticmethod
    def _reaped(child: int) -> str:
        status = ""
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == child:
                    code = os.waitstatus_to_exitcode(found[1])
                    status = f"status {code}" if code >= 0 else signal.Signals(-code).name
        return status

    def _end_all(self, child: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(-1, signal.SIGKILL) if self._jailed else os.killpg(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)


def _become(begin: Callable[[], None], output: int, folder: str) -> None:
    """In the fork: a session of its own, ``output`` for all that is written, and nothing else that is open."""
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for target, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, output)):
            os.dup2(source, target)
        os.closerange(3, MOST_DESCRIPTORS)
        os.chdir(folder)
        begin()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - whatever a program ends with
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def program(argv: Sequence[str], variables: Mapping[str, str], script: str | None) -> Callable[[], None]:
    """To become the program ``argv``, or the ``script`` that is loaded, with these arguments."""

    def begin() -> None:
        if script is not None:
            os.environ.clear()
            os.environ.update(variables)
            sys.argv = [script, *argv]
            runpy.run_path(script, run_name="__main__")
            return
        try:
            os.execvpe(argv[0], list(argv), dict(variables))  # noqa: S606 - what it is for
        except OSError as error:
            raise SystemExit(_not_started(argv[0], error)) from None

    return begin


def _not_started(name: str, error: OSError) -> int:
    os.write(2, f"{name!r} cannot be started: {error.strerror}; write its path in the topology\n".encode())
    return 127


def write_files(folder: str, files: Mapping[str, str]) -> None:
    """Write texts by path. Raises OSError."""
    for name, content in files.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)


def collected(folder: str, patterns: Sequence[str]) -> dict[str, str]:
    """The texts of the regular files that the patterns match, by path, as much of them as is allowed."""
    found: dict[str, str] = {}
    left = FILES_BYTES
    for pattern in patterns:
        for name in sorted(iglob(pattern, root_dir=folder, recursive=True)):
            if left <= 0 or len(found) == MOST_FILES:
                return found
            with contextlib.suppress(OSError):
                fd = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                with open(fd, "rb") as file:
                    if os.path.isfile(f"/proc/self/fd/{fd}"):
                        text = file.read(min(FILE_BYTES, left))
                        left -= len(text)
                        found[name] = text.decode(errors="replace")
    return found


def guard(asked: Mapping[str, Any], output: int, warden: Warden, script: str | None) -> None:
    """Run the program of a rollout, collect its files, run the check, and tell the result."""
    folder = asked["folder"]
    for each in (folder, asked["tests"], asked["logs"]):
        os.makedirs(each, exist_ok=True)
    write_files(folder, asked["files"])
    begin = program(asked["argv"], asked["env"], script)
    status = warden.run(begin, output, folder, asked["seconds"])
    os.close(output)
    told: dict[str, Any] = {"status": status}
    if asked["check"]:
        warden.stopped = False
        told["check"] = _checked(asked, warden)
    told["files"] = collected(folder, asked["collect"])
    warden.tell(told)


def _checked(asked: Mapping[str, Any], warden: Warden) -> dict[str, str]:
    for folder in (asked["tests"], asked["logs"]):
        _empty(folder)  # of what the program has put there
    write_files(asked["tests"], asked["check_files"])
    path = os.path.join(asked["logs"], ".check")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND
    with open(os.open(path, flags, 0o600), "rb") as file:
        begin = program(asked["check"], asked["env"], None)
        status = warden.run(begin, file.fileno(), asked["folder"], asked["check_seconds"])
        file.seek(max(0, os.fstat(file.fileno()).st_size - CHECK_BYTES))
        text = file.read(CHECK_BYTES).decode(errors="replace")
    return {"status": status, "output": text, "reward": _reward(asked["logs"])}


def _empty(folder: str) -> None:
    """Remove all that is in a folder, whatever its rights are."""
    os.chmod(folder, 0o700)
    with os.scandir(folder) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                _empty(entry.path)
                os.rmdir(entry.path)
            else:
                os.unlink(entry.path)


def _reward(logs: str) -> str:
    """What a check of Harbor's format has written for the reward."""
    for name in ("verifier/reward.json", "verifier/reward.txt"):
        if text := collected(logs, [name]).get(name):
            return text
    return ""
