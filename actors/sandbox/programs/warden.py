"""Runs one program, then looks at what it left, and tells its owner. Standard library alone.

::

    owner <--control--> warden --fork--> the program ... --fork--> the check
             ready (and the jail's listening socket)
             <-- what to run
             <-- stop, or the end of the owner
             ended
             <-- the check, which no program sees before
             result: status, files, check

In a jail the warden is process 1, so that nothing outlives it, and files are read where their links lead nowhere else.
Without a jail the program is a plain process, with all that it starts in its group.
"""

# A process 1 stays small:
# ruff: noqa: PTH101, PTH102, PTH103, PTH106, PTH108, PTH114, PTH118, PTH120, PTH123

from __future__ import annotations

import contextlib
import json
import os
import runpy
import select
import signal
import socket
import stat
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from actors.sandbox.isolation import kernel

MOST_DESCRIPTORS = 4096
FILE_BYTES, FILES_BYTES, MOST_FILES = 64 * 1024, 1024 * 1024, 256
"""Of collected files: of one, of all, and their number."""
MOST_ENTRIES, DEPTH = 20_000, 32
"""Entries that are looked at for this, and folders within each other."""
CHECK_BYTES = 16 * 1024
"""The end of a check's output that is kept."""


class Warden:
    """Of one program. ``jailed``: this is process 1 of a jail."""

    def __init__(self, control: socket.socket, *, jailed: bool) -> None:
        self._control, self._jailed = control, jailed
        self._woken, wakes = os.pipe()
        for end in (self._woken, wakes):
            os.set_blocking(end, False)
        if jailed:  # what has no handler in process 1 is lost on it, as all that a program sends
            for each in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(each, signal.SIG_DFL)
        signal.set_wakeup_fd(wakes)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._data = b""
        self._heard: list[dict[str, Any]] = []

    def tell(self, told: Mapping[str, Any], listener: socket.socket | None = None) -> None:
        """A line to the owner."""
        line = json.dumps(told).encode() + b"\n"
        if listener is not None:
            socket.send_fds(self._control, [line], [listener.fileno()])
        else:
            self._control.sendall(line)

    def wanted(self) -> dict[str, Any]:
        """The next thing that the owner asks for, but for stops, which come too late."""
        while True:
            while self._heard:
                if "stop" not in (found := self._heard.pop(0)):
                    return found
            self._hear()

    def _hear(self) -> None:
        """Wait for the owner. When it has ended, so does the warden, and with process 1 all that is in the jail."""
        data = self._control.recv(1 << 20)
        if not data:
            os._exit(1)
        *lines, self._data = (self._data + data).split(b"\n")
        self._heard += map(json.loads, lines)

    def _hear_or_end(self, child: int) -> None:
        """As `_hear`; without a jail a program does not end with its warden."""
        if not self._control.recv(1, socket.MSG_PEEK):
            self._end_all(child)
        self._hear()

    def run(self, begin: Callable[[], None], output: int, folder: str, seconds: float, *, stops: bool = True) -> str:
        """How a process ended, which becomes what ``begin`` does; all that it has started is ended too.

        ``stops``: the owner may stop it.
        """
        child = os.fork()
        if child == 0:
            _become(begin, output, folder)
        status, until = "", time.monotonic() + seconds
        while not status:
            left = until - time.monotonic()
            if stops and any("stop" in each for each in self._heard):
                status = "stopped"
            elif left <= 0:
                status = f"no end within {seconds:g} s"
            else:
                status = self._wait(child, left)
        self._end_all(child)
        return status

    def _wait(self, child: int, seconds: float) -> str:
        """The status of the child, if it has ended by the next event."""
        control = self._control.fileno()
        readable, _, _ = select.select([self._woken, control], [], [], seconds)
        if control in readable:
            self._hear_or_end(child)
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
                    status = f"status {code}" if code >= 0 else _signal_name(-code)
        return status

    def _end_all(self, child: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(-1, signal.SIGKILL) if self._jailed else os.killpg(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # one of real time
        return f"signal {number}"


def _become(begin: Callable[[], None], output: int, folder: str) -> None:
    """In the fork: a session of its own, ``output`` for all that is written, and nothing else that is open."""
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for each in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(each, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for target, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, output)):
            os.dup2(source, target)
        os.closerange(3, MOST_DESCRIPTORS)
        os.chdir(folder)
        kernel.control(kernel.PR_SET_DUMPABLE, 1)  # it may look at itself, as after an exec
        begin()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            sys.stderr.write(f"{ended.code}\n")  # as Python does
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
    """The texts of the regular files that a pattern matches, by path, as much of them as is allowed. No link counts."""
    found: dict[str, str] = {}
    left, wanted = FILES_BYTES, [pattern.split("/") for pattern in patterns]
    for name in _names(folder):
        if left <= 0 or len(found) == MOST_FILES:
            break
        if any(matches(name.split("/"), each) for each in wanted):
            with contextlib.suppress(OSError):
                fd = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                with open(fd, "rb") as file:
                    if stat.S_ISREG(os.fstat(fd).st_mode):
                        text = file.read(min(FILE_BYTES, left))
                        left -= len(text)
                        found[name.encode(errors="replace").decode()] = text.decode(errors="replace")
    return found


def _names(folder: str) -> list[str]:
    """The files below a folder by path, in order."""
    found: list[str] = []
    entries = 0
    for at, folders, files in os.walk(folder):
        place = os.path.relpath(at, folder)
        depth = 0 if place == "." else place.count("/") + 1
        entries += len(folders) + len(files)
        found += [name if place == "." else f"{place}/{name}" for name in files]
        if depth >= DEPTH:
            folders.clear()
        if entries > MOST_ENTRIES:
            break
    return sorted(found)


def matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether the parts of a path are as those of a pattern, in which ``**`` is any number of them."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(matches(parts[count:], pattern[1:]) for count in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and matches(parts[1:], pattern[1:])


def guard(output: int, warden: Warden, script: str | None) -> None:
    """Run the program of a rollout, run the check, collect files, and tell the result."""
    asked = warden.wanted()
    folder = asked["folder"]
    for each in (folder, asked["tests"], asked["logs"]):
        os.makedirs(each, exist_ok=True)
    write_files(folder, asked["files"])
    begin = program(asked["argv"], asked["env"], script)
    told: dict[str, Any] = {"status": warden.run(begin, output, folder, asked["seconds"])}
    os.close(output)
    warden.tell({"ended": True})
    wanted = warden.wanted()
    try:
        if wanted["check"]:
            told["check"] = _checked({**asked, **wanted}, warden)
    except (OSError, RecursionError) as error:  # of what the program has left
        told["check"] = {"status": f"not run: {error}", "output": "", "reward": ""}
    told["files"] = collected(folder, asked["collect"])
    warden.tell(told)


def _checked(asked: Mapping[str, Any], warden: Warden) -> dict[str, str]:
    for folder in (asked["tests"], asked["logs"]):
        _empty(folder)  # of what the program has put there
    os.chmod(asked["folder"], 0o700)
    write_files(asked["tests"], asked["check_files"])
    path = os.path.join(asked["logs"], ".check")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND
    variables = {**asked["env"], "HOME": asked["tests"], "PYTHONNOUSERSITE": "1"}  # the program's home may hold traps
    with open(os.open(path, flags, 0o600), "rb") as file:
        begin = program(asked["check"], variables, None)
        status = warden.run(begin, file.fileno(), asked["folder"], asked["check_seconds"], stops=False)
        file.seek(max(0, os.fstat(file.fileno()).st_size - CHECK_BYTES))
        text = file.read(CHECK_BYTES).decode(errors="replace")
    return {"status": status, "output": text, "reward": _reward(asked["logs"])}


def _empty(folder: str) -> None:
    """Remove all that is in a folder, whatever its rights are. A link in its place is removed, and not followed."""
    if os.path.islink(folder):
        os.unlink(folder)
        os.mkdir(folder)
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
