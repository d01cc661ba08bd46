"""What a program in a jail reaches: the gateway, and as a client of an HTTP proxy the addresses that its policy names.

::

    program --127.0.0.1:port of the jail--> relay ----------------------------------> gateway
                 CONNECT host:port, or GET http://host:port/...  --> is it named? --> that address, else 403

Names are resolved here, since a jail has no other network. A request for another address is refused, and told.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from contextlib import suppress

import trio

CONNECTIONS, CONNECTION_SECONDS = 64, 1.0
"""Of a program to its gateway at once, and the least that each counts: else a program could keep its owner busy."""
GATEWAY_SECONDS, GATEWAY_PAUSE = 30.0, 0.5
"""How long a connection waits for a gateway, and the pause between attempts."""
HEAD_BYTES = 64 * 1024
"""The most of a proxied request's head."""
END = b"\r\n\r\n"
_AUTHORITY = re.compile(r"(?:http://)?([^/?]*)(.*)", re.DOTALL)
"""Of any text, also one that `urllib` refuses: a program may write what it likes."""
OF_PROXIES = (b"connection:", b"proxy-", b"keep-alive:")
"""Headers that are not passed on."""


async def relay(
    url: str,
    listener: trio.SocketListener,
    named: Collection[str] = (),
    refused: Callable[[str], None] = lambda _: None,
) -> None:
    """Pass connections of a program in a jail on to the gateway, a limited number at once and in a second.

    ``named``: further addresses, each ``host:port``. ``refused`` hears of others that the program asks for.
    """
    places = trio.Semaphore(CONNECTIONS)

    async def one(stream: trio.SocketStream) -> None:
        until = trio.current_time() + CONNECTION_SECONDS
        try:
            async with stream:
                await _served(stream, url, {each.lower() for each in named}, refused)
        except* (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            pass  # one of the two has gone
        await trio.sleep_until(until)
        places.release()

    async with trio.open_nursery() as nursery:
        while True:
            await places.acquire()
            try:
                nursery.start_soon(one, await listener.accept())
            except OSError:  # no descriptor is left: others will end
                await trio.sleep(CONNECTION_SECONDS)
                places.release()


async def _served(stream: trio.SocketStream, url: str, named: Collection[str], refused: Callable[[str], None]) -> None:
    """Serve one connection. Raises BrokenResourceError."""
    data = b""
    while (asks := is_proxied(data)) is None or (asks and END not in data):
        part = await stream.receive_some(HEAD_BYTES)
        if not part or len(data) > HEAD_BYTES:
            return
        data += part
    if not asks:
        if (gateway := await _opened(url)) is not None:  # else the program sees a connection that was closed
            await _joined(stream, gateway, data)
        return
    address, first = wanted(data)
    if address.lower() not in named:
        refused(address)
        await _answered(stream, "403 Forbidden", f"{address} is none of the addresses in `harness.network`")
        return
    host, _, port = address.rpartition(":")
    try:
        peer = await trio.open_tcp_stream(host.strip("[]"), int(port))
    except (OSError, UnicodeError) as error:  # no name of a host can be so
        await _answered(stream, "502 Bad Gateway", f"{address} cannot be reached: {error}")
        return
    if not first:
        await stream.send_all(b"HTTP/1.1 200 Connection established" + END)
    await _joined(stream, peer, first + data.partition(END)[2])


async def _opened(url: str) -> trio.SocketStream | None:
    """A connection to the gateway; one that was lost is started again, and clients ask again for a second or two."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    with trio.move_on_after(GATEWAY_SECONDS):
        while True:
            try:
                return await trio.open_tcp_stream(host.strip("[]"), int(port))
            except OSError:
                await trio.sleep(GATEWAY_PAUSE)
    return None


def is_proxied(data: bytes) -> bool | None:
    """Whether a connection that begins so asks for another address than the gateway's; None: more has to come."""
    method, space, target = data.partition(b" ")
    if data and not (method.isalpha() and method.isupper()):
        return False
    if not space:
        return None
    if method == b"CONNECT" or target.startswith(b"http://"):
        return True
    return None if b"http://".startswith(target) else False


def wanted(request: bytes) -> tuple[str, bytes]:
    """The address ``host:port`` that a proxied request asks for, and the head that is sent there; b"" for a tunnel."""
    head = request.partition(END)[0]
    line, *headers = head.split(b"\r\n")
    method, target, *version = line.split(b" ")
    text = target.decode(errors="replace")
    if method == b"CONNECT":
        return text, b""
    at, rest = _AUTHORITY.fullmatch(text.partition("#")[0]).groups()  # type: ignore[union-attr]  # it matches any text
    at = at.rpartition("@")[2]
    whole = at if at.rpartition(":")[2].isdigit() else f"{at}:80"
    path = (rest if rest.startswith("/") else f"/{rest}").encode()
    kept = [each for each in headers if not each.lower().startswith(OF_PROXIES)]
    return whole, b"\r\n".join([b" ".join([method, path, *version]), *kept, b"Connection: close"]) + END


async def _answered(stream: trio.SocketStream, status: str, text: str) -> None:
    body = f"{text}\n".encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    await stream.send_all(head.encode() + body)


async def _joined(stream: trio.SocketStream, peer: trio.SocketStream, first: bytes) -> None:
    """Pass on what both say, after ``first``, until the peer has said all."""

    async def pump(source: trio.SocketStream, target: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            async for data in source:
                await target.send_all(data)
            if source is stream:
                await target.send_eof()  # the answer may still come
                return
        nursery.cancel_scope.cancel()

    async with peer, trio.open_nursery() as nursery:
        await peer.send_all(first)
        nursery.start_soon(pump, stream, peer)
        nursery.start_soon(pump, peer, stream)
