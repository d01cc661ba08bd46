"""Limit the connections of an inbox on TCP, so that strangers cannot use up the process's file descriptors.

::

    accepted, disconnected --> Gate --(nodes + STRANGERS open)-----> open for the run's hosts alone
                                   `-(nodes + 2 * STRANGERS open)--> closed
                                   `-(fewer again)-----------------> open

A connection costs a descriptor from its acceptance by ZeroMQ until it is authenticated, or until `Limits.handshake` is
over. ZeroMQ accepts connections as long as there are descriptors, and then the process can open no file. So a filter on
the listening socket (socket(7), SO_ATTACH_FILTER) lets the kernel drop the first packet of further connections.
Established connections are not affected, and a dropped client tries again. Linux only: elsewhere every connection is
accepted.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import socket as sockets
import struct
import sys
from collections.abc import Callable, Collection, Sequence

import zmq
from zmq.utils.monitor import parse_monitor_message

from transport.schema import Buffer

STRANGERS = 64
"""Connections beyond one for each node. At the start of a run, some of them are repeated attempts of the nodes."""

_EVENTS = int(
    zmq.EVENT_LISTENING
    | zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
UNKNOWN = "an address that is not known any more"
"""The address of a client whose connection was closed before the event loop saw it."""
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27  # asm-generic/socket.h
# linux/bpf_common.h, linux/filter.h
_LOAD_BYTE, _LOAD_WORD, _AND, _JUMP, _JUMP_IF_EQUAL, _RETURN = 0x30, 0x20, 0x54, 0x05, 0x15, 0x06
_NETWORK_HEADER = 0x100000000 - 0x100000
_TAKE = 0xFFFFFFFF


class Gate:
    """Watches the connections of a bound inbox, and closes it when there are too many."""

    def __init__(
        self, inbox: zmq.Socket[bytes], nodes: int, hosts: Collection[str], on_refused: Callable[[str], None]
    ) -> None:
        """``inbox`` is not bound yet. ``hosts`` are the numeric addresses of the run's hosts.

        ``on_refused`` gets the address of each client that has no key or another one.
        """
        self._inbox = inbox
        self._nodes = nodes
        self._hosts = set(hosts)
        self._on_refused = on_refused
        self._open: dict[int, tuple[int, str]] = {}
        """By descriptor, the kernel's number of the connection's socket, since a descriptor may be used again, and the
        client's address."""
        self._refused = False
        """Whether the next connection that closes was refused: ZeroMQ's thread reports one after the other."""
        self._closed = 0
        self._listener: sockets.socket | None = None
        self.monitor = inbox.get_monitor_socket(_EVENTS)
        self.monitor.setsockopt(zmq.LINGER, 0)

    def extend(self, nodes: int, hosts: Collection[str]) -> None:
        """The run has so many nodes now, and these hosts too, by numeric address."""
        self._nodes = nodes
        self._hosts.update(hosts)
        self._decide()

    def watch(self, frames: Sequence[Buffer]) -> None:
        """Take an event of the inbox from ZeroMQ's monitor."""
        event = parse_monitor_message([bytes(frame) for frame in frames])
        descriptor = int(event["value"])
        if event["event"] == zmq.EVENT_LISTENING:
            self._listener = sockets.socket(fileno=os.dup(descriptor))
        elif event["event"] == zmq.EVENT_ACCEPTED:
            with contextlib.suppress(OSError):  # the connection is already closed
                self._open[descriptor] = (os.fstat(descriptor).st_ino, _client(descriptor))
        elif event["event"] == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            self._refused = True
        else:
            _, client = self._open.pop(descriptor, (0, UNKNOWN))
            if self._refused:
                self._refused = False
                self._on_refused(client)
        self._decide()

    def _decide(self) -> None:
        if len(self._open) >= self._nodes + STRANGERS:
            self._forget_gone()
        closed = max(0, min(2, (len(self._open) - self._nodes) // STRANGERS))
        if closed != self._closed and self._listener is not None:
            self._closed = closed
            filter_connections(self._listener, None if not closed else self._hosts if closed == 1 else ())

    def _forget_gone(self) -> None:
        """Forget closed connections. ZeroMQ reports none that another connection of the same identity replaced."""
        for descriptor, (number, _) in list(self._open.items()):
            try:
                there = os.fstat(descriptor).st_ino == number
            except OSError:
                there = False
            if not there:
                del self._open[descriptor]

    def close(self) -> None:
        """Stop watching, before the inbox is closed."""
        if self._listener is not None:
            self._listener.close()
        self._inbox.disable_monitor()
        self.monitor.close()


def _client(descriptor: int) -> str:
    """The address at the other end of a connection. Raises OSError for one that is closed."""
    with sockets.socket(fileno=os.dup(descriptor)) as connection:
        return str(connection.getpeername()[0]).removeprefix("::ffff:")


def filter_connections(listener: sockets.socket, hosts: Collection[str] | None) -> None:
    """Accept connections from these hosts only; None: from everywhere."""
    if hosts is None:
        listener.setsockopt(sockets.SOL_SOCKET, _SO_DETACH_FILTER, 0)
        return
    program = _program(hosts)
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in program))
    listener.setsockopt(sockets.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(program), ctypes.addressof(code)))


def _program(hosts: Collection[str]) -> list[tuple[int, int, int, int]]:
    """A kernel packet filter that accepts these addresses, as (code, jump if true, jump if false, operand)."""
    words: dict[int, list[list[int]]] = {4: [], 6: []}
    for host in hosts:
        address = ipaddress.ip_address(host)
        words[address.version].append(
            [int.from_bytes(address.packed[i : i + 4]) for i in range(0, len(address.packed), 4)]
        )
    fourth, sixth = (
        [step for each in words[version] for step in _comparison(each, at)] for version, at in ((4, 12), (6, 8))
    )
    return [
        (_LOAD_BYTE, 0, 0, _NETWORK_HEADER),
        (_AND, 0, 0, 0xF0),
        (_JUMP_IF_EQUAL, 1, 0, 0x40),
        (_JUMP, 0, 0, len(fourth) + 1),
        *fourth,
        (_RETURN, 0, 0, 0),
        *sixth,
        (_RETURN, 0, 0, 0),
    ]


def _comparison(words: Sequence[int], at: int) -> list[tuple[int, int, int, int]]:
    """Accept the packet if the words of its source address, from ``at`` on in the network header, are these."""
    steps: list[tuple[int, int, int, int]] = []
    for index, word in enumerate(words):
        after = 2 * (len(words) - index - 1) + 1  # the steps to the next address
        steps += [(_LOAD_WORD, 0, 0, _NETWORK_HEADER + at + 4 * index), (_JUMP_IF_EQUAL, 0, after, word)]
    return [*steps, (_RETURN, 0, 0, _TAKE)]


def watches(address: str) -> bool:
    """Whether an inbox at this address has a gate: on TCP, where the kernel has filters."""
    return address.startswith("tcp://") and sys.platform == "linux"
