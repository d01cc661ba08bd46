"""The listener for Prometheus on a real socket. What any client may do to it is in tests/actors/test_http.py."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio

from actors.http import listen
from actors.runtime.supervise import serve_metrics

pytestmark = pytest.mark.real_time
TEXT = "# TYPE agent_rl_x gauge\nagent_rl_x 1\n"


def serving(main: Callable[[int], Awaitable[Any]], text: Callable[[], str] = lambda: TEXT) -> Any:
    """What ``main`` returns, given the port that is served; afterwards a scrape still succeeds."""

    async def body() -> Any:
        with trio.fail_after(30):
            listeners = await listen("127.0.0.1", 0, shared=False)
            port = listeners[0].socket.getsockname()[1]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve_metrics, listeners, text)
                result = await main(port)
                assert (await scrape(port))[0] == 200
                nursery.cancel_scope.cancel()
        return result

    return trio.run(body)


async def scrape(port: int, path: str = "/metrics", **options: Any) -> tuple[int, str, str]:
    """Status, content type and body, as a client from the standard library reads them."""

    def get() -> tuple[int, str, str]:
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", **options)
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return response.status, response.headers["Content-Type"], response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers["Content-Type"], error.read().decode()

    return await trio.to_thread.run_sync(get)


@pytest.mark.parametrize("path", ["/metrics", "/metrics?name[]=x"])
def test_a_scrape_gets_the_text(path: str) -> None:
    assert serving(partial(scrape, path=path)) == (200, "text/plain; version=0.0.4; charset=utf-8", TEXT)
    assert serving(partial(scrape, path=path, method="HEAD"))[::2] == (200, "")


@pytest.mark.parametrize(
    ("options", "status"), [({"path": "/"}, 404), ({"method": "DELETE"}, 405), ({"method": "POST", "data": b"x"}, 405)]
)
def test_anything_else_is_refused(options: dict[str, Any], status: int) -> None:
    assert serving(partial(scrape, **options))[0] == status


def test_clients_that_do_not_read_or_say_nothing_hold_nobody_up() -> None:
    async def main(port: int) -> list[tuple[int, str, str]]:
        streams = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(20)]
        await streams[0].send_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        others = [await scrape(port) for _ in range(3)]
        for stream in streams:
            await stream.aclose()
        return others

    assert [status for status, _, _ in serving(main, lambda: TEXT * 500_000)] == [200] * 3


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen at 127.0.0.1 port {port}: Address already in use"):
            trio.run(partial(listen, "127.0.0.1", port, shared=False))
