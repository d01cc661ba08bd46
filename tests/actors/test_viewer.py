"""`agent-rl view`: what it serves, how soon a change reaches a viewer, and whom it refuses."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.cli.output import Mistake
from actors.cli.records import decode_stored
from actors.cli.view import _listen, offer_page, view
from actors.http import listen
from actors.viewer import Viewer
from agent_rl.observe.report import Watched
from agent_rl.observe.report.catalogue import Catalogue
from agent_rl.records.run_directory import run_lock
from tests.actors.sandbox.running import commands
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


@pytest.fixture
def run(tmp_path: Path) -> Iterator[SyntheticRun]:
    """A run under way, with one step of two groups."""
    made = SyntheticRun(tmp_path).timeline()
    made.enter(RL)
    made.step([[0, 1], [1, 1]], ["</script><img src=x onerror=alert(1)>"])
    made.records.commit()
    yield made
    made.close()


async def test_requests_that_ask_for_nothing_end_nothing(run: SyntheticRun) -> None:
    async with served(run.directory) as port:
        for method, path in (("HEAD", "/events"), ("HEAD", "/"), ("GET", "/")):
            assert (await ask(port, path, method))[0] == 200, path


async def test_a_change_of_a_run_under_way_reaches_a_viewer_within_a_second(run: SyntheticRun) -> None:
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


async def test_a_viewer_hears_that_the_run_ended_though_no_file_changes(run: SyntheticRun) -> None:
    states: list[str] = []
    with ExitStack() as held:
        held.enter_context(run_lock(run.directory, ["local"]))
        async with served(run.directory) as port, events(port) as messages:
            with trio.fail_after(20):
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
            with trio.fail_after(20):
                while "headline" not in await anext(messages):
                    pass


async def test_a_trajectory_comes_whole_on_demand(run: SyntheticRun) -> None:
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
            (f"/trajectory?key=a.{'9' * 5000}.1", 400), ("/../../etc/passwd", 404), ("/trajectory?key=g.%C2%B2.0", 400),
            ("/trajectory?key=g.0.0&run=0000000005", 404), (f"/trajectory?key=g.0.0&run={'9' * 5000}", 404),
        ):  # fmt: skip
            assert (await ask(port, path))[0] == expected
        assert (await ask(port, "/", "POST"))[0] == 405


async def test_the_page_is_whole_and_served_to_names_of_this_host_alone(run: SyntheticRun) -> None:
    async with served(run.directory) as port:
        status, page = await ask(port, "/")
        assert status == 200
        assert "connect-src 'self'; default-src 'none'" in page
        assert 'src="' not in page
        for path, host in (("/", "evil.example"), ("/trajectory?key=a.1.1", "evil.example:80")):
            assert (await ask(port, path, Host=host))[0] == 403


async def test_beyond_this_host_a_viewer_names_the_token(run: SyntheticRun) -> None:
    async with served(run.directory, token="secret") as port:
        for path in ("/", "/events", "/trajectory?key=a.1.1", "/?token=wrong"):
            assert (await ask(port, path))[0] == 403
        assert (await ask(port, "/?token=secret", Host="somewhere.example"))[0] == 200


async def test_garbage_is_answered_and_the_next_viewer_served(run: SyntheticRun) -> None:
    async with served(run.directory) as port:
        host = b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
        wrong = b"\x00\xff\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"A" * 70_000, b"GET / HTTP/1.1\r\nHost: [\r\n\r\n"
        for garbage in (*wrong, b"GET //[x" + host, b"GET /trajectory?run=0&key=a.%C2%B2.1" + host):
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            async with stream:
                await stream.send_all(garbage)
                assert (await stream.receive_some(100)).startswith(b"HTTP/1.1 4")
        assert (await ask(port, "/"))[0] == 200


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
        assert (await ask(port, "/"))[0] == 403
        status, page = await ask(port, f"/?token={token}")
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
            with trio.fail_after(20):
                await begun.wait()
            async with events(port) as second:
                status, _ = await ask(port, "/")  # later than the second viewer's question
                go_on.set()
                with trio.fail_after(20):
                    assert "run" in await anext(second)
            assert status == 200
