"""Starts the programs of rollouts. Standard library alone: a program's own interpreter may run this.

::

    python zygote.py SOCKET JAIL [SCRIPT]
    one connection a run: a line of JSON (jailed, groups), descriptors for the output and for the warden's control
        --> a fork (in a jail: of a fork) is the warden, whose fork is the program --> a line with the first one's id

JAIL: JSON of a `Jail`, or "null". With SCRIPT, which is loaded once, not as __main__, and so what it imports, a program
is a fork that runs it as __main__. The first line of output after loading is "ready", a space, and why there are no
jails. What a program is given goes to its warden alone: forks inherit what was ever read here.
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
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[3])  # in place of this file's folder

from actors.sandbox.programs.jail import Jail, leave, settle  # noqa: E402
from actors.sandbox.programs.warden import Warden, guard  # noqa: E402

del sys.path[0]
for _name in [name for name in sys.modules if name.partition(".")[0] == "actors"]:
    del sys.modules[_name]  # a script may have modules of that name

LINE_SECONDS = 10.0


def _start(jail: Jail | None, number: int, asked: dict[str, Any], fds: list[int], script: str | None) -> None:
    """In the fork: be the warden, or the one that waits for it."""
    output, control = fds[0], socket.socket(fileno=fds[1])
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        listener = None
        of_program, own = asked["groups"]
        for each in own:  # one task moves itself, and with it all that it starts
            Path(each).write_text("0")
        joins = [os.open(each, os.O_WRONLY) for each in of_program]
        if jail is not None:
            leave(jail)
            if child := os.fork():
                control.close()
                os.close(output)
                os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 255)
            listener = settle(jail, number)
        warden = Warden(control, joins, jailed=jail is not None)
        warden.tell({"ready": True}, listener)
        if listener is not None:
            listener.close()
        guard(output, warden, script)
        code = 0
    except Exception as error:  # noqa: BLE001 - told to the owner
        with contextlib.suppress(OSError):
            control.sendall(json.dumps({"fault": f"{type(error).__name__}: {error}"}).encode() + b"\n")
    finally:
        os._exit(code)


def _no_jail(jail: Jail) -> str:
    """Why a jail cannot be made here; "" if it can."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            leave(jail)
            if inner := os.fork():
                os.waitpid(inner, 0)
            else:
                settle(jail, 0)
                os.write(writes, b"made")
        except OSError as error:
            os.write(writes, str(error).encode())
        finally:
            os._exit(0)
    os.close(writes)
    text = os.read(reads, 4096).decode()
    os.close(reads)
    os.waitpid(child, 0)
    return "" if text == "made" else text or "it ended at once"


def _asked(connection: socket.socket) -> tuple[bytes, list[int]]:
    """A line, and the descriptors that came with it."""
    line, descriptors = b"", []
    connection.settimeout(LINE_SECONDS)
    while not line.endswith(b"\n"):
        data, found, _, _ = socket.recv_fds(connection, 65536, 2)
        descriptors += found
        if not data:
            break
        line += data
    return line, descriptors


def main() -> None:
    """Serve until standard input ends, which is when the owner has ended; wardens see the same at their control."""
    path, wanted, script = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3] if sys.argv[3:] else None
    jail = Jail(**wanted) if wanted else None
    why = _no_jail(jail) if jail is not None else ""
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
    sys.stdout.flush()
    os.write(1, f"\nready {why}\n".encode())
    number = os.getpid() * 101  # of users, so that two of these processes rarely share one
    while True:
        readable, _, _ = select.select([listener.fileno(), woken, 0], [], [])
        if 0 in readable and not os.read(0, 4096):
            return
        if woken in readable:
            os.read(woken, 4096)
        if listener.fileno() in readable:
            connection, _ = listener.accept()
            with contextlib.suppress(OSError), connection:
                line, descriptors = _asked(connection)
                if line.endswith(b"\n") and len(descriptors) == 2:
                    number += 1
                    asked = json.loads(line)
                    child = os.fork()
                    if child == 0:
                        _start(jail if asked["jailed"] else None, number, asked, descriptors, script)
                    connection.sendall(b"%d\n" % child)
                for each in descriptors:
                    os.close(each)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


if __name__ == "__main__":
    main()
