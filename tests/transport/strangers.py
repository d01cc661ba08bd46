"""Strangers at an inbox on TCP: the memory that clients without the key take from its process.

``python -m tests.transport.strangers ADDRESS KEYS`` is the node that they attack.
"""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import trio

from transport import CurveKeys, Delivery, Node, Registry, ZmqNetwork
from transport.limits import PART

COUNT = 128
"""Strangers at once."""
SOURCE = ("127.0.0.9", 0)
"""Where they come from."""
HOST = "127.0.0.8"
"""Where the node is: no other program takes its port there before it does."""
WORST_MIB = 64.0
"""More than this for all of them is an attack that succeeded."""
SENT = 4 << 20
"""The most that each stranger sends, in bytes."""
PATIENCE_SECONDS = 1.0
"""How long a stranger waits for a node that reads nothing more."""
READING_SECONDS = 0.5
"""Until the node has read what was sent."""

_MORE, _LONG, _COMMAND = 1, 2, 4
_SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
_GREETING = _SIGNATURE + b"\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
_DEALER = 5


def _frame(flags: int, size: int, content: int | None = None) -> bytes:
    """A frame of ZMTP (RFC 23) that announces ``size`` bytes and has ``content`` of them, or all."""
    return bytes([flags | _LONG]) + size.to_bytes(8, "big") + bytes(size if content is None else content)


_MULTIPART = _frame(_MORE, PART // 2) * (SENT // (PART // 2))
KINDS = {
    "a handshake command of 250 MiB": _GREETING + _frame(_COMMAND, 250 << 20, SENT),
    "the largest command that is read, without its last byte": _GREETING + _frame(_COMMAND, PART, PART - 1),
    "an endless multipart message": _GREETING + _MULTIPART,
    "an endless multipart message of ZMTP 2": _SIGNATURE + bytes([1, _DEALER]) + b"\0\0" + _MULTIPART,
}


def _memory(process: int, name: str) -> int:
    """A figure of a process's memory in bytes: VmRSS, or VmHWM, the most that VmRSS ever was."""
    match = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert match is not None
    return int(match[1]) << 10


def connect_strangers(
    port: int, said: bytes, connections: ExitStack, count: int = COUNT, host: str = "127.0.0.1"
) -> list[socket.socket]:
    """So many clients that have said this, or as much of it as was read; ``connections`` closes them."""
    made = []
    for _ in range(count):
        client = connections.enter_context(socket.create_connection((host, port), None, SOURCE))
        client.settimeout(PATIENCE_SECONDS)
        with contextlib.suppress(OSError):  # the node has closed the connection, or reads no more
            client.sendall(said)
        made.append(client)
    return made


def strangers_mib() -> float:
    """MiB by which a node grew at the most while COUNT strangers of one kind after the other were there."""
    with tempfile.TemporaryDirectory(prefix="strangers") as folder, socket.create_server((HOST, 0)) as probe:
        port = int(probe.getsockname()[1])
        probe.close()
        keys = Path(folder) / "keys"
        CurveKeys.generate().save(keys)
        command = [sys.executable, "-m", "tests.transport.strangers", f"tcp://{HOST}:{port}", str(keys)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as node:
            assert node.stdout is not None
            try:
                assert node.stdout.readline() == "ready\n"
                before = _memory(node.pid, "VmRSS")
                for said in KINDS.values():
                    with ExitStack() as connections:
                        connect_strangers(port, said, connections, host=HOST)
                        time.sleep(READING_SECONDS)
                assert node.poll() is None
                return (_memory(node.pid, "VmHWM") - before) / 2**20
            finally:
                node.kill()


async def _ignore(delivery: Delivery) -> None:
    del delivery
    await trio.lowlevel.checkpoint()


async def _serve(address: str, keys: str) -> None:
    network = ZmqNetwork({"node": address}, curve=CurveKeys.load(Path(keys)))
    node = Node("node", network, Registry(), incarnation=0, on_event=lambda _: None)
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run, _ignore)
        sys.stdout.write("ready\n")
        sys.stdout.flush()


if __name__ == "__main__":
    trio.run(_serve, sys.argv[1], sys.argv[2])
