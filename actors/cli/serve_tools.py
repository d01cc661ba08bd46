"""``agent-rl serve-tools``: the sandbox over HTTP, by the protocols of code-judge and SandboxFusion."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from actors.cli.output import Mistake, complain, leaves, say
from actors.cli.parameters import Positive, PositiveNumber, several

if TYPE_CHECKING:
    from actors.sandbox.owner.client import Sandbox
    from actors.tool_server.server import ToolServer

PORT = 8088


def serve_tools(
    *,
    address: Annotated[str, Parameter(help="where it listens; 0.0.0.0: whoever reaches this host may run code")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, Parameter(help="0: one that is free", validator=Number(gte=0, lte=65535))] = PORT,
    interpreters: Annotated[Positive | None, Parameter(help="warm interpreters; left out: one a processor")] = None,
    children: Annotated[Positive, Parameter(help="programs of an interpreter that run at once")] = 4,
    seconds: Annotated[PositiveNumber, Parameter(help="most seconds of a program of code-judge's protocol")] = 10.0,
    most_seconds: Annotated[PositiveNumber, Parameter(help="most that run_timeout of SandboxFusion may be")] = 300.0,
    queue_seconds: Annotated[PositiveNumber, Parameter(help="then code-judge answers queue_timeout")] = 4.0,
    memory_mib: Annotated[Positive, Parameter(help="address space of each process of a program")] = 1024,
    output_kib: Annotated[Positive, Parameter(help="a longer output of a program is cut")] = 1024,
    shown: Annotated[Positive, Parameter(help="characters of an output in replies of code-judge's protocol")] = 1000,
    body_mib: Annotated[Positive, Parameter(help="the most that a request may have")] = 64,
    processes: Annotated[Positive, Parameter(help="processes and threads of a program")] = 32,
    warm_modules: Annotated[tuple[str, ...], several("MODULE", "loaded before programs that name them")] = (
        "numpy",
        "sympy",
    ),
    isolation: Annotated[
        Literal["host", "strong", "filtered", "limits"], Parameter(help="the level to insist on (docs/sandbox.md)")
    ] = "host",
) -> int:
    """Serve the sandbox until SIGINT or SIGTERM: `/run`, `/judge` (and batches) of code-judge, `/run_code` of
    SandboxFusion.
    """
    import trio

    from actors.sandbox.isolation.control_groups import ControlGroupsError
    from actors.sandbox.isolation.levels import IsolationError
    from actors.sandbox.owner.client import ExecutionLimits, Sandbox
    from actors.sandbox.owner.interpreter import WarmUpError
    from actors.tool_server.server import ToolServer
    from agent_rl.config.gateway import listens_beyond
    from agent_rl.tool_protocols.base import Bounds

    bounds = Bounds(seconds, most_seconds, memory_mib << 20, shown, queue_seconds)
    limits = ExecutionLimits(
        wall_seconds=seconds, memory_bytes=memory_mib << 20, output_bytes=output_kib << 10, processes=processes
    )
    sandbox = Sandbox(
        interpreters=interpreters or len(os.sched_getaffinity(0)),
        children=children,
        warm_modules=warm_modules,
        limits=limits,
        isolation=isolation,
        sessions=0,
        hidden=(str(Path.cwd()),),
    )
    server = ToolServer(sandbox, bounds, body_mib << 20, complain, local=not listens_beyond(address))
    try:
        trio.run(_serve, server, sandbox, address, port)
    except BaseExceptionGroup as group:
        known, rest = group.split((IsolationError, ControlGroupsError, WarmUpError))
        if known is None or rest is not None:
            raise
        raise Mistake(lines=[f"agent-rl: {error}" for error in leaves(known)]) from group
    return 0


async def _serve(server: ToolServer, sandbox: Sandbox, address: str, port: int) -> None:
    import trio

    from actors.http import listen
    from actors.runtime.interrupts import stop_signals

    try:
        listeners = await listen(address, port, shared=False)
    except OSError as error:
        raise Mistake(f"{error.strerror}; stop what listens there, or choose another --port or --address") from error
    with trio.open_signal_receiver(*stop_signals()) as signals:
        async with listeners[0], trio.open_nursery() as nursery:

            async def end() -> None:
                async for _ in signals:
                    nursery.cancel_scope.cancel()

            nursery.start_soon(end)
            await nursery.start(server.run, listeners)
            host = f"[{address}]" if ":" in address else address
            port = listeners[0].socket.getsockname()[1]
            say(f"serving tools at http://{host}:{port}: {server.places} programs at once", flush=True)
            if sandbox.level != "strong":
                why = "; ".join(sandbox.reasons) or "--isolation asks for it"
                complain(f"warning: programs are isolated at the level {sandbox.level} (docs/sandbox.md): {why}")
