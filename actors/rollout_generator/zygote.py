"""Starts the programs of rollouts, and ends them when it has no owner any more. Standard library alone.

::

    python zygote.py SOCKET [SCRIPT]
    one connection a run: a line of JSON (argv, env, folder) and a file descriptor for the output
        --> a fork, a session of its own --> a line with its process id, one with its exit status

Without SCRIPT the fork becomes the program ``argv``. With SCRIPT, which an interpreter of the program's own has loaded
once, not as __main__, and so what it imports, the fork runs it as __main__ with the arguments ``argv``.

When its standard input is closed, the owner has ended: all programs are killed with their sessions.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

LINE_SECONDS = 10.0
MOST_DESCRIPTORS = 4096


def _run(script: str | None, asked: dict[str, Any], output: int) -> None:
    """In the fork: become the program."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        for target, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, output)):
            os.dup2(source, target)
        os.closerange(3, MOST_DESCRIPTORS)
        os.chdir(asked["folder"])
        if script is None:
            try:
                os.execvpe(asked["argv"][0], asked["argv"], asked["env"])  # noqa: S606 - what it is for
            except OSError as error:
                code = 127
                why = f"{asked['argv'][0]!r} cannot be started: {error.strerror}; write its path in `harness.command`\n"
                os.write(2, why.encode())
                return
        os.environ.clear()
        os.environ.update(asked["env"])
        sys.argv = [script, *asked["argv"]]
        runpy.run_path(script, run_name="__main__")
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


def _asked(connection: socket.socket) -> tuple[bytes, list[int]]:
    """A line, and the descriptors that came with it."""
    line, descriptors = b"", []
    connection.settimeout(LINE_SECONDS)
    while not line.endswith(b"\n"):
        data, found, _, _ = socket.recv_fds(connection, 65536, 1)
        descriptors += found
        if not data:
            break
        line += data
    return line, descriptors


def main() -> None:
    """Serve."""
    path, script = sys.argv[1], sys.argv[2] if sys.argv[2:] else None
    if script is not None:
        sys.path.insert(0, str(Path(script).resolve().parent))
        runpy.run_path(script, run_name="loaded")
    gc.collect()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(1024)
    woken, wakes = os.pipe()
    for end in (woken, wakes):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, socket.socket] = {}
    os.write(1, b"ready\n")
    while True:
        readable, _, _ = select.select([listener.fileno(), woken, 0], [], [])
        if 0 in readable and not os.read(0, 4096):
            for child in running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
            return
        if woken in readable:
            os.read(woken, 4096)
        if listener.fileno() in readable:
            connection, _ = listener.accept()
            with contextlib.suppress(OSError):
                line, descriptors = _asked(connection)
                if not line.endswith(b"\n") or not descriptors:
                    connection.close()
                    continue
                child = os.fork()
                if child == 0:
                    _run(script, json.loads(line), descriptors[0])
                os.close(descriptors[0])
                running[child] = connection
                connection.sendall(b"%d\n" % child)
        while running:
            child, status = os.waitpid(-1, os.WNOHANG)
            if not child:
                break
            with contextlib.suppress(OSError), running.pop(child) as connection:  # who asked may have left
                connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
