"""What ``agent-rl up`` sends to the process that it starts on a host, over that process' standard input.

::

    up --Order------------> up-host: writes the files, checks the topology, starts the host
       --Say--------------> shows the text above its table (the main host)
       --Stop-------------> SIGTERM to itself: the run is stopped in order
       --Kill-------------> SIGTERM and SIGINT: all actors are killed
       --Alive, at times--> `up` lives, and the connection too
       --the end----------> `up` is gone: as Stop

The end comes also when the connection is cut. So no host goes on without the process that can stop it.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from agent_rl.files.disk import whole
from agent_rl.messages import pipes
from agent_rl.messages.pipes import Order
from transport import DecodeError, Registry
from transport.stream import Unpacker

BEAT_SECONDS = 5.0
"""Seconds between two messages from ``up``, at most."""
SILENT_SECONDS = 60.0
"""A host that hears nothing for so long stops: the other machine has lost power, or the network is cut."""
NOT_FOR_PEOPLE = "this is started by `agent-rl up` of the same release; there is nothing to type"
STARTS = "agent-rl: the host starts"
"""What a host writes to stderr when it has taken its order and begins."""
STOPPED = 75
"""The exit code of a host whose run was stopped before it was finished."""


class OrderError(ValueError):
    """The first message is no order of this release."""


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
        self._messages = self._read()
        self._texts: SimpleQueue[str] = SimpleQueue()

    def first(self) -> Order:
        """Wait for the order. Raises OrderError."""
        try:
            order = next(self._messages, None)
        except DecodeError as error:
            raise OrderError(f"{NOT_FOR_PEOPLE} ({error})") from error
        if not isinstance(order, Order):
            raise OrderError(NOT_FOR_PEOPLE)
        return order

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

    def _read(self) -> Iterator[Any]:
        """Messages, until the end or a long silence. Raises DecodeError."""
        unpacker = Unpacker(Registry.of(pipes))
        while select.select([self._descriptor], [], [], SILENT_SECONDS)[0]:
            data = os.read(self._descriptor, 1 << 16)
            if not data:
                return
            unpacker.feed(data)
            yield from unpacker
        self._texts.put(f"nothing has come from `agent-rl up` for {SILENT_SECONDS:g} s")

    def _follow(self, send: Callable[[signal.Signals], object]) -> None:
        stopping = False
        try:
            for message in self._messages:
                match message:
                    case pipes.Say():
                        self._texts.put(message.text)
                    case pipes.Stop():
                        stopping = True
                        send(signal.SIGTERM)
                    case pipes.Kill():
                        stopping = True
                        send(signal.SIGTERM)
                        send(signal.SIGINT)
        except DecodeError as error:
            self._texts.put(f"what `agent-rl up` says cannot be read: {error}")
        if not stopping:
            self._texts.put("the connection to `agent-rl up` has ended")
            send(signal.SIGTERM)


def texts_of(files: Mapping[str, Path]) -> dict[str, str]:
    """The contents of files, by the names that the user gave them."""
    return {name: path.read_text(encoding="utf-8-sig") for name, path in files.items()}
