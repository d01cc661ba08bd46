"""The HTTP server under clients that break off, lie and flood, and requests of other sites."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest
import trio

from actors import http
from actors.http import Reply, Request, Server, claim, foreign, listen
from actors.sandbox.owner.relay import relay

pytestmark = pytest.mark.real_time
BODY = 300_000


@asynccontextmanager
async def server(respond: Callable[[Request, Reply], Any], **options: Any) -> AsyncIterator[int]:
    """The port of a server, which still answers at the end."""
    (listener,) = await listen("127.0.0.1", 0, shared=False)
    async with listener, trio.open_nursery() as nursery:
        made = Server(respond, BODY, 8, **options)
        nursery.start_soon(made.serve, [listener])
        port = listener.socket.getsockname()[1]
        yield port
        assert (await said(port, b"GET /fine HTTP/1.1\r\nHost: x\r\n\r\n")).startswith(b"HTTP/1.1 200")
        nursery.cancel_scope.cancel()


async def said(port: int, data: bytes) -> bytes:
    """What the server says to this."""
    found = b""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        with trio.move_on_after(5), suppress(trio.BrokenResourceError):
            await stream.send_all(data)
            async for piece in stream:
                found += piece
                if found.endswith(b"fine"):
                    break
    return found


async def echo(request: Request, reply: Reply) -> None:
    if request.path != "/fine":
        raise ValueError(request.path)
    await reply.send(200, b"fine", "text/plain")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"HEAD / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: nonsense\r\n\r\n", b"400"),
        (b"\x00\r\n\r\n", b"400"),
        (b"GET /what-raises HTTP/1.1\r\nHost: x\r\n\r\n", b""),
        (b"HEAD /what-raises HTTP/1.1\r\nHost: x\r\n\r\n", b""),
        (b"POST /fine HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % BODY + b"x" * (BODY + 1), b"200"),
        (b"POST /fine HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n50000\r\n" + b"x" * 0x50000, b"413"),
    ],
)
async def test_whatever_a_connection_brings_ends_no_other(data: bytes, status: bytes) -> None:
    async with server(echo) as port:
        assert (await said(port, data))[9:12] == status


async def test_a_large_body_is_read_from_those_alone_who_are_known_and_all_bodies_have_a_total(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "HELD_BYTES", 250_000)

    async def admit(request: Request) -> str:
        return "" if request.headers.get("x-api-key") == "right" else "no key"

    async with server(echo, admit=admit) as port:
        head = b"POST /fine HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\nX-Api-Key: "
        assert (await said(port, head + b"wrong\r\n\r\n" + b"x" * 70_000))[9:12] == b"401"
        assert (await said(port, head + b"right\r\n\r\n" + b"x" * 200_000))[9:12] == b"200"
        async with await trio.open_tcp_stream("127.0.0.1", port) as slow:
            await slow.send_all(head + b"right\r\n\r\n" + b"x" * 190_000)
            await trio.sleep(0.3)
            assert b"Retry-After: 1" in await said(port, head + b"right\r\n\r\n" + b"x" * 200_000)
        await trio.sleep(0.3)
        assert (await said(port, head + b"right\r\n\r\n" + b"x" * 200_000))[9:12] == b"200", "room is given back"


@pytest.mark.parametrize(
    ("headers", "local", "allowed"),
    [
        *(({"host": host}, True, True) for host in ("localhost:8642", "127.0.0.1", "[::1]:1", "LOCALHOST")),
        *(({"host": host}, True, False) for host in ("evil.example", "localhost.evil.example:80", "", "127.0.0.2")),
        ({"host": "gateway.cluster:8642"}, False, True),
        ({"host": "localhost:1", "origin": "https://evil.example"}, True, False),
        ({"host": "gateway.cluster", "origin": "https://evil.example"}, False, False),
        ({"host": "gateway.cluster:1", "origin": "http://gateway.cluster:1"}, False, True),
        ({"host": "localhost:1", "origin": "http://127.0.0.1:5173"}, True, True),
        ({"host": "localhost:1", "origin": "null"}, True, False),
    ],
)
def test_pages_of_other_sites_are_told_from_clients(headers: dict[str, str], local: bool, allowed: bool) -> None:
    assert (foreign(headers, local=local) == "") is allowed


@pytest.mark.parametrize("after", [0, 1, 3])
async def test_a_named_address_that_resets_ends_its_connection_alone(after: int) -> None:
    """``after``: what the address has read, before it resets."""

    async def resets(stream: trio.SocketStream) -> None:
        if after:
            await stream.receive_some(after)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await stream.aclose()

    (listener,) = await listen("127.0.0.1", 0, shared=False)
    async with listener, trio.open_nursery() as nursery:
        (site,) = await nursery.start(partial(trio.serve_tcp, resets, 0, host="127.0.0.1"))
        address = f"127.0.0.1:{site.socket.getsockname()[1]}"
        nursery.start_soon(relay, "http://127.0.0.1:1", listener, [address])
        port = listener.socket.getsockname()[1]
        for _ in range(3):
            for head in (f"CONNECT {address} HTTP/1.1\r\n\r\n", f"GET http://{address}/ HTTP/1.1\r\n\r\n"):
                await said(port, head.encode() + b"x" * 200_000)
        assert b"403" in await said(port, b"GET http://other.invalid/ HTTP/1.1\r\n\r\n")
        nursery.cancel_scope.cancel()


async def test_a_request_is_known_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    async def tell(request: Request, reply: Reply) -> None:
        shown = [request.method, request.path, request.headers["x-a"], len(request.body)]
        await reply.send(200, json.dumps(shown).encode() if request.path != "/fine" else b"fine")

    monkeypatch.setattr(http, "HEAD_SECONDS", 0.5)

    async def headed(request: Request, reply: Reply) -> None:
        await (tell(request, reply) if "x-a" in request.headers else echo(request, reply))

    async with server(headed) as port:
        asked = b"POST /a?b HTTP/1.1\r\nHost: x\r\nX-A: b\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc"
        assert json.loads((await said(port, asked)).rpartition(b"\r\n")[2]) == ["POST", "/a?b", "b", 3]
        assert (await said(port, asked[:-1]))[9:12] == b"408"
        with trio.fail_after(4):
            assert await said(port, b"") == b"", "a connection without a request is closed"


async def test_connections_that_say_nothing_keep_nobody_out() -> None:
    async with server(echo) as port, AsyncExitStack() as stack:
        for said_so_far in (b"", b"GET /fi", b"POST /fine HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n1") * 20:
            stream = await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port))
            await stream.send_all(said_so_far)
        assert (await said(port, b"GET /fine HTTP/1.1\r\nHost: x\r\n\r\n"))[9:12] == b"200"


def test_a_port_is_shared_with_the_same_owner_alone() -> None:
    first, second, other = claim(8642, "one"), claim(8642, "one"), claim(8643, "two")
    with pytest.raises(OSError, match="port 8642 is another run's"):
        claim(8642, "two")
    first.close()
    with pytest.raises(OSError, match="port 8642"):
        claim(8642, "two")
    second.close()
    claim(8642, "two").close()
    other.close()
