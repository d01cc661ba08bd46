"""``agent-rl view``: the page of one or several runs, live, in a browser."""

from __future__ import annotations

import errno
import ipaddress
import secrets
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from actors.cli.output import Mistake, complain, say

if TYPE_CHECKING:
    import trio

    from actors.viewer import Viewer

PORT = 8089
MOST_SAID = 4096
"""Bytes that are kept of what the page's process says on stderr."""
PORTS = 20
"""Ports that are tried, where others are in use."""


def view(
    *directories: Annotated[Path, Parameter(name="RUN", help="run directories: the first one, and others beside it")],
    address: Annotated[str, Parameter(help="where it listens; beyond this host, viewers need the printed token")] = (
        "127.0.0.1"
    ),
    port: Annotated[
        int, Parameter(help="0: one that is free; where it is in use, the next one", validator=Number(gte=0, lte=65535))
    ] = PORT,
    descriptor: Annotated[int | None, Parameter(show=False)] = None,
) -> int:
    """Serve the page of runs until SIGINT or SIGTERM. Runs may be under way, ended, crashed or copied.

    Nothing is written into a run directory. With a ``descriptor``, as `offer_page` starts it: the page is served at
    this socket, with the token of stdin, until stdin is closed.
    """
    import trio

    from actors.cli.records import decode_stored
    from actors.viewer import Viewer
    from agent_rl.observe.report import ReportError, Watched

    if not directories:
        raise Mistake("agent-rl view: name a run directory, as in agent-rl view runs/quickstart")
    try:
        runs = [Watched(directory, decode_stored) for directory in directories]
    except ReportError as error:
        raise Mistake(f"agent-rl view: {error}") from error
    if descriptor is not None:
        trio.run(_serve_there, Viewer(runs, sys.stdin.readline().strip()), descriptor)
        return 0
    token = "" if _is_loopback(address) else secrets.token_urlsafe(24)
    trio.run(_serve, Viewer(runs, token), address, port, token)
    return 0


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


async def _listen(address: str, port: int, say: Callable[[str], object] = complain) -> trio.SocketListener:
    """Listen at the port, or at the next one that is free, which is said."""
    from actors.http import listen

    for tried in range(port, min(port + PORTS, 65536)) if port else (0,):
        try:
            (listener,) = await listen(address, tried, shared=False)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise Mistake(f"agent-rl view: {error.strerror}; choose another --address or --port") from error
        else:
            if tried != port:
                say(f"agent-rl view: port {port} is in use; this is port {tried}")
            return listener
    raise Mistake(f"agent-rl view: ports {port} to {port + PORTS - 1} of {address} are in use; choose another --port")


async def _serve(viewer: Viewer, address: str, port: int, token: str) -> None:
    import trio

    from actors.runtime.interrupts import stop_signals

    with trio.open_signal_receiver(*stop_signals()) as signals:
        listener = await _listen(address, port)
        async with listener, trio.open_nursery() as nursery:

            async def end() -> None:
                async for _ in signals:
                    nursery.cancel_scope.cancel()

            nursery.start_soon(end)
            nursery.start_soon(viewer.run, [listener])
            host = f"[{address}]" if ":" in address else address
            place = f"http://{host}:{listener.socket.getsockname()[1]}/"
            say(f"{place}?token={token}" if token else place, flush=True)


async def _serve_there(viewer: Viewer, descriptor: int) -> None:
    import trio

    listener = trio.SocketListener(trio.socket.from_stdlib_socket(socket.socket(fileno=descriptor)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(viewer.run, [listener])
        await trio.lowlevel.wait_readable(0)  # whoever started this process has ended
        nursery.cancel_scope.cancel()


async def offer_page(directory: Path, say: Callable[[str], object]) -> None:
    """Say the address of a run's page, and serve it from a process of its own, which starts with the first visitor.

    The process ends with this one. Raises nothing: what fails is said.
    """
    import trio

    from actors.cluster.places import own_command

    by_hand = f"agent-rl view {shlex.quote(str(directory))}"
    try:
        listener = await _listen("127.0.0.1", PORT, lambda _: None)
    except Mistake as mistake:
        say(f"the run's page has no address: {mistake.lines[0]}")
        return
    token = secrets.token_urlsafe(16)
    port, descriptor = listener.socket.getsockname()[1], listener.socket.fileno()
    say(f"look at it in a browser: http://127.0.0.1:{port}/?token={token}")
    command = [*own_command(), "view", str(directory), "--descriptor", str(descriptor)]
    said = b""
    async with listener:
        await trio.lowlevel.wait_readable(descriptor)
        try:
            process = await trio.lowlevel.open_process(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[descriptor],
                start_new_session=True,  # Ctrl-C is for the run, whose page stays until it has ended
            )
        except OSError as error:
            say(f"the run's page cannot be served ({error.strerror}); try {by_hand}")
            return
        assert process.stdin is not None
        assert process.stderr is not None
        try:
            with suppress(trio.BrokenResourceError):  # it has ended: what it said follows
                await process.stdin.send_all(f"{token}\n".encode())
            async for piece in process.stderr:
                said = (said + piece)[-MOST_SAID:]
            code = await process.wait()
            last = said.decode(errors="replace").strip().rpartition("\n")[2]
            say(f"the run's page has ended with code {code}{last and f' ({last})'}; {by_hand} serves it again")
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
