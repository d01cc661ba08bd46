"""`agent-rl view`: what it serves, how soon a change reaches a viewer, and whom it refuses."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.cli.output import Mistake
from actors.cli.records import decode_stored
from actors.cli.view import _listen, view
from actors.http import listen
from actors.viewer import Viewer
from agent_rl.observe.report import Watched
from tests.agent_rl.records.report_runs import RL, SyntheticRun

pytestmark = pytest.mark.real_time


@asynccontextmanager
async def served(*directories: Path, token: str = "") -> AsyncIterator[int]:
    """The port of a viewer of these runs."""
    viewer = Viewer([Watched(directory, decode_stored) for directory in directories], token)
    (listener,) = await listen("127.0.0.1", 0, shared=False)
    async with listener, trio.open_nursery() as nursery:
        nursery.start_soon(viewer.run, [listener])
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    """Status and text of an answer."""

    def asked() -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        found = answer.status, answer.read().decode()
        connection.close()
        return found

    return await trio.to_thread.run_sync(asked)


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
            yield found


def under_way(folder: Path) -> SyntheticRun:
    run = SyntheticRun(folder).timeline()
    run.enter(RL)
    run.step([[0, 1], [1, 1]], ["</script><img src=x onerror=alert(1)>"])
    run.records.commit()
    return run


async def test_a_change_of_a_run_under_way_reaches_a_viewer_within_a_second(tmp_path: Path) -> None:
    run = under_way(tmp_path)
    async with served(run.directory) as port, events(port) as messages:
        rows: set[str] = set()
        sections: dict[str, Any] = {}
        changed = 0.0
        with trio.fail_after(20):
            async for message in messages:
                rows |= {".".join(map(str, row[:3])) for row in message.get("rows", {}).get("rows", ())}
                sections |= {each["id"]: each for each in message.get("sections", ())}
                if not changed and len(rows) == 4 and "learning" in sections:
                    changed = trio.current_time()
                    run.step([[0, 1]])
                    run.records.commit()
                if len(rows) == 6 and "step 2" in json.dumps(sections["learning"]):
                    break
        assert trio.current_time() - changed < 2.5  # 1 s, and what a loaded machine adds
    run.close()


async def test_a_trajectory_comes_whole_on_demand(tmp_path: Path) -> None:
    run = under_way(tmp_path)
    async with served(run.directory) as port:
        status, text = await ask(port, "/trajectory?run=0&key=s2-g000000.1.0")
        body = json.loads(text)
        assert status == 200
        assert body["turns"][0]["parts"] == ["</script><img src=x onerror=alert(1)>"]
        assert body["raw"].endswith("</script><img src=x onerror=alert(1)>")
        assert await ask(port, "/trajectory?run=0&key=s2-g000009.1.0") == (200, "null")
        for path, expected in (
            ("/trajectory", 400), ("/trajectory?key=a.b.c", 400), ("/trajectory?key=a.1", 400),
            ("/trajectory?run=7&key=a.1.1", 404), ("/trajectory?run=-1&key=a.1.1", 400), ("/else", 404),
            (f"/trajectory?key=a.{'9' * 5000}.1", 400), ("/../../etc/passwd", 404),
        ):  # fmt: skip
            assert (await ask(port, path))[0] == expected
        assert (await ask(port, "/", "POST"))[0] == 405
    run.close()


async def test_the_page_is_whole_and_served_to_names_of_this_host_alone(tmp_path: Path) -> None:
    run = under_way(tmp_path)
    async with served(run.directory) as port:
        status, page = await ask(port, "/")
        assert status == 200
        assert "connect-src 'self'; default-src 'none'" in page
        assert 'src="' not in page
        assert (await ask(port, "/", Host="evil.example"))[0] == 403
        assert (await ask(port, "/trajectory?key=a.1.1", Host="evil.example:80"))[0] == 403
    run.close()


async def test_beyond_this_host_a_viewer_names_the_token(tmp_path: Path) -> None:
    run = under_way(tmp_path)
    async with served(run.directory, token="secret") as port:
        for path in ("/", "/events", "/trajectory?key=a.1.1", "/?token=wrong"):
            assert (await ask(port, path))[0] == 403
        assert (await ask(port, "/?token=secret", Host="somewhere.example"))[0] == 200
    run.close()


async def test_garbage_is_answered_and_the_next_viewer_served(tmp_path: Path) -> None:
    run = under_way(tmp_path)
    async with served(run.directory) as port:
        host = b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
        wrong = b"\x00\xff\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"A" * 70_000, b"GET / HTTP/1.1\r\nHost: [\r\n\r\n"
        for garbage in (*wrong, b"GET //[x" + host, b"GET /trajectory?run=0&key=a.%C2%B2.1" + host):
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            async with stream:
                await stream.send_all(garbage)
                assert (await stream.receive_some(100)).startswith(b"HTTP/1.1 4")
        assert (await ask(port, "/"))[0] == 200
    run.close()


async def test_a_port_in_use_is_said_and_the_next_one_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with await _listen("127.0.0.1", port) as listener:
            got = listener.socket.getsockname()[1]
    assert got > port
    assert capsys.readouterr().err == f"agent-rl view: port {port} is in use; this is port {got}\n"


def test_what_is_no_run_is_refused_in_one_line(tmp_path: Path) -> None:
    for directories, said in (((), "name a run directory"), ((tmp_path,), "is no run directory")):
        with pytest.raises(Mistake) as refused:
            view(*directories)
        assert said in "\n".join(refused.value.lines)
