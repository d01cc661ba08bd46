"""``agent-rl up``: all hosts of a topology are started, shown and stopped together."""

from __future__ import annotations

import importlib.metadata
import shlex
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from actors.cli.output import Mistake, complain
from actors.cli.parameters import Overlays, Overrides, TopologyFile
from actors.cli.topologies import run_files
from actors.cluster.orders import STARTS, STOPPED, OrderError, Orders, place, texts_of
from actors.cluster.places import address_faults, is_here, own_command
from agent_rl.config.examples import EXAMPLES, topology_file
from agent_rl.messages.pipes import Order, Terminal

if TYPE_CHECKING:
    from actors.cluster.starting import HostCommand
    from agent_rl.config.topology import Topology

SSH = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=6")
"""Options of ssh, after those of the user, which win: nothing is asked, and a dead connection is noticed."""
COMMAND = "up-host"


def up(
    file: TopologyFile,
    /,
    *overlays: Overlays,
    overrides: Overrides = (),
    ssh: Annotated[str, Parameter(metavar="WORDS", help='ssh with its options, as in "ssh -F FILE"')] = "ssh",
    user: Annotated[
        str | None, Parameter(help="the user on the other machines; left out: as ssh is configured")
    ] = None,
    workdir: Annotated[
        Path | None, Parameter(help="the working directory on the other machines; left out: the same as here")
    ] = None,
    command: Annotated[
        str, Parameter(metavar="WORDS", help="what starts agent-rl on the other machines; left out: the same as here")
    ] = "",
) -> int:
    """Start all hosts of a topology: those of other machines over ssh. The exit code is that of the run."""
    from actors.cluster.starting import HostCommand

    named = [str(file), *map(str, overlays)]
    for text in (*named, *overrides, str(workdir or Path.cwd())):
        if any(0xDC80 <= ord(each) <= 0xDCFF for each in text):  # how Python holds such bytes
            raise Mistake(f"{text!r} is not UTF-8, and hosts hear of it as text: give it another name")
    files = (topology_file(named[0]), *overlays)
    topology, here = _checked(files, overrides)
    sent = {name: path for name, path in zip(named, files, strict=True) if not path.is_relative_to(EXAMPLES)}
    again = shlex.join(["agent-rl", "up", *named, *(part for value in overrides for part in ("--set", value))])
    connect = [*shlex.split(ssh), "-T", *(part for option in SSH for part in ("-o", option))]
    folder = str((workdir or Path.cwd()).absolute())
    commands = []
    started = [name for name in topology.hosts_in_use if not topology.hosts[name].optional]
    for name in sorted(started, key=lambda name: name != topology.main_host):
        address, main = topology.hosts[name].address, name == topology.main_host
        order = Order(
            release=_release(),
            host=name,
            main=main,
            files=tuple(named),
            overrides=tuple(overrides),
            again=again,
            texts={} if name in here else texts_of(sent),
            key=None if name in here else _key(topology, files[0]),
            terminal=_terminal() if main else None,
        )
        words = [*own_command(), COMMAND]
        if name not in here:
            start = f"{command or shlex.join(own_command())} {COMMAND}"
            there = f"mkdir -p {shlex.quote(folder)} && cd {shlex.quote(folder)} && exec {start}"
            words = [*connect, f"{user}@{address}" if user else address, there]
        commands.append(HostCommand(order, words, "this machine" if name in here else address))
    return _run(commands)


def up_host() -> int:
    """Start one host of a run, as the order on standard input says."""
    orders = Orders()
    try:
        order = orders.first()
    except OrderError as error:
        raise Mistake(str(error)) from error
    if order.release != _release():
        raise Mistake(
            f"this machine has release {_release()}, and `up` was called with {order.release}; install the same"
        )
    orders.follow()
    from actors.cluster.display import HostDisplay
    from agent_rl.files.disk import DiskError

    try:
        files = _placed(order)
    except DiskError as error:
        raise Mistake(str(error)) from error
    display = partial(HostDisplay, said=orders.said, main=order.main, terminal=order.terminal)

    def begins(_: Topology) -> bool:
        complain(STARTS)
        return order.main

    return run_files(
        files, order.overrides, order.host, display, again=order.again, stopped_exit_code=STOPPED, begins=begins
    )


def _checked(files: tuple[Path, ...], overrides: Sequence[str]) -> tuple[Topology, set[str]]:
    """The topology, and the hosts that are this machine. Raises Mistake with all that can be found wrong here."""
    from agent_rl.config.load import load_topology
    from agent_rl.config.source import Source, TopologyError
    from agent_rl.config.user_modules import look_beside
    from agent_rl.topology_checks.facts import Facts
    from agent_rl.topology_checks.hosts import host_findings
    from agent_rl.topology_checks.topology import check_topology

    try:
        topology = load_topology(files, overrides)
    except TopologyError as error:
        raise Mistake(lines=[fault.render(error.path) for fault in error.faults]) from error
    source = Source(files, overrides)
    here = [name for name in topology.hosts_in_use if is_here(topology.hosts[name].address)]
    faults = address_faults(topology, source)
    if here and not faults:
        look_beside(files[0])
        faults = check_topology(topology, files, overrides, host=here[0])
    elif not faults:  # each host checks what it has
        found = host_findings(topology, Facts(files[0].parent, started=""))
        faults = [source.fault(*each) for each in found]
    if faults:
        raise Mistake(lines=[fault.render(files[0]) for fault in faults])
    return topology, set(here)


def _key(topology: Topology, file: Path) -> str | None:
    """The content of the key file; None where the topology names none."""
    key_file = topology.security.key_file
    return None if key_file is None else (file.parent / key_file.expanduser()).read_text()


def _placed(order: Order) -> tuple[Path, ...]:
    """Write the files of an order, and return the topology files."""
    from agent_rl.config.load import load_topology

    changed = [place(Path(name), text, 0o666) for name, text in order.texts.items()]
    files = (topology_file(order.files[0]), *map(Path, order.files[1:]))
    if order.key is not None:
        key_file = load_topology(files, order.overrides).security.key_file
        assert key_file is not None
        changed.append(place(files[0].parent / key_file.expanduser(), order.key, 0o600))
    for text in filter(None, changed):
        complain(text)
    return files


def _release() -> str:
    try:
        return importlib.metadata.version("agent-rl")
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return ""


def _terminal() -> Terminal | None:
    """The terminal that the table is shown on; None where output goes elsewhere."""
    from agent_rl.observe.live import SteadyConsole

    console = SteadyConsole()
    if not console.is_terminal:
        return None
    size = shutil.get_terminal_size()
    return Terminal(size.columns, size.lines, "dumb" if console.is_dumb_terminal else "xterm", console.color_system)


def _run(commands: Sequence[HostCommand]) -> int:
    """Run all hosts to their end."""
    import trio

    from actors.cluster.starting import Hosts
    from actors.runtime.interrupts import stop_signals

    async def main() -> int:
        with trio.open_signal_receiver(*stop_signals()) as received:
            return await Hosts(commands, complain).run(received)

    return trio.run(main)
