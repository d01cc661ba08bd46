"""``GET /metrics``: a listener for Prometheus.

Each connection gets one answer and is then closed. A request other than a scrape gets an error status. A client has a
few seconds, and only a few clients are served at once, so that no client can hold up a run. h11 reads and writes the
HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus

import h11
import trio

from agent_rl.config.topology import Topology
from agent_rl.records.run_directory import RunRefused

SECONDS = 5.0
"""Seconds a client may take to send its request, and again to read the answer."""
HEAD_BYTES = 8192
AT_ONCE = 8
"""Clients served at once; further clients get status 503."""
TEXT = "text/plain; version=0.0.4; charset=utf-8"


async def listen(address: str, port: int) -> list[trio.SocketListener]:
    """Listen at the port. Raises OSError with a message that names address and port."""
    try:
        return await trio.open_tcp_listeners(port, host=address)
    except OSError as error:
        raise OSError(error.errno, f"cannot listen at {address} port {port}: {error.strerror or error}") from error


async def serve_metrics(listeners: Sequence[trio.SocketListener], text: Callable[[], str]) -> None:
    """Answer scrapes until cancelled. ``text`` is called for each scrape."""
    served = 0

    async def serve(stream: trio.SocketStream) -> None:
        nonlocal served
        served += 1
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        try:
            asked = await _asked(stream, connection) if served <= AT_ONCE else (503, "too many at once\n")
            if asked is not None:
                response = _response(connection, asked, text)
                with trio.move_on_after(SECONDS):
                    await stream.send_all(response)
                    await stream.send_eof()
        except trio.BrokenResourceError:
            pass  # the client has closed the connection
        finally:
            served -= 1

    await trio.serve_listeners(serve, list(listeners))


async def _asked(stream: trio.SocketStream, connection: h11.Connection) -> h11.Request | tuple[int, str] | None:
    """The request; or status and text for an invalid request; or None when the client sent nothing."""
    with trio.move_on_after(SECONDS):
        try:
            while (event := connection.next_event()) is h11.NEED_DATA:
                connection.receive_data(await stream.receive_some(HEAD_BYTES))
        except h11.RemoteProtocolError as error:
            return error.error_status_hint, f"{error}\n"
        return event if isinstance(event, h11.Request) else None
    return 408, "too slow\n"


def _response(connection: h11.Connection, asked: h11.Request | tuple[int, str], text: Callable[[], str]) -> bytes:
    status, body = _answer(asked, text) if isinstance(asked, h11.Request) else asked
    data = body.encode("utf-8", "replace")
    headers = [("Content-Type", TEXT), ("Content-Length", str(len(data))), ("Connection", "close")]
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        headers.append(("Allow", "GET, HEAD"))
    head = h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase.encode())
    only_head = isinstance(asked, h11.Request) and asked.method == b"HEAD"
    events = [head, h11.EndOfMessage()] if only_head else [head, h11.Data(data=data), h11.EndOfMessage()]
    return b"".join(connection.send(event) or b"" for event in events)


def _answer(request: h11.Request, text: Callable[[], str]) -> tuple[int, str]:
    if request.target.partition(b"?")[0] != b"/metrics":
        return 404, "there is /metrics\n"
    return (200, text()) if request.method in {b"GET", b"HEAD"} else (405, "only GET and HEAD\n")


async def listeners_of(topology: Topology, hosts: Sequence[str]) -> list[trio.SocketListener]:
    """The listeners for metrics; none unless one of ``hosts`` is the main host, which hears all actors."""
    run = topology.run
    if run.metrics_port is None or topology.main_host not in hosts:
        return []
    try:
        return await listen(run.metrics_address, run.metrics_port)
    except OSError as error:
        raise RunRefused(f"run.metrics_port: {error.strerror}; choose another port or address") from error
