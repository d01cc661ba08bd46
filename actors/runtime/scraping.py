"""``GET /metrics``: a listener for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from actors.http import Reply, Request, Server, listen
from agent_rl.config.topology import Topology
from agent_rl.records.run_directory import RunRefused

AT_ONCE = 8
"""Clients served at once; further clients get status 503."""
TEXT = "text/plain; version=0.0.4; charset=utf-8"


async def serve_metrics(listeners: Sequence[trio.SocketListener], text: Callable[[], str]) -> None:
    """Answer scrapes until cancelled. ``text`` is called for each scrape."""

    async def respond(request: Request, reply: Reply) -> None:
        if request.path.partition("?")[0] != "/metrics":
            await reply.send(404, b"there is /metrics\n", TEXT)
        elif request.method not in {"GET", "HEAD"}:
            reply.headers["Allow"] = "GET, HEAD"
            await reply.send(405, b"only GET and HEAD\n", TEXT)
        else:
            await reply.send(200, text().encode("utf-8", "replace"), TEXT)

    await Server(respond, 1024, AT_ONCE).serve(listeners)


async def listeners_of(topology: Topology, hosts: Sequence[str]) -> list[trio.SocketListener]:
    """The listeners for metrics; none unless one of ``hosts`` is the main host, which hears all actors."""
    run = topology.run
    if run.metrics_port is None or topology.main_host not in hosts:
        return []
    try:
        return await listen(run.metrics_address, run.metrics_port, shared=False)
    except OSError as error:
        raise RunRefused(f"run.metrics_port: {error.strerror}; choose another port or address") from error
