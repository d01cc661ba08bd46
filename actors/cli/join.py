"""``agent-rl join``: a host that the topology file does not name takes part in a run that is under way."""

from __future__ import annotations

import re
import shlex
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from actors.cli.output import Mistake
from actors.cli.parameters import Overlays, Overrides, TopologyFile
from agent_rl.config.examples import topology_file

if TYPE_CHECKING:
    from agent_rl.config.topology import Topology


def join(
    file: TopologyFile,
    /,
    *overlays: Overlays,
    host: Annotated[str, Parameter(metavar="NAME", help="the name of this host; the file does not have it")],
    address: Annotated[str, Parameter(metavar="ADDRESS", help="the address at which other hosts reach this one")],
    base_port: Annotated[
        int, Parameter(metavar="PORT", help="the first of its TCP ports", validator=Number(gte=1024, lte=60000))
    ] = 5700,
    role: Annotated[
        tuple[str, ...],
        Parameter(
            metavar="ROLE=N",
            help="the number of processes of a role here; may be repeated. Without it, one of each role of which there "
            "may be several",
        ),
    ] = (),
    overrides: Overrides = (),
) -> int:
    """Join a run that is under way, with the same file and key; the exit code is that of the run."""
    from functools import partial

    import trio

    from actors.cli.topologies import fetch_models, supervise
    from actors.runtime.join import join as ask
    from actors.runtime.joined_hosts import as_hosts
    from agent_rl.checks.topology import check_topology
    from agent_rl.config.agreement import settings_to_agree
    from agent_rl.config.joining import may_have_more, next_numbers, refusal, with_changed
    from agent_rl.config.load import load_topology
    from agent_rl.config.plugins import PluginError
    from agent_rl.config.processes import Host
    from agent_rl.config.source import TopologyError, first_of
    from agent_rl.config.user_modules import look_beside
    from agent_rl.observe.live import LiveView
    from agent_rl.records.run_directory import RunRefused
    from transport import TransportError

    files = (topology_file(str(file)), *overlays)
    look_beside(first_of(files))
    try:
        topology = load_topology(files, overrides)
    except TopologyError as error:
        raise Mistake(lines=[fault.render(error.path) for fault in error.faults]) from error
    if not re.fullmatch(r"[A-Za-z0-9_-]+", host):
        raise Mistake(f"--host {host!r}: a name has letters, digits, - and _ alone")
    here = Host(address=_numeric(address), base_port=base_port)
    try:
        wanted = _wanted(topology, role) or {each: 1 for each in topology.actors if may_have_more(topology, each)}
        reason = refusal(topology, host, here, wanted)
    except PluginError as error:
        raise Mistake(f"{first_of(files)}: {error}") from error
    if reason:
        raise Mistake(f"host {host} cannot join: {reason}")
    numbers = next_numbers(topology, {}, wanted)
    topology = with_changed(topology, {host: here.model_copy(update={"joined": numbers})})
    if faults := check_topology(topology, files, overrides, host=host):
        raise Mistake(lines=[fault.render(first_of(files)) for fault in faults])
    fetch_models(topology)
    base = first_of(files).absolute().parent
    try:
        answer = trio.run(partial(ask, topology, host, wanted, base))
    except* (RunRefused, TransportError) as group:
        raise Mistake(str(_first(group))) from None
    agreed = settings_to_agree(topology)
    # Swaps hold for hosts that join, too. Hosts still compare what their files say.
    topology = with_changed(load_topology(files, (*overrides, *answer.changes)), as_hosts(answer.hosts))
    if answer.changes and (faults := check_topology(topology, files, (*overrides, *answer.changes), host=host)):
        swaps = f"host {host} cannot join: actors of the run were swapped ({' '.join(answer.changes)})"
        raise Mistake(lines=[swaps, *(fault.render(first_of(files)) for fault in faults)])
    named = [part for each in role for part in ("--role", each)]
    changes = [part for override in overrides for part in ("--set", override)]
    place = ["--host", host, "--address", address, "--base-port", str(base_port)]
    again = shlex.join(["agent-rl", "join", *map(str, files), *place, *named, *changes])
    return supervise(topology, files, overrides, host, LiveView, again=again, agreed=agreed)


def _wanted(topology: Topology, given: Sequence[str]) -> dict[str, int]:
    """The numbers of replicas by role. Raises Mistake."""
    wanted: dict[str, int] = {}
    for each in given:
        name, _, count = each.partition("=")
        if not count.isascii() or not count.isdecimal() or not int(count):
            raise Mistake(f"--role {each}: write ROLE=N with a number from 1 on, as in --role rollout_generator=2")
        if name not in topology.actors:
            raise Mistake(f"--role {each}: no role is named {name!r}; there are {', '.join(topology.actors)}")
        if name in wanted:
            raise Mistake(f"--role {each}: {name} is given twice; give it once")
        wanted[name] = int(count)
    return wanted


def _numeric(address: str) -> str:
    """The number of an address or name. Raises Mistake."""
    try:
        found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)
    except OSError as error:
        why = f"this machine does not know it ({error.strerror})"
        raise Mistake(f"--address {address}: {why}; write its number") from error
    return str(found[0][4][0])


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
