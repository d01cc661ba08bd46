"""Tell the main host why another host does not start: the user may look at the main host's terminal alone."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from pathlib import Path

import trio

from actors.runtime.handshake import release
from actors.runtime.networks import run_network, starting_node
from agent_rl import messages
from agent_rl.config.addresses import addresses, on_tcp, runtime_directory, supervisor_node
from agent_rl.config.topology import Topology
from agent_rl.files.leftovers import claimed_directory, sweep_one
from agent_rl.messages import HostHello
from agent_rl.records.run_directory import RunRefused

LISTENS_SECONDS = 1.0
"""A main host whose supervisor does not take a connection within this time is not told."""
TOLD_SECONDS = 5.0


def tell_main_host(topology: Topology, base: Path, host: str | None, reason: str) -> None:
    """Tell the supervisor of the main host, if it runs, why ``host`` does not start. Takes at most some seconds.

    A host without a key cannot speak to the main host. It refuses the main host's connections, which says as much.
    """
    if host is not None and host in topology.hosts_in_use and host != topology.main_host and on_tcp(topology):
        trio.run(_tell, topology, base, host, reason)


async def _tell(topology: Topology, base: Path, host: str, reason: str) -> None:
    from transport import CallFailed, CallTimeout, InsecureLink, Node, PeerLost, Registry, turn_away

    table = addresses(topology, runtime_directory(topology))
    main = supervisor_node(topology.main_host)
    if not await _listens(table[main]):
        return
    folder, held = claimed_directory("starting", Path("/tmp"))  # noqa: S108 - made with mode 0700; a short path
    try:
        name = starting_node(host)
        try:
            network = run_network(topology, base, {name: f"ipc://{folder}/inbox"})
        except (RunRefused, InsecureLink):
            await turn_away(table[supervisor_node(host)], TOLD_SECONDS)
            return
        node = Node(name, network, Registry.of(messages), incarnation=time.time_ns() // 1000, on_event=lambda _: None)
        link = node.call("hello", [main], outstanding=1, timeout=TOLD_SECONDS, reply=HostHello)
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(node.run, _nothing))
            # Of another key or release, which let the call fail, the main host learns by itself.
            with contextlib.suppress(CallFailed, CallTimeout, PeerLost):
                await link(HostHello(release(), {}, time.time(), reason))
            nursery.cancel_scope.cancel()
    finally:
        held.release()
        sweep_one(folder)


async def _nothing(_: object) -> None:
    """Nobody sends anything to a host that does not start."""


async def _listens(address: str) -> bool:
    name, _, port = address.removeprefix("tcp://").rpartition(":")
    try:
        with trio.fail_after(LISTENS_SECONDS):
            stream = await trio.open_tcp_stream(name.strip("[]"), int(port))
    except (OSError, trio.TooSlowError):
        return False
    await stream.aclose()
    return True
