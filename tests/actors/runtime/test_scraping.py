"""The listener for Prometheus on a real socket: scrapes, rubbish, clients that are slow, silent, gone or too many."""

import socket
import urllib.error
import urllib.request
from functools import partial

import pytest
import trio

from actors.runtime import scraping
from actors.runtime.scraping import listen, serve_metrics

TEXT = "# TYPE agent_rl_x gauge\nagent_rl_x 1\n"


def serving(main, text=lambda: TEXT):
    """What ``main`` returns, given the port that is served; afterwards a scrape still succeeds."""

    async def body():
        with trio.fail_after(30):
            listeners = await listen("127.0.0.1", 0)
            port = listeners[0].socket.getsockname()[1]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve_metrics, listeners, text)
                result = await main(port)
                assert (await scrape(port))[0] == 200
                nursery.cancel_scope.cancel()
        return result

    return trio.run(body)


async def scrape(port, path="/metrics", **options):
    """Status, content type and body, as a client from the standard library reads them."""

    def get():
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", **options)
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return response.status, response.headers["Content-Type"], response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers["Content-Type"], error.read().decode()

    return await trio.to_thread.run_sync(get)


async def said_to(port, data, *, end=True):
    """The answer to raw bytes."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        await stream.send_all(data)
        if end:
            await stream.send_eof()
        answer = b""
        async for some in stream:
            answer += some
    return answer


def test_a_scrape_gets_the_text():
    status, kind, body = serving(scrape)
    assert (status, kind, body) == (200, "text/plain; version=0.0.4; charset=utf-8", TEXT)
    assert serving(partial(scrape, path="/metrics?name[]=x"))[0] == 200


@pytest.mark.parametrize(
    ("options", "status"), [({"path": "/"}, 404), ({"method": "DELETE"}, 405), ({"method": "POST", "data": b"x"}, 405)]
)
def test_anything_else_is_refused(options, status):
    assert serving(partial(scrape, **options))[0] == status


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\r\n\r\n", b"400"),
        (b"GET /metrics\r\n\r\n", b"400"),
        (b"\x16\x03\x01" + bytes(range(256)) + b"\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/9\r\n\r\n", b"400"),
        (b"GET  HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\n\r\n", b"400"),  # no Host
        (b"GET /other HTTP/1.1\r\nHost: a\r\n\r\n", b"404"),
        (b"GET /metrics HTTP/1.1\r\nHalf", b"400"),
    ],
)
def test_rubbish_is_answered_as_such(data, status):
    assert serving(partial(said_to, data=data)).startswith(b"HTTP/1.1 " + status)


def test_a_client_that_asks_nothing_and_ends_gets_no_answer():
    assert serving(partial(said_to, data=b"")) == b""


@pytest.mark.parametrize(("path", "status"), [("/metrics", 200), ("/", 404)])
def test_a_request_for_the_head_gets_no_body(path, status):
    answer = serving(partial(said_to, data=f"HEAD {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode()))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d" % status)
    assert (b"Content-Length: %d" % len(TEXT) in head) == (status == 200)
    assert body == b""


def test_a_request_without_end_is_cut_off():
    async def main(port):
        try:
            return await said_to(port, b"GET /" + b"x" * 10_000_000, end=False)
        except trio.BrokenResourceError:  # parted from while it was still talking
            return b"HTTP/1.1 431"

    assert serving(main).startswith(b"HTTP/1.1 431")


def test_a_client_that_asks_nothing_is_parted_from(monkeypatch):
    monkeypatch.setattr(scraping, "SECONDS", 0.1)
    assert serving(partial(said_to, data=b"GET /met", end=False)).startswith(b"HTTP/1.1 408")


def test_a_client_that_does_not_read_holds_nobody_up(monkeypatch):
    monkeypatch.setattr(scraping, "SECONDS", 0.3)

    async def main(port):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        others = [await scrape(port) for _ in range(3)]
        await trio.sleep(0.6)
        await stream.aclose()
        return others

    assert [status for status, _, _ in serving(main, lambda: TEXT * 500_000)] == [200] * 3


def test_a_client_that_hangs_up_at_once_does_no_harm():
    async def main(port):
        for _ in range(20):
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # reset, not closed
            await stream.send_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
            await stream.aclose()

    serving(main, lambda: TEXT * 100_000)


def test_too_many_at_once_are_sent_away_and_their_places_come_back(monkeypatch):
    async def main(port):
        idle = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(scraping.AT_ONCE)]
        refused = await scrape(port)
        for stream in idle:
            await stream.aclose()
        with trio.fail_after(10):
            while (await scrape(port))[0] != 200:
                pass
        return refused

    assert serving(main)[0] == 503


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen at 127.0.0.1 port {port}: Address already in use"):
            trio.run(listen, "127.0.0.1", port)
