"""Runs a Python program many times from one interpreter that has its imports. Standard library alone: the interpreter
is the program's own.

::

    python zygote.py SCRIPT SOCKET    loads SCRIPT, not as __main__, and so what it imports
    one connection a run: a line of JSON (argv, env, folder) and a file descriptor for the output
        --> a fork, a session of its own, SCRIPT as __main__ --> a line with its process id, one with its exit status

It ends when its standard input is closed.
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


def _run(script: str, asked: dict[str, Any], output: int) -> None:
    """In the fork: become the program."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        for target, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, output)):
            os.dup2(source, target)
        os.closerange(3, MOST_DESCRIPTORS)
        os.environ.clear()
        os.environ.update(asked["env"])
        os.chdir(asked["folder"])
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
    script, path = sys.argv[1:]
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
