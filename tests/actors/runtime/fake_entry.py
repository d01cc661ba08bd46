"""An actor's process without torch and without an actor: it does what its settings say, and tells the test by datagram.

Without an actor it is a dry run, which prints its topology and refuses what is called so.
"""

import argparse
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel


class Plain:
    class Settings(BaseModel):
        behaviour: str = "run"
        number: int = 0
        threads: int | None = None

    receives = ()
    links: ClassVar = {}
    drain_seconds = 30.0


class Other(Plain):
    pass


class First(Plain):
    drain_order = 10


class Hasty(Plain):
    drain_seconds = 0.3


def parsed():
    """What the supervisor gives an actor's process."""
    parser = argparse.ArgumentParser()
    for name in ("--topology", "--base"):
        parser.add_argument(name, required=True, type=Path)
    for name in ("--actor", "--started-at", "--epoch"):
        parser.add_argument(name, required=True)
    parser.add_argument("--incarnation", type=int, required=True)
    parser.add_argument("--lifeline", type=int, required=True)
    parser.add_argument("--beside", type=int)
    parser.add_argument("--restarted", action="store_true")
    return parser.parse_args()


def dry_run():
    from actors.runtime.children import leave_message
    from agent_rl.files.reading_json import read_text

    sys.stdout.write(f"{tomllib.loads(read_text(Path(sys.argv[sys.argv.index('--topology') + 1])))}\n")
    if any("refused" in argument for argument in sys.argv):
        leave_message("there is no module 'refused'\nmend it")
        sys.exit(3)


def main():
    options = parsed()
    topology = tomllib.loads(options.topology.read_text())
    entry = topology["actors"][options.actor.rsplit(".", 1)[0]]
    settings = entry.get("settings", {})
    behaviour = settings.get("behaviour", "run")

    def tell(event, detail=""):
        detail = detail or f"{entry['class'].rpartition(':')[2]} {settings.get('number', 0)}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as news:
            text = f"{event} {options.actor} {os.getpid()} {options.incarnation} {detail}"
            news.sendto(text.encode(), str(options.base / "news"))

    if behaviour != "running":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if behaviour == "dies":
        sys.stderr.write("no such device\n")
        sys.exit(7)
    if options.beside is not None:
        import trio

        from agent_rl.messages.pipes import Prepared
        from tests.actors.runtime import swap_entry
        from transport.stream import packed

        tell("ready")
        os.write(options.beside, packed(Prepared()))
        trio.run(swap_entry.wait_for_go, options.lifeline)
    if behaviour in {"run", "crash_once"}:
        leads = os.getpgid(0) == os.getpid()
        tell("up", f"{os.environ['OMP_NUM_THREADS']} {leads} {topology['run']['seed']}")
        if behaviour == "crash_once" and not (options.base / "crashed").exists():
            (options.base / "crashed").touch()
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
    elif behaviour == "running":
        import trio

        from tests.actors.runtime import swap_entry

        trio.run(swap_entry.report, options, tell)


if __name__ == "__main__":
    main() if "--actor" in sys.argv else dry_run()
