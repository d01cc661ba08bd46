"""A host that a shell stands in for: ``python fake_host.py SCRIPT NAME``. What comes is given to the script as lines.

The order is the name of the host; others are ``say TEXT``, ``stop``, ``kill`` and an empty line. The shell takes the
place of this process, so that signals and the exit code are its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__)
ROOT = SCRIPT.parents[3]


def translate() -> None:
    """Messages of standard input, as lines on standard output."""
    sys.path.insert(0, str(ROOT))
    from agent_rl.messages import pipes
    from transport import Registry
    from transport.stream import Unpacker

    unpacker = Unpacker(Registry.of(pipes))
    while data := os.read(0, 1 << 16):
        unpacker.feed(data)
        for message in unpacker:
            match message:
                case pipes.Order():
                    line = message.host
                case pipes.Say():
                    line = f"say {message.text}"
                case pipes.Alive():
                    line = ""
                case _:
                    line = type(message).__name__.lower()
            os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    if len(sys.argv) == 1:
        translate()
    else:
        with subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as lines:
            assert lines.stdout is not None
            os.dup2(lines.stdout.fileno(), 0)
            os.execvp("sh", ["sh", "-c", *sys.argv[1:]])
