"""``GET /metrics``: a listener for Prometheus, and nothing more of HTTP than it takes.

Whoever connects gets one answer and is parted from: rubbish is answered with its status, a slow client has seconds, and few
are served at once, so that no scraper can hold up a run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

SECONDS = 5.0
"""How long a client may take to ask, and as long again to read the answer."""
HEAD_BYTES = 8192
AT_ONCE = 8
"""Clients served at once; further ones are sent away."""
TEXT = "text/plain; version=0.0.4; charset=utf-8"


async def listen(address: str, port: int) -> list[trio.SocketListener]:
    """Listen at the port. Raises OSError, which names both."""
    try:
        return await trio.open_tcp_listeners(port, host=address)
    except OSError as error:
        raise OSError(error.errno, f"cannot listen at {address} port {port}: {error.strerror or error}") from error


async def serve_metrics(listeners: Sequence[trio.SocketListener], text: Callable[[], str]) -> None:
    """Answer until cancelled; ``text`` is called for each scrape."""
    served = 0

    async def serve(stream: trio.SocketStream) -> None:
        nonlocal served
        served += 1
        try:
            answer = await _asked(stream) if served <= AT_ONCE else (503, "too many at once\n")
            status, body = (200, text()) if answer is None else answer
            with trio.move_on_after(SECONDS):
                await stream.send_all(_response(status, body))
                await stream.send_eof()
        except trio.BrokenResourceError:
            pass  # it has gone: nobody is left to be told
        finally:
            served -= 1

    await trio.serve_listeners(serve, list(listeners))


async def _asked(stream: trio.SocketStream) -> tuple[int, str] | None:
    """None when the metrics were asked for, else the status and text of what is to be said instead."""
    head = b""
    with trio.move_on_after(SECONDS) as waiting:
        while b"\r\n\r\n" not in head and len(head) <= HEAD_BYTES:
            some = await stream.receive_some(HEAD_BYTES)
            if not some:
                return 400, "no request\n"
            head += some
    if waiting.cancelled_caught:
        return 408, "too slow\n"
    if len(head) > HEAD_BYTES:
        return 431, "the request is too long\n"
    words = head.split(b"\r\n", 1)[0].split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
        return 400, "this is no HTTP request\n"
    if words[1].partition(b"?")[0] != b"/metrics":
        return 404, "there is /metrics\n"
    return None if words[0] == b"GET" else (405, "only GET\n")


REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


def _response(status: int, body: str) -> bytes:
    data = body.encode("utf-8", "replace")
    allow = "Allow: GET\r\n" if status == 405 else ""
    head = (
        f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: {TEXT}\r\nContent-Length: {len(data)}\r\n{allow}"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + data
