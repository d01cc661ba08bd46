"""Run a topology: take the run directory, open what the supervisor needs, and supervise the actors of some hosts."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import trio

from actors.runtime.interrupts import stop_signals
from actors.runtime.lifecycle import hosts_to_start
from actors.runtime.networks import supervisor_network, with_whole_paths
from actors.runtime.start import Start
from actors.runtime.supervise import MIB, Supervisor
from agent_rl.config.addresses import (
    actor_nodes,
    addresses,
    control_addresses,
    runtime_directory,
    supervisor_node,
    wanted_nodes,
)
from agent_rl.config.agreement import secrets, settings_to_agree
from agent_rl.config.hidden import HIDDEN, redacted
from agent_rl.config.source import Files, first_of
from agent_rl.config.topology import Topology
from agent_rl.environments.load import shown_settings
from agent_rl.files.leftovers import sweep
from agent_rl.observe.live import Display, LiveView, SteadyConsole
from agent_rl.observe.logs import open_log
from agent_rl.records.continuing import check_history, remember, write_resolved
from agent_rl.records.document import Document
from agent_rl.records.journal import JournalError
from agent_rl.records.run_directory import (
    END,
    RESTARTS,
    RunRefused,
    next_start,
    read_epoch,
    run_clock,
    run_lock,
    socket_directory,
)
from agent_rl.records.timeline import TimelineFile
from agent_rl.topology_checks.hosts import raise_descriptor_limit


async def run_topology(
    topology: Topology,
    files: Files,
    overrides: Sequence[str] = (),
    host: str | None = None,
    *,
    entry_module: str = "actors.runtime.process",
    view_class: type[LiveView] = LiveView,
    display_class: Callable[[LiveView, SteadyConsole, Callable[[Exception], object]], Display] = Display,
    again: str = "",
    stopped_exit_code: int = 0,
    page: Callable[[Path, Callable[[str], object]], Awaitable[None]] | None = None,
) -> int:
    """Run the actors of ``host``, or of all hosts when all are this machine. Returns the exit code.

    ``entry_module`` is the module that an actor's process runs (``python -m``). ``view_class`` draws what
    ``display_class`` shows. ``again`` is the command that continues the run, when that is not ``agent-rl run``.
    ``stopped_exit_code`` is the exit code where the run was stopped in order before it was finished. ``page`` serves
    the page of the main host's run, and tells its address. Raises RunRefused when the run cannot start.
    """
    hosts = hosts_to_start(topology, host)
    agreed = settings_to_agree(topology, shown_settings)
    kept = secrets(topology, shown_settings)
    former = Document.read(topology.run.directory) if topology.main_host in hosts else None
    base = first_of(files).absolute().parent
    again = again or _command(files, overrides, hosts[0] if len(hosts) < len(topology.hosts_in_use) else None, kept)
    raise_descriptor_limit()
    directory = topology.run.directory
    runtime = runtime_directory(topology)
    table = addresses(topology, runtime)
    actors = [node for name in hosts for node in wanted_nodes(topology, name)]
    sockets = [table[node] for name in hosts for node in (supervisor_node(name), *dict(actor_nodes(topology, name)))]
    with ExitStack() as stack:
        # From here on the run must end in order: signals wait until the supervisor can handle them.
        received = stack.enter_context(trio.open_signal_receiver(*stop_signals()))
        stack.enter_context(run_lock(directory, hosts, topology.main_host))
        try:
            short = check_history(directory, topology, hosts)
        except JournalError as error:
            raise RunRefused(str(error)) from error
        rewritten = remember(topology, directory, base if topology.main_host in hosts else None)
        (directory / END).unlink(missing_ok=True)
        log = stack.enter_context(open_log(directory, supervisor_node(hosts[0]), limit=topology.run.log_mib * MIB))
        stack.callback(sweep)
        for swept in sweep():
            log.info("swept", directory=str(swept))
        stack.enter_context(socket_directory(runtime, sockets))
        stages = [stage.name for stage in topology.stages]
        epoch = read_epoch()
        timeline = TimelineFile(
            directory,
            trio.current_time(),
            run_clock(epoch),
            limit=topology.run.timeline_mib * MIB,
            shortest=2 * topology.run.status_seconds,
        )
        stack.enter_context(closing(timeline))
        view = view_class(topology.run.name, actors, stages, trio.current_time())
        silenced = partial(log.warning, "the display falls silent")
        display = stack.enter_context(
            display_class(view, SteadyConsole(), lambda error: silenced(reason=f"{type(error).__name__}: {error}"))
        )
        if topology.main_host not in hosts:
            page = None
        elif page is None:
            display.notice(f"look at it in a browser: agent-rl view {shlex.quote(str(directory))}")
        given = Start(
            topology=with_whole_paths(topology, base),
            file=base / first_of(files).name,
            hosts=hosts,
            incarnation=next_start(directory, hosts) * RESTARTS,
            entry_module=entry_module,
            again=again,
            agreed=agreed,
            epoch=epoch,
            started_at=run_clock(epoch)(),
            log=log,
        )
        write_resolved(given.topology, directory, hosts[0], again)
        supervisor = Supervisor(given, view, timeline, display, former, stopped_exit_code=stopped_exit_code)
        if rewritten:
            supervisor.say(rewritten)
        network = supervisor_network(topology, base)
        if topology.main_host in hosts:
            network.extend(control_addresses(topology, runtime))
        if former is not None:
            supervisor.after(former)
        for line in short:
            supervisor.say(line)
        beside = None if page is None else partial(page, directory, display.notice)
        return await supervisor.run(network, received, beside)


def _without_secret(override: str, kept: Mapping[str, Any]) -> str:
    key, equals, value = override.partition("=")
    if "settings" in override and any(str(secret) in value for secret in kept.values()):
        return f"{key}{equals}{HIDDEN}"
    return f"{key}{equals}{redacted({key: value})[key]}" if ".settings." in key else override


def _command(files: Files, overrides: Sequence[str], host: str | None, kept: Mapping[str, Any]) -> str:
    """The command that continues the run, without secrets. ``kept``: those of the topology."""
    named = [str(file) for file in ((files,) if isinstance(files, Path) else files)]
    changes = [part for override in overrides for part in ("--set", _without_secret(override, kept))]
    return shlex.join(["agent-rl", "run", *named, *changes, *(["--host", host] if host is not None else [])])
