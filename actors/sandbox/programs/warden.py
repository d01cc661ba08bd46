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

What the program wrote is data for its check: no variable of the check names a folder that the program could write, and
the check's limits are those of the warden. Where users are to spare, the check gets the program's files as its own.
"""

# A process 1 stays small:
# ruff: noqa: PTH115, PTH116, PTH101, PTH102, PTH103, PTH106, PTH108, PTH114, PTH118, PTH120, PTH123

from __future__ import annotations

import base64
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
from functools import partial
from typing import Any

from actors.sandbox.isolation import kernel
from actors.sandbox.isolation.namespaces import INSIDE
from actors.sandbox.programs.jail import CHECKED, CHECKER, WRITABLE, become

MOST_DESCRIPTORS = 4096
FILE_BYTES, FILES_BYTES, MOST_FILES = 64 * 1024, 1024 * 1024, 256
"""Of collected files: of one, of all, and their number."""
MOST_ENTRIES, DEPTH = 20_000, 32
"""Entries that are looked at for this, and folders within each other."""
CHECK_BYTES = 16 * 1024
"""The end of a check's output that is kept."""


class Warden:
    """Of one program. ``jailed``: this is process 1 of a jail. ``joins``: files by which the program joins its groups,
    which are not those of its warden and of its check.
    """

    def __init__(self, control: socket.socket, joins: Sequence[int], *, jailed: bool) -> None:
        self._control, self._joins, self._jailed = control, joins, jailed
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

    def run(self, begin: Callable[[], None], output: int, folder: str, seconds: float, *, checks: bool = False) -> str:
        """How a process ended, which becomes what ``begin`` does; all that it has started is ended too.

        ``checks``: it is the check, which the owner does not stop.
        """
        child = os.fork()
        if child == 0:
            change = partial(become, checks=checks) if self._jailed else None
            _become(begin, output, folder, change, () if checks else self._joins)
        status, until = "", time.monotonic() + seconds
        while not status:
            left = until - time.monotonic()
            if not checks and any("stop" in each for each in self._heard):
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

    def cut_links(self, folders: Sequence[str], away: Sequence[str]) -> None:
        """Remove what the program linked to the check's own folders, which the check would read or write through it."""
        left = list(folders if self._jailed else folders[:1])
        while left:
            at = left.pop()
            with contextlib.suppress(OSError), os.scandir(at) as entries:  # a path may be too long for the kernel
                found = list(entries)
                with contextlib.suppress(OSError):  # the program may have taken the right to write away
                    os.chmod(at, stat.S_IMODE(os.stat(at).st_mode) | 0o700)
                for entry in found:
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
                    elif entry.is_symlink():
                        named = os.path.normpath(os.path.join(at, os.readlink(entry.path)))
                        ends = named, os.path.realpath(entry.path)
                        if any(_within(each, place) for each in ends for place in away):
                            with contextlib.suppress(OSError):  # it is shown from the host; the others are looked at
                                os.unlink(entry.path)

    def give(self, folders: Sequence[str], user: int) -> None:
        """Make all that is in folders the files of ``user``, where the host has users to spare."""
        left = list(folders) if self._jailed and os.getuid() == CHECKER else []
        while left:
            at = left.pop()
            with contextlib.suppress(OSError), os.scandir(at) as entries:  # a path may be too long for the kernel
                os.chown(at, user, -1)
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
                    else:
                        with contextlib.suppress(OSError):  # it is shown from the host
                            os.chown(entry.path, user, -1, follow_symlinks=False)

    def trusts(self, place: str, folder: str) -> bool:
        """Whether a place in which commands are looked for was out of the program's reach."""
        real, written = os.path.realpath(place), WRITABLE if self._jailed else (folder,)
        near = any(_within(os.path.normpath(place), each) for each in written)
        if not place.startswith("/") or (near and real != os.path.normpath(place)) or _within(place, "/proc"):
            return False  # the program may have made the link, or it is another one for each process
        try:
            return bool(os.statvfs(real).f_flag & os.ST_RDONLY) if self._jailed else not _within(real, folder)
        except OSError:
            return False

    def _end_all(self, child: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(-1, signal.SIGKILL) if self._jailed else os.killpg(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)


def _within(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder}/")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # one of real time
        return f"signal {number}"


def _become(
    begin: Callable[[], None], output: int, folder: str, change: Callable[[], None] | None, joins: Sequence[int]
) -> None:
    """In the fork: a session of its own, ``output`` for all that is written, and nothing else that is open.

    ``change`` makes it another user.
    """
    code = 1
    try:
        for each in joins:
            os.write(each, b"0")
        os.setsid()
        signal.set_wakeup_fd(-1)
        for each in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(each, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for target, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, output)):
            os.dup2(source, target)
        os.closerange(3, MOST_DESCRIPTORS)
        if change is not None:
            change()
        os.chdir(folder)
        kernel.control(kernel.PR_SET_DUMPABLE, 1)  # it may look at itself, as after an exec
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # so that none can make itself a likelier victim than its neighbours
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


def content_of(text: str) -> tuple[bytes, int]:
    """The bytes and the mode of a file, which is its text, or packed (`agent_rl.environments.harness`)."""
    if not text.startswith("\0"):
        return text.encode(), 0o644
    mode, _, data = text[1:].partition(" ")
    return base64.b64decode(data), int(mode, 8)


def write_files(folder: str, files: Mapping[str, str]) -> None:
    """Write files by path. Raises OSError."""
    for name, text in files.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        data, mode = content_of(text)
        with open(path, "wb", opener=lambda path, flags: os.open(path, flags, mode)) as file:  # noqa: B023
            file.write(data)


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
    warden.give((*WRITABLE, *CHECKED), INSIDE)
    told: dict[str, Any] = {"status": "not run"}
    if asked["seconds"]:  # else the check is tried on files that no program has changed
        begin = program(asked["argv"], asked["env"], script)
        told["status"] = warden.run(begin, output, folder, asked["seconds"])
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
    warden.cut_links((asked["folder"], *WRITABLE), (asked["tests"], asked["logs"], "/proc"))
    warden.give((*WRITABLE, *CHECKED), CHECKER)
    write_files(asked["tests"], asked["check_files"])
    scratch, path = (os.path.join(asked["logs"], name) for name in (".tmp", ".check"))
    os.mkdir(scratch)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND
    places = asked["env"].get("PATH", os.defpath).split(":")
    variables = {"PATH": ":".join(each for each in places if warden.trusts(each, asked["folder"]))}
    variables |= {"TMPDIR": scratch, "LANG": "C.UTF-8", **of_check(asked["tests"])}
    with open(os.open(path, flags, 0o600), "rb") as file:
        begin = program(asked["check"], variables, None)
        status = warden.run(begin, file.fileno(), asked["folder"], asked["check_seconds"], checks=True)
        file.seek(max(0, os.fstat(file.fileno()).st_size - CHECK_BYTES))
        text = file.read(CHECK_BYTES).decode(errors="replace")
    return {"status": status, "output": text, "reward": _reward(asked["logs"])}


def of_check(tests: str) -> dict[str, str]:
    """Variables of every check: no module is looked for in the working folder, nor in the program's home."""
    python = {"PYTHONPATH": tests, "PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1"}
    git = {"core.fsmonitor": "false", "core.hooksPath": "/dev/null"}  # programs that a repository names
    named = {f"GIT_CONFIG_KEY_{at}": key for at, key in enumerate(git)}
    named |= {f"GIT_CONFIG_VALUE_{at}": value for at, value in enumerate(git.values())}
    return {"HOME": tests, **python, "GIT_CONFIG_COUNT": str(len(git)), **named}


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
        folder, file = os.path.split(os.path.join(logs, name))
        if text := collected(folder, [file]).get(file):
            return text
    return ""
