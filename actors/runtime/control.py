"""The side of the command that changes a run under way: it finds the run, asks, and waits for the answer."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import trio

from actors.runtime.networks import KEY_SECONDS, run_network
from agent_rl import messages
from agent_rl.config.addresses import CONTROLS, control_addresses, on_tcp, runtime_directory, supervisor_node
from agent_rl.config.load import load_topology
from agent_rl.config.source import TopologyError
from agent_rl.config.topology import Topology
from agent_rl.files.leftovers import Unsafe, claim, sweep_one
from agent_rl.messages import Changed, Progress
from agent_rl.records.run_directory import RunRefused, is_supervised
from transport import (
    BindError,
    CallFailed,
    CallRefused,
    CallTimeout,
    Delivery,
    KeyRefused,
    Limits,
    LinkEvent,
    Node,
    PeerLost,
    PeerSilent,
    Registry,
    TransportError,
)

ANSWER_SECONDS = 60.0
"""How long one answer may take, of which the run gives one a second."""
SILENT_SECONDS = 30.0
"""How long the supervisor may be silent before the command gives up."""


def topology_under_way(directory: Path) -> Topology:
    """The topology that the actors of a run read. Raises RunRefused when no supervisor here holds the directory."""
    for path in sorted(directory.glob("topology.*.toml")):
        if is_supervised(directory, path.name.removeprefix("topology.").removesuffix(".toml")):
            try:
                return load_topology(path)
            except TopologyError as error:
                raise RunRefused(f"the topology of the run cannot be read: {error}") from error
    raise RunRefused(
        f"no run is under way in {directory}; name the run directory, on a machine that runs actors of the run"
    )


async def ask_run(directory: Path, command: object, waits: Callable[[str], object] = lambda _: None) -> Changed:
    """Ask the run for a change, and wait for the answer. ``waits`` is told what the run waits for, when that is new.

    Raises RunRefused when it cannot be asked or does not answer. Nothing is known about the change then: the run
    carries out what it began.
    """
    topology = topology_under_way(directory)
    for number in range(len(CONTROLS)):
        name = CONTROLS[(os.getpid() + number) % len(CONTROLS)]
        if (answer := await _ask(directory, topology, name, command, waits)) is not None:
            return answer
    raise RunRefused("other commands change this run; ask again when they have their answers")


async def _ask(
    directory: Path, topology: Topology, name: str, command: object, waits: Callable[[str], object]
) -> Changed | None:
    """The answer; None: another command has this name. Raises RunRefused."""
    main = supervisor_node(topology.main_host)
    remedy = "look whether the run is still under way, and whether TMPDIR here is the run's"
    if on_tcp(topology):
        remedy = f"look at host {topology.main_host}, at the network, and whether the key here is the run's"
    fault = f"{main} does not answer; {remedy}"
    with _runtime_directory(topology):
        network = run_network(topology, Path())
        network.extend(control_addresses(topology, runtime_directory(topology)))
        answers: list[Changed] = []
        with trio.CancelScope() as silent:

            def on_event(event: LinkEvent) -> None:
                nonlocal fault
                match event:
                    case KeyRefused() if event.seconds >= KEY_SECONDS:
                        key = topology.security.key_file
                        fault = (
                            f"{main} refuses the key of this command: {key} is not the run's, so copy the run's there"
                        )
                        silent.cancel()
                    case PeerSilent():
                        silent.cancel()

            # Every later command of this name needs a higher incarnation.
            node = Node(
                name,
                network,
                Registry.of(messages),
                incarnation=time.time_ns() // 1000,
                limits=Limits(silent_after=SILENT_SECONDS),
                on_event=on_event,
            )
            link = node.call("change", [main], outstanding=1, timeout=ANSWER_SECONDS, reply=Changed)
            try:
                async with trio.open_nursery() as nursery:
                    await nursery.start(partial(node.run, _nothing_else))
                    answer, known = await link(command), ""
                    while answer.number:
                        if answer.waits != known:
                            known = answer.waits
                            waits(known)
                        answer = await link(Progress(answer.number))
                    answers.append(answer)
                    nursery.cancel_scope.cancel()
            except* (CallFailed, CallTimeout, PeerLost) as group:
                fault = f"{main}: {_first(group)}; {directory}/logs says what it did"
            except* BindError:
                fault = ""
            except* TransportError as group:
                fault = str(_first(group))
    if not answers and not fault:
        return None
    if not answers:
        raise RunRefused(fault)
    return answers[0]


@contextlib.contextmanager
def _runtime_directory(topology: Topology) -> Iterator[None]:
    """Hold the folder of the run's Unix sockets, which must be this user's alone. Raises RunRefused."""
    if on_tcp(topology):
        yield
        return
    try:
        held = claim(runtime_directory(topology))
    except Unsafe as error:
        raise RunRefused(str(error)) from None
    try:
        yield
    finally:
        held.release()
        sweep_one(runtime_directory(topology))  # the run may have ended just before it was claimed


async def _nothing_else(delivery: Delivery) -> Any:
    raise CallRefused(f"a command answers nothing, and {delivery.sender} asked")


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error
