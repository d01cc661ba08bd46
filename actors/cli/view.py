"""``agent-rl view``: the page of one or several runs, live, in a browser."""

from __future__ import annotations

import errno
import ipaddress
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from actors.cli.output import Mistake, complain

if TYPE_CHECKING:
    import trio

    from actors.viewer import Viewer

PORT = 8089
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
) -> int:
    """Serve the page of runs until SIGINT or SIGTERM. Runs may be under way, ended, crashed or copied.

    Nothing is written into a run directory.
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
    token = "" if _is_loopback(address) else secrets.token_urlsafe(24)
    trio.run(_serve, Viewer(runs, token), address, port, token)
    return 0


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


async def _listen(address: str, port: int) -> trio.SocketListener:
    """Listen at the port, or at the next one that is free."""
    from actors.http import listen

    for tried in range(port, min(port + PORTS, 65536)) if port else (0,):
        try:
            (listener,) = await listen(address, tried, shared=False)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise Mistake(f"agent-rl view: {error.strerror}; choose another --address or --port") from error
        else:
            if tried != port:
                complain(f"agent-rl view: port {port} is in use; this is port {tried}")
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
            print(f"{place}?token={token}" if token else place, flush=True)
