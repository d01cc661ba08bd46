"""The HTTP server under clients that break off, lie and flood, and requests of other sites; and `agent-rl view`, which is
one: what it serves, how soon a change reaches a viewer, and whom it refuses.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from actors import http as served_http
from actors.cli.output import Mistake
from actors.cli.records import decode_stored
from actors.cli.view import _listen, offer_page, view
from actors.http import Reply, Request, Server, claim, foreign, listen
from actors.sandbox.owner.relay import relay
from actors.viewer import Viewer
from agent_rl.observe.report import Watched
from agent_rl.observe.report.catalogue import Catalogue
from agent_rl.records.run_directory import run_lock
from tests.actors.sandbox.running import commands
from tests.agent_rl.records.report_runs import RL, SyntheticRun

pytestmark = pytest.mark.real_time
BODY = 300_000
FINE = b"GET /fine HTTP/1.1\r\nHost: x\r\n\r\n"


@asynccontextmanager
async def listening(serve: Callable[[list[trio.SocketListener]], Awaitable[None]]) -> AsyncIterator[int]:
    """The port of a server."""
    (listener,) = await listen("127.0.0.1", 0, shared=False)
    async with listener, trio.open_nursery() as nursery:
        nursery.start_soon(serve, [listener])
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def server(respond: Callable[[Request, Reply], Any], **options: Any) -> AsyncIterator[int]:
    """The port of a server, which still answers at the end."""
    async with listening(Server(respond, BODY, 8, **options).serve) as port:
        yield port
        assert (await said(port, FINE)).startswith(b"HTTP/1.1 200")


async def said(port: int, data: bytes) -> bytes:
    """What the server says to this."""
    found = b""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        with trio.move_on_after(60), suppress(trio.BrokenResourceError):
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
        (b"\x00\xff\r\n\r\n", b"400"),
        (b"GET / HTTP/9\r\n\r\n", b"400"),
        (b"A" * 70_000, b"431"),
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
    monkeypatch.setattr(served_http, "HELD_BYTES", 250_000)

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

    monkeypatch.setattr(served_http, "HEAD_SECONDS", 0.5)

    async def headed(request: Request, reply: Reply) -> None:
        await (tell(request, reply) if "x-a" in request.headers else echo(request, reply))

    async with server(headed) as port:
        asked = b"POST /a?b HTTP/1.1\r\nHost: x\r\nX-A: b\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc"
        assert json.loads((await said(port, asked)).rpartition(b"\r\n")[2]) == ["POST", "/a?b", "b", 3]
        assert (await said(port, asked[:-1]))[9:12] == b"408"
        with trio.fail_after(30):
            assert await said(port, b"") == b"", "a connection without a request is closed"


async def test_connections_that_say_or_read_nothing_keep_nobody_out() -> None:
    async def respond(request: Request, reply: Reply) -> None:
        await reply.send(200, b"fine" * (10_000_000 if request.path == "/much" else 1), "text/plain")

    begun = b"", b"GET /fi", b"POST /fine HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n1"
    async with server(respond) as port, AsyncExitStack() as stack:
        for said_so_far in (*begun * 20, *[b"GET /much HTTP/1.1\r\nHost: x\r\n\r\n"] * 4):
            stream = await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port))
            await stream.send_all(said_so_far)
        assert (await said(port, FINE))[9:12] == b"200"


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


# The viewer -------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def served(*directories: Path, token: str = "") -> AsyncIterator[int]:
    """The port of a viewer of these runs."""
    async with listening(Viewer([Watched(each, decode_stored) for each in directories], token).run) as port:
        yield port


async def asked(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    """Status and text of an answer."""

    def ask() -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        found = answer.status, answer.read().decode()
        connection.close()
        return found

    return await trio.to_thread.run_sync(ask)


@asynccontextmanager
async def events(port: int) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """The messages that a viewer gets."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        await stream.send_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")

        async def messages() -> AsyncIterator[dict[str, Any]]:
            text = b""
            async for piece in stream:
                text += piece
                while b"\n\n" in text:
                    event, _, text = text.partition(b"\n\n")
                    at = event.find(b"data: ")
                    if at >= 0:  # after the length of the piece
                        yield json.loads(event[at + len(b"data: ") :])

        async with aclosing(messages()) as found:
            with trio.fail_after(20):
                yield found


@pytest.fixture
def run(tmp_path: Path) -> Iterator[SyntheticRun]:
    """A run under way, with one step of two groups."""
    made = SyntheticRun(tmp_path).timeline()
    made.enter(RL)
    made.step([[0, 1], [1, 1]], ["</script><img src=x onerror=alert(1)>"])
    made.records.commit()
    yield made
    made.close()


async def test_a_change_of_a_run_under_way_reaches_a_viewer_within_a_second(run: SyntheticRun) -> None:
    async with served(run.directory) as port, events(port) as messages:
        rows: set[str] = set()
        sections: dict[str, Any] = {}
        changed = 0.0
        async for message in messages:
            rows |= {".".join(map(str, row[:3])) for row in message.get("rows", {}).get("rows", ())}
            sections |= {each["id"]: each for each in message.get("sections", ())}
            if not changed and len(rows) == 4 and "learning" in sections:
                changed = trio.current_time()
                run.step([[0, 1]])
                run.records.commit()
            if len(rows) == 6 and "step 2" in json.dumps(sections["learning"]):
                break
        assert (
            trio.current_time() - changed < 10
        )  # 1 s, and what a loaded machine adds; the next sign of life is due after 15


async def test_a_viewer_hears_that_the_run_ended_though_no_file_changes(run: SyntheticRun) -> None:
    states: list[str] = []
    with ExitStack() as held:
        held.enter_context(run_lock(run.directory, ["local"]))
        async with served(run.directory) as port, events(port) as messages:
            async for message in messages:
                for section in message.get("sections", ()):
                    if section["id"] == "topology":
                        states.append(section["blocks"][0]["graph"]["state"])
                        held.close()
                if states[-1:] == ["ended"]:
                    break
    assert states == ["late", "ended"]


async def test_a_run_that_starts_has_a_page_before_its_actors_have_made_a_file(tmp_path: Path) -> None:
    with run_lock(tmp_path, ["local"]):
        async with served(tmp_path) as port, events(port) as messages:
            while "headline" not in await anext(messages):
                pass


async def test_a_trajectory_comes_whole_on_demand(run: SyntheticRun) -> None:
    async with served(run.directory) as port:
        status, text = await asked(port, "/trajectory?run=0&key=s2-g000000.1.0")
        body = json.loads(text)
        assert status == 200
        assert body["turns"][0]["parts"] == ["</script><img src=x onerror=alert(1)>"]
        assert body["raw"].endswith("</script><img src=x onerror=alert(1)>")
        assert await asked(port, "/trajectory?run=0&key=s2-g000009.1.0") == (200, "null")
        for path, expected in (
            ("/trajectory", 400), ("/trajectory?key=a.b.c", 400), ("/trajectory?key=a.1", 400),
            ("/trajectory?run=7&key=a.1.1", 404), ("/trajectory?run=-1&key=a.1.1", 400), ("/else", 404), ("//[x", 404),
            (f"/trajectory?key=a.{'9' * 5000}.1", 400), ("/../../etc/passwd", 404), ("/trajectory?key=g.%C2%B2.0", 400),
            ("/trajectory?key=g.0.0&run=0000000005", 404), (f"/trajectory?key=g.0.0&run={'9' * 5000}", 404),
        ):  # fmt: skip
            assert (await asked(port, path))[0] == expected
        assert (await asked(port, "/", "POST"))[0] == 405


async def test_the_page_is_whole_and_served_to_names_of_this_host_alone(run: SyntheticRun) -> None:
    async with served(run.directory) as port:
        for method, path in (("HEAD", "/events"), ("HEAD", "/")):
            assert (await asked(port, path, method))[0] == 200, "what asks for nothing ends nothing"
        status, page = await asked(port, "/")
        assert status == 200
        assert "connect-src 'self'; default-src 'none'" in page
        assert 'src="' not in page
        for path, host in (("/", "evil.example"), ("/", "["), ("/trajectory?key=a.1.1", "evil.example:80")):
            assert (await asked(port, path, Host=host))[0] == 403


async def test_beyond_this_host_a_viewer_names_the_token(run: SyntheticRun) -> None:
    async with served(run.directory, token="secret") as port:
        for path in ("/", "/events", "/trajectory?key=a.1.1", "/?token=wrong"):
            assert (await asked(port, path))[0] == 403
        assert (await asked(port, "/?token=secret", Host="somewhere.example"))[0] == 200


async def test_a_port_in_use_is_said_and_the_next_one_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with await _listen("127.0.0.1", port) as listener:
            got = listener.socket.getsockname()[1]
    assert got > port
    assert capsys.readouterr().err == f"agent-rl view: port {port} is in use; this is port {got}\n"


def test_what_cannot_be_viewed_is_refused(run: SyntheticRun, tmp_path: Path) -> None:
    for directories, said in ((), "name a run directory"), ((tmp_path,), "is no run directory"):
        with pytest.raises(Mistake) as refused:
            view(*directories)
        assert said in "\n".join(refused.value.lines)


@pytest.mark.parametrize("killed", [True, False])
async def test_a_run_says_the_address_of_its_page_whose_process_starts_with_the_first_visitor(
    run: SyntheticRun, *, killed: bool
) -> None:
    say, said = trio.open_memory_channel[str](9)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(offer_page, run.directory, say.send_nowait)
        address = (await said.receive()).rpartition(" ")[2]
        port, token = int(address.split(":")[2].partition("/")[0]), address.rpartition("=")[2]
        assert commands(b"--descriptor", bytes(run.directory)) == []
        assert (await asked(port, "/"))[0] == 403
        status, page = await asked(port, f"/?token={token}")
        assert (status, "connect-src 'self'" in page) == (200, True)
        (process,) = commands(b"--descriptor", bytes(run.directory))
        if killed:
            os.kill(process, signal.SIGKILL)
            with trio.fail_after(20):
                ended = await said.receive()
            assert ended == f"the run's page has ended with code -9; agent-rl view {run.directory} serves it again"
        nursery.cancel_scope.cancel()
    assert commands(b"--descriptor", bytes(run.directory)) == []


async def test_a_viewer_who_comes_while_a_run_is_read_gets_it_afterwards(
    run: SyntheticRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, look, everything = trio.Event(), threading.Event(), Watched.look, Catalogue.everything
    reading: list[bool] = [False]

    def slow(watched: Watched) -> Any:
        reading[0] = True
        trio.from_thread.run_sync(begun.set)
        assert go_on.wait(20)
        found = look(watched)
        reading[0] = False
        return found

    def listed(catalogue: Catalogue) -> Any:
        assert not reading[0]
        return everything(catalogue)

    async with served(run.directory) as port:
        async with events(port) as first:
            await anext(first)
            monkeypatch.setattr(Watched, "look", slow)
            monkeypatch.setattr(Catalogue, "everything", listed)
            run.step([[0, 1]])
            run.records.commit()
            await begun.wait()
            async with events(port) as second:
                status, _ = await asked(port, "/")  # later than the second viewer's question
                go_on.set()
                assert "run" in await anext(second)
            assert status == 200
