"""Ask the supervisor of the main host whether this host may join the run."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from actors.runtime.joined_hosts import GUEST
from actors.runtime.networks import KEY_SECONDS, run_network
from agent_rl import messages
from agent_rl.config.addresses import addresses, runtime_directory, supervisor_node
from agent_rl.config.topology import Topology
from agent_rl.files.leftovers import PREFIX, claim, sweep_one
from agent_rl.messages import JoinAnswer, JoinWanted
from agent_rl.records.continuing import made_with
from agent_rl.records.run_directory import RunRefused

if TYPE_CHECKING:
    from transport import LinkEvent

ANSWER_SECONDS = 30.0
"""Seconds that the main host has to answer."""


async def join(topology: Topology, name: str, wanted: Mapping[str, int], base: Path) -> JoinAnswer:
    """Ask for the host ``name``, an entry of ``topology``: which hosts have joined, and which swaps are in force.

    ``base`` is the folder of the topology file. Raises RunRefused when this host may not join.
    """
    # Not at the address of this host's supervisor: the main host connects to that once the host may join.
    directory = Path("/tmp") / f"{PREFIX}join-{os.getuid()}-{os.getpid()}"  # noqa: S108 - made with mode 0700
    held = claim(directory)
    try:
        return await _ask(topology, name, wanted, base, f"ipc://{directory}/inbox")
    finally:
        held.release()
        sweep_one(directory)


async def _ask(topology: Topology, name: str, wanted: Mapping[str, int], base: Path, inbox: str) -> JoinAnswer:
    from transport import CallFailed, CallTimeout, KeyRefused, Node, PeerLost, Registry

    host = topology.hosts[name]
    network = run_network(topology, base)
    table = addresses(topology, runtime_directory(topology))
    main, guest = supervisor_node(topology.main_host), f"{GUEST}{name}"
    network.extend({guest: inbox})
    refused = trio.Event()

    def on_event(event: LinkEvent) -> None:
        if isinstance(event, KeyRefused) and event.seconds >= KEY_SECONDS:
            refused.set()

    node = Node(guest, network, Registry.of(messages), incarnation=time.time_ns() // 1000, on_event=on_event)
    link = node.call("join", [main], outstanding=1, timeout=ANSWER_SECONDS, reply=JoinAnswer)
    request = JoinWanted(name, host.address, host.base_port, dict(wanted), json.dumps(made_with(topology)))
    answer: JoinAnswer | None = None
    reason = ""
    where = f"the supervisor of the main host {topology.main_host} at {table[main]}"
    key_file = topology.security.key_file

    async def end_when_refused(scope: trio.CancelScope) -> None:
        await refused.wait()
        scope.cancel()

    async with trio.open_nursery() as nursery:
        await nursery.start(partial(node.run, _nothing))
        with trio.CancelScope() as scope:
            nursery.start_soon(end_when_refused, scope)
            try:
                answer = await link(request)
            except (CallTimeout, PeerLost):
                reason = f"{where} does not answer: is the run up, and does a firewall let this host through?"
            except CallFailed as error:
                reason = f"{where} does not understand this host ({error}): install the same release on both"
        if refused.is_set():
            reason = f"{where} refuses the key of this host: copy its key to {key_file} of this host"
        nursery.cancel_scope.cancel()
    if answer is None or answer.refusal:
        raise RunRefused(f"host {name} cannot join: {reason if answer is None else answer.refusal}")
    return answer


async def _nothing(_: object) -> None:
    """Nobody sends anything to a host that asks to join."""
