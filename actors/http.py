"""HTTP/1.1 on trio: connections of many requests, streamed replies, and clients that leave. h11 reads and writes it."""

from __future__ import annotations

import errno
import logging
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from itertools import count
from pathlib import Path

import h11
import trio

HEAD_BYTES = 64 * 1024
PIECE_BYTES = 256 * 1024
HEAD_SECONDS = 30.0
"""Within which a request must be whole, once it has begun."""
IDLE_SECONDS = 600.0
"""How long a connection may be open without a further request."""
FREE_BYTES = 64 * 1024
"""Of a body that is read before its sender is known."""
HELD_BYTES = 256 * 1024 * 1024
"""Of all bodies that are being read or answered; a further one has to wait."""
PAUSE_EVENTS = 256
LINGER_SECONDS = 2.0
SEND_SECONDS = 30.0
"""How long a client may take to read a piece."""


_LOG = logging.getLogger(__name__)
_PORT = re.compile(r":\d*\Z")
LOCAL = {"localhost", "127.0.0.1", "[::1]"}
"""Names of this host by which a page of another site cannot reach it."""


class ClientLeft(Exception):  # noqa: N818 - no error of this side
    """The client has closed its connection, or does not read."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request; names of headers are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class Reply:
    """Writes the reply to one request: `send`, or `begin`, any number of `piece`, and `end`."""

    _connection: h11.Connection
    _stream: trio.abc.Stream
    headers: dict[str, str] = field(default_factory=dict)
    """Further headers."""
    begun: bool = False
    bodiless: bool = False
    """The request was for the head alone."""
    path: str = ""
    """Of the request, once its head was read."""

    async def send(self, status: int, body: bytes, kind: str = "application/json") -> None:
        """A whole reply."""
        self.headers["Content-Length"] = str(len(body))
        data = [] if self.bodiless else [h11.Data(data=body)]
        await self._write(self._head(status, kind), *data, h11.EndOfMessage())

    async def begin(self, kind: str) -> None:
        """Begin a reply in pieces."""
        self.headers["Cache-Control"] = "no-cache"
        await self._write(self._head(200, kind))

    async def piece(self, data: bytes) -> None:
        """A piece."""
        if data and not self.bodiless:
            await self._write(h11.Data(data=data))

    async def end(self) -> None:
        """End a reply in pieces."""
        await self._write(h11.EndOfMessage())

    def _head(self, status: int, kind: str) -> h11.Response:
        self.begun = True
        headers = [("Content-Type", kind), *self.headers.items()]
        return h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase.encode())

    async def _write(self, *events: h11.Event) -> None:
        data = b"".join(self._connection.send(event) or b"" for event in events)
        try:
            with trio.fail_after(SEND_SECONDS):
                await self._stream.send_all(data)
        except (trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ClientLeft from error


class _Refused(Exception):  # noqa: N818 - it becomes a reply
    """A request that is refused before it is whole."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


Respond = Callable[[Request, Reply], Awaitable[None]]
Admit = Callable[[Request], Awaitable[str]]
"""Why a request with a large body is not read, by its head; empty: it is."""
Told = Callable[[str, str], tuple[bytes, str]]
"""The body of an error and its type, by what is wrong and the path, which is empty where it was not read."""


async def anyone(request: Request) -> str:
    """All are read."""
    del request
    return ""


def foreign(headers: Mapping[str, str], *, local: bool) -> str:
    """Why a request is another site's: a browser sends such ones for any page. Empty: it is none.

    ``local``: the server is reached at names of this host alone.
    """
    host = _PORT.sub("", headers.get("host", "")).lower()
    if local and host not in LOCAL:
        return f"this server is at {' or '.join(sorted(LOCAL))}, and not at {host!r:.80}"
    origin = headers.get("origin")
    if origin is not None and _PORT.sub("", origin.lower().partition("://")[2]) not in {host, *LOCAL}:
        return f"requests of pages of other sites are refused: the origin is {origin!r:.80}"
    return ""


def plainly(why: str, path: str) -> tuple[bytes, str]:
    """The body of an error as plain text."""
    del path
    return f"{why}\n".encode(), "text/plain"


class Server:
    """Serves requests until cancelled. ``respond`` answers each; ``body_bytes``: the most that a body may have."""

    def __init__(
        self, respond: Respond, body_bytes: int, most: int, told: Told = plainly, admit: Admit = anyone
    ) -> None:
        """``most``: connections at once; further ones are told to try again. ``told``: how wrong requests are told."""
        self._held = 0
        self._open: set[trio.SocketStream] = set()
        self._waiting: dict[trio.CancelScope, trio.SocketStream] = {}
        """Connections that have shown neither a whole request nor a key, the oldest first."""
        self._admit = admit
        self._told = told
        self._respond, self._body_bytes, self._most = respond, body_bytes, most

    @property
    def open(self) -> int:
        """Connections that are there."""
        return len(self._open)

    async def serve(self, listeners: Sequence[trio.SocketListener]) -> None:
        """Accept connections."""
        await trio.serve_listeners(self._connected, list(listeners))

    async def _connected(self, stream: trio.SocketStream) -> None:
        self._open.add(stream)
        if self.open > self._most and self._waiting:  # whoever opens many and says nothing keeps nobody out
            scope, oldest = next(iter(self._waiting.items()))
            del self._waiting[scope]
            self._open.discard(oldest)
            scope.cancel()
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        try:
            async with stream:
                idle = HEAD_SECONDS  # a connection that was opened is for a request
                while await self._one(stream, connection, idle):
                    connection.start_next_cycle()
                    idle = IDLE_SECONDS
        except* (ClientLeft, trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # there is nobody to tell
        except* Exception:  # noqa: BLE001 - whatever a connection raises ends that connection
            _LOG.exception("a connection has failed")
        finally:
            self._open.discard(stream)

    async def _one(self, stream: trio.SocketStream, connection: h11.Connection, idle: float) -> bool:
        """Serve a request; whether another may follow."""
        reply, pieces = Reply(connection, stream), bytearray()
        try:
            return await self._answered(stream, connection, reply, pieces, idle)
        except (_Refused, h11.RemoteProtocolError) as error:
            if connection.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
                reply.headers["Connection"] = "close"
                # h11's 501 is for encodings that nobody sends
                status = error.status if isinstance(error, _Refused) else min(error.error_status_hint, 499)
                reply.headers |= {"Retry-After": "1"} if status == 503 else {}
                await reply.send(400 if status == 499 else status, *self._told(str(error), reply.path))
                await _linger(stream)
            return False
        finally:
            self._held -= len(pieces)

    async def _answered(
        self, stream: trio.SocketStream, connection: h11.Connection, reply: Reply, pieces: bytearray, idle: float
    ) -> bool:
        request = await self._request(stream, connection, reply, pieces, idle)
        if request is None:
            return False
        if self.open > self._most:
            reply.headers |= {"Connection": "close", "Retry-After": "1"}
            await reply.send(503, *self._told("too many connections; try again", reply.path))
            return False
        await _while_there(stream, connection, partial(self._respond, request, reply))
        return connection.our_state is h11.DONE and connection.their_state is h11.DONE

    @contextmanager
    def _known_to_wait(self, scope: trio.CancelScope, stream: trio.SocketStream) -> Iterator[None]:
        self._waiting[scope] = stream
        try:
            yield
        finally:
            self._waiting.pop(scope, None)

    async def _request(
        self, stream: trio.SocketStream, connection: h11.Connection, reply: Reply, pieces: bytearray, idle: float
    ) -> Request | None:
        """The next request, whose body is gathered in ``pieces``; None: the client sends none.

        Raises _Refused and h11.RemoteProtocolError.
        """
        head: Request | None = None
        admitted = False
        with trio.move_on_after(idle) as scope, self._known_to_wait(scope, stream):
            for number in count():
                if number % PAUSE_EVENTS == PAUSE_EVENTS - 1:  # of chunks of a byte, a piece has thousands
                    await trio.lowlevel.checkpoint()
                event = connection.next_event()
                if event is h11.NEED_DATA:
                    if connection.they_are_waiting_for_100_continue:
                        await stream.send_all(
                            connection.send(h11.InformationalResponse(status_code=100, headers=[])) or b""
                        )
                    data = await stream.receive_some(PIECE_BYTES)
                    if data and scope.deadline > trio.current_time() + HEAD_SECONDS:
                        scope.deadline = trio.current_time() + HEAD_SECONDS
                    connection.receive_data(data)
                elif isinstance(event, h11.Request):
                    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
                    head = Request(event.method.decode("latin-1"), event.target.decode("latin-1"), headers, b"")
                    reply.bodiless, reply.path = head.method == "HEAD", head.path
                elif isinstance(event, h11.Data) and head is not None:
                    size = len(pieces) + len(event.data)
                    if size > self._body_bytes:
                        raise _Refused(413, f"a body of more than {self._body_bytes} bytes")
                    if size > FREE_BYTES and not admitted:
                        if why := await self._admit(head):
                            raise _Refused(401, why)
                        admitted = True
                        self._waiting.pop(scope, None)
                    if self._held + len(event.data) > HELD_BYTES:
                        raise _Refused(503, "too many large requests; try again")
                    self._held += len(event.data)
                    pieces += event.data
                elif isinstance(event, h11.EndOfMessage) and head is not None:
                    return replace(head, body=bytes(pieces))
                else:
                    return None
        if head is not None and trio.current_time() >= scope.deadline:
            raise _Refused(408, "the request is not whole in time")
        return None


async def _linger(stream: trio.SocketStream) -> None:
    """Let a client read the reply that is still sending: a connection that is closed now would be reset."""
    await stream.send_eof()
    with trio.move_on_after(LINGER_SECONDS):
        while await stream.receive_some(PIECE_BYTES):
            pass


async def _while_there(
    stream: trio.SocketStream, connection: h11.Connection, work: Callable[[], Awaitable[None]]
) -> None:
    """Do the work of a reply. Raises ClientLeft as soon as the client closes its connection."""
    left = False

    async def watch() -> None:
        nonlocal left
        while len(connection.trailing_data[0]) <= PIECE_BYTES:  # more than that waits until this request is answered
            try:
                data = await stream.receive_some(PIECE_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                data = b""
            if not data:
                left = True
                nursery.cancel_scope.cancel()
                return
            connection.receive_data(data)  # the next request, early

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        try:
            await work()
        except ClientLeft:
            left = True
        nursery.cancel_scope.cancel()
    if left:
        raise ClientLeft


def claim(port: int, owner: str) -> socket.socket:
    """Show that ``owner`` listens at a port as long as this socket is open. Raises OSError where another owner does.

    Connections to a shared port go to any who listen, also to those of another run. An abstract name is seen where the
    port is, in the network namespace, and ends with its process.
    """
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.bind(f"\0agent-rl-port-{port}-{owner}-{secrets.token_hex(4)}")
    names = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace")
    owners = re.findall(rf"@agent-rl-port-{port}-(\w+)-", names)
    if set(owners) != {owner}:
        made.close()
        raise OSError(errno.EADDRINUSE, f"port {port} is another run's; choose another port")
    return made


async def listen(address: str, port: int, *, shared: bool) -> list[trio.SocketListener]:
    """Listen at the port; ``shared``: other processes of this host may, too. Raises OSError."""
    made = trio.socket.socket(trio.socket.AF_INET6 if ":" in address else trio.socket.AF_INET)
    made.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_REUSEADDR, 1)
    if shared:
        made.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_REUSEPORT, 1)
    try:
        await made.bind((address, port))
    except OSError as error:
        made.close()
        raise OSError(error.errno, f"cannot listen at {address} port {port}: {error.strerror or error}") from error
    made.listen(4096)
    return [trio.SocketListener(made)]
