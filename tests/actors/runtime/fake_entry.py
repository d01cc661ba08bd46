"""An actor's process without torch and without an actor: it does what its settings say, and tells the test by datagram."""

import argparse
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel


class Plain:
    class Settings(BaseModel):
        behaviour: str = "run"
        after: str = ""
        threads: int | None = None

    receives = ()
    links: ClassVar = {}
    drain_seconds = 0.3


class First(Plain):
    drain_order = 10


def parsed():
    """What the supervisor gives an actor's process."""
    parser = argparse.ArgumentParser()
    for name in ("--topology", "--base", "--actor", "--started-at", "--epoch"):
        parser.add_argument(name, required=True)
    parser.add_argument("--incarnation", type=int, required=True)
    parser.add_argument("--lifeline", type=int, required=True)
    parser.add_argument("--beside", type=int)
    parser.add_argument("--restarted", action="store_true")
    return parser.parse_args()


def main():
    options = parsed()
    path, base = Path(options.topology), Path(options.base)
    topology = tomllib.loads(path.read_text())
    settings = topology["actors"][options.actor.rsplit(".", 1)[0]].get("settings", {})
    behaviour = settings.get("behaviour", "run")

    def tell(event, detail=""):
        (base / f"{options.actor}.{event}").touch()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as news:
            text = f"{event} {options.actor} {os.getpid()} {options.incarnation} {detail}"
            news.sendto(text.encode(), str(base / "news"))

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if behaviour in {"run", "crash_once"}:
        leads = os.getpgid(0) == os.getpid()
        tell("up", f"{os.environ['OMP_NUM_THREADS']} {leads} {topology['run']['seed']}")
        if behaviour == "crash_once" and not (base / "crashed").exists():
            (base / "crashed").touch()
            sys.stderr.write("a library says something\n")
            os.kill(os.getpid(), signal.SIGKILL)
        signal.sigwait({signal.SIGTERM})
        tell("stopped")
    elif behaviour == "stubborn":
        child = subprocess.Popen(["sleep", "600"])
        tell("up", str(child.pid))
        signal.sigwait({signal.SIGUSR1})
    elif behaviour == "lifeline":
        ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)  # live on when the parent dies, so that the lifeline alone tells
        tell("up")
        while os.read(options.lifeline, 4096):
            pass
        tell("lifeline")
    elif behaviour == "talkative":
        tell("up")
        number = 0
        while not signal.sigtimedwait({signal.SIGTERM}, 0.001):
            sys.stderr.write(f"line {number}\n")
            number += 1
        sys.stderr.write("last\n")
    elif behaviour == "full_disk":
        from actors.runtime.children import leave_message

        os.close(2)
        os.open("/dev/full", os.O_WRONLY)  # what is written to stderr is refused
        with contextlib.suppress(OSError):
            sys.stderr.write("noise that stays in a buffer\n")
        leave_message("/run/journal.sqlite cannot be written: make room")
        sys.exit(3)
    elif behaviour in {"finished", "running"}:
        import trio

        from tests.actors.runtime import swap_entry

        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        while "after" in settings and not (base / f"{settings['after']}.up").exists():
            time.sleep(0.05)
        trio.run(swap_entry.run, options, tell, behaviour)
        tell("stopped")


if __name__ == "__main__":
    main()
