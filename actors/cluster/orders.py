"""What ``agent-rl up`` sends to the process that it starts on a host, over that process' standard input.

::

    up --the order: one line of JSON--> up-host: writes the files, checks the topology, starts the host
       --"say TEXT"-------------------> shows the text above its table (the main host)
       --"stop"-----------------------> SIGTERM to itself: the run is stopped in order
       --"kill"-----------------------> SIGTERM and SIGINT: all actors are killed
       --an empty line now and then---> `up` lives, and the connection too
       --the end----------------------> `up` is gone: as "stop"

The end comes also when the connection is cut. So no host goes on without the process that can stop it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue

from agent_rl.files.disk import whole

BEAT_SECONDS = 5.0
"""Seconds between two lines from ``up``, at most."""
SILENT_SECONDS = 60.0
"""A host that hears nothing for so long stops: the other machine has lost power, or the network is cut."""
STARTS = "agent-rl: the host starts"
"""What a host writes to stderr when it has taken its order and begins."""


class OrderError(ValueError):
    """The first line is no order of this release."""


@dataclass(frozen=True, slots=True)
class Terminal:
    """The terminal of ``up``."""

    width: int
    height: int
    kind: str
    colours: str | None


@dataclass(frozen=True, slots=True)
class Order:
    """What a host is to run."""

    release: str
    host: str
    main: bool
    """Whether this is the main host, which shows the table."""
    files: list[str]
    """Topology and overlays, as the user named them."""
    overrides: list[str]
    again: str
    """The command that continues the run."""
    texts: dict[str, str] = field(default_factory=dict)
    """Files that the host is to have, by path; relative to the working directory. None for a host of this machine."""
    key: str | None = None
    """The content of the key file that the topology names."""
    terminal: Terminal | None = None
    """None: no terminal."""

    def line(self) -> bytes:
        """The order as one line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def of(cls, line: bytes) -> Order:
        """Read a line. Raises OrderError."""
        try:
            found = json.loads(line)
            terminal = found.pop("terminal")
            return cls(**found, terminal=None if terminal is None else Terminal(**terminal))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise OrderError(
                "this is started by `agent-rl up` of the same release; there is nothing to type"
            ) from error


def place(path: Path, text: str, mode: int) -> str:
    """Write a file unless it has this content already. Returns what became of the file before; empty: nothing.

    The file before is kept under another name, since somebody may have changed it here. Raises DiskError and OSError.
    """
    before = path.read_bytes() if path.exists() else None
    if before == text.encode():
        return ""
    old = path.with_name(f"{path.name}.old")
    if before is not None:
        path.replace(old)
    with whole(path) as partial:
        partial.touch(mode)
        partial.write_text(text, encoding="utf-8")
    return "" if before is None else f"{path} was another file here, which is now {old.name}"


class Orders:
    """Reads the order, and then follows what comes in a thread, as long as the process lives."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._lines = self._read()
        self._texts: SimpleQueue[str] = SimpleQueue()

    def first(self) -> Order:
        """Wait for the order. Raises OrderError."""
        return Order.of(next(self._lines, b""))

    def follow(self, send: Callable[[signal.Signals], object] | None = None) -> threading.Thread:
        """From now on obey, in the thread that is returned. ``send`` sends a signal to this process."""
        pid = os.getpid()
        obey = send or (lambda number: os.kill(pid, number))
        thread = threading.Thread(target=self._follow, args=(obey,), daemon=True)
        thread.start()
        return thread

    def said(self) -> Iterator[str]:
        """The texts to show that have come since the last call."""
        while True:
            try:
                yield self._texts.get_nowait()
            except Empty:
                return

    def _read(self) -> Iterator[bytes]:
        """Lines, until the end or a long silence."""
        rest = b""
        while select.select([self._descriptor], [], [], SILENT_SECONDS)[0]:
            data = os.read(self._descriptor, 1 << 16)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            yield from lines
        self._texts.put(f"nothing has come from `agent-rl up` for {SILENT_SECONDS:g} s")

    def _follow(self, send: Callable[[signal.Signals], object]) -> None:
        stopping = False
        for line in self._lines:
            word, _, text = line.decode(errors="replace").partition(" ")
            if word == "say":
                self._texts.put(text)
            elif word == "stop":
                stopping = True
                send(signal.SIGTERM)
            elif word == "kill":
                stopping = True
                send(signal.SIGTERM)
                send(signal.SIGINT)
        if not stopping:
            self._texts.put("the connection to `agent-rl up` has ended")
            send(signal.SIGTERM)


def texts_of(files: Mapping[str, Path]) -> dict[str, str]:
    """The contents of files, by the names that the user gave them."""
    return {name: path.read_text(encoding="utf-8-sig") for name, path in files.items()}
