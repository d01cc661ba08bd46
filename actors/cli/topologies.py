"""``agent-rl check`` and ``agent-rl run``: a topology file is checked, and run to its end."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from actors.cli.output import MISTAKE, Mistake, complain, leaves, say, showing
from actors.cli.parameters import Overlays, Overrides, TopologyFile
from actors.cli.records import leave_report
from actors.runtime.interrupts import INTERRUPTED
from agent_rl.config.examples import described_examples, topology_file

if TYPE_CHECKING:
    from pathlib import Path

    from agent_rl.config.source import Fault, Files
    from agent_rl.config.topology import Topology
    from agent_rl.observe.live import Display, LiveView, SteadyConsole
    from agent_rl.records.run_directory import SummaryFile

    Page = Callable[[Path, Callable[[str], object]], Awaitable[None]]
    DisplayClass = Callable[[LiveView, SteadyConsole, Callable[[Exception], object]], Display]


def check(
    file: TopologyFile,
    /,
    *overlays: Overlays,
    overrides: Overrides = (),
    full: Annotated[bool, Parameter(help="print the whole topology, with every default, as TOML")] = False,
) -> None:
    """Check a topology file, and describe it."""
    from agent_rl.config.full import full_text
    from agent_rl.config.plugins import PluginError
    from agent_rl.environments.load import shown_settings
    from agent_rl.topology_checks.describe import describe
    from agent_rl.topology_checks.facts import Facts

    def plan(topology: Topology) -> None:
        """Print what a topology of other machines would do: what is wrong here may be right there."""
        if not full and not Facts(files[0].parent).is_here(topology, topology.main_host):
            with suppress(PluginError):  # which the faults say
                say("\n".join([*describe(topology), ""]), flush=True)

    files = (topology_file(str(file)), *overlays)
    topology = sound_topology(files, overrides, elsewhere=True, unsound=plan)
    if full:
        say(full_text(topology, shown_settings), end="")
        return
    say("\n".join([f"{' with '.join(map(str, files))} is sound", "", *describe(topology)]))


def run(
    file: TopologyFile | None = None,
    /,
    *overlays: Overlays,
    overrides: Overrides = (),
    host: Annotated[str | None, Parameter(metavar="NAME", help="start the actors of this host alone")] = None,
    stopped_exit_code: Annotated[
        int, Parameter(metavar="CODE", help="the exit code where the run is stopped before it is finished")
    ] = 0,
    view: Annotated[
        bool | None,
        Parameter(negative="--no-view", help="print the address of the run's page; left out: on a terminal"),
    ] = None,
) -> int:
    """Run a topology file; the exit code is that of the run. Without a file, the examples are listed."""
    if file is None:
        print_examples()
        raise Mistake("name a topology file or an example: agent-rl run FILE (agent-rl run --help tells what there is)")
    from actors.cli.view import offer_page
    from agent_rl.observe.live import Display

    return run_files(
        (topology_file(str(file)), *overlays),
        overrides,
        host,
        Display,
        stopped_exit_code=stopped_exit_code,
        page=offer_page if (os.isatty(1) if view is None else view) else None,
    )


def print_examples() -> None:
    """Print what each example takes and shows."""
    examples = described_examples()
    widths = [max(len(example[column]) for example in examples) for column in (0, 1)]
    say("Examples, with their minutes on two cores without a GPU:")
    for example in examples:
        say(f"  {example.name:{widths[0]}}  {example.takes:>{widths[1]}}  {example.shows}")


def run_files(
    files: Files,
    overrides: Sequence[str],
    host: str | None,
    display_class: DisplayClass,
    *,
    again: str = "",
    stopped_exit_code: int = 0,
    page: Page | None = None,
    begins: Callable[[Topology], bool] = lambda _: True,
) -> int:
    """Check a topology, run it to its end, and show the results. Returns the exit code of the run.

    ``begins`` is called when nothing was found wrong. It returns whether to show the results at the end.
    """
    topology = sound_topology(files, overrides, host)
    from agent_rl.observe.live import LiveView
    from agent_rl.records.run_directory import summary_file

    shows = begins(topology)
    before = summary_file(topology.run.directory)
    fetch_models(topology)
    options = {"display_class": display_class, "again": again, "stopped_exit_code": stopped_exit_code}
    options["page"] = page
    exit_code = supervise(topology, files, overrides, host, LiveView, **options)
    if shows:
        _show_results(topology, host, before, 0 if exit_code == stopped_exit_code else exit_code)
    return exit_code


def fetch_models(topology: Topology) -> None:
    """Fetch models of the hub before actors with deadlines wait for them. Raises Mistake."""
    from agent_rl.models.hub import HubError, is_hub_name, model_files

    kl = topology.algorithm.kl
    for name in (topology.model.path, None if kl is None else kl.reference):
        if name is not None and is_hub_name(name):
            try:
                model_files(name, complain)
            except HubError as error:
                raise Mistake(str(error)) from error


def sound_topology(
    files: Files,
    overrides: Sequence[str],
    host: str | None = None,
    *,
    elsewhere: bool = False,
    unsound: Callable[[Topology], None] = lambda _: None,
) -> Topology:
    """The topology of files. Raises Mistake, which tells every fault, where something is wrong with it.

    Prints the warnings about a sound topology. ``elsewhere``: hosts whose GPUs it counts may be other machines.
    ``unsound`` is called with a topology that could be loaded and has faults.
    """
    from agent_rl.config.load import load_topology
    from agent_rl.config.source import TopologyError, first_of
    from agent_rl.config.user_modules import look_beside
    from agent_rl.topology_checks.topology import check_topology, warnings

    file, topology = first_of(files), None
    noted: list[Fault] = []
    look_beside(file)
    try:
        topology = load_topology(files, overrides)
        faults = check_topology(topology, files, overrides, host=host, elsewhere=elsewhere, noted=noted)
    except TopologyError as error:
        file, faults = error.path, error.faults
    if topology is None or faults:
        lines = [fault.render(file) for fault in faults]
        if topology is not None:
            unsound(topology)
            _tell_main_host(topology, files, host, lines)
        raise Mistake(lines=lines)
    for warning in [*noted, *warnings(topology, files, overrides)]:
        complain(f"warning: {warning.render(file)}")
    return topology


def supervise(
    topology: Topology,
    files: Files,
    overrides: Sequence[str],
    host: str | None,
    view_class: type[LiveView],
    **options: Any,
) -> int:
    """Run a topology to its end, and print why it was refused. Raises KeyboardInterrupt in a group before it began.

    ``options`` are those of `run_topology`.
    """
    from functools import partial

    import trio

    from actors.runtime.run import run_topology
    from agent_rl.files.disk import DiskError
    from agent_rl.records.run_directory import RunRefused
    from transport import TransportError

    start = partial(run_topology, view_class=view_class, **options)
    try:
        return trio.run(start, topology, files, overrides, host)
    except (RunRefused, DiskError, OSError) as refusal:
        reasons = [str(refusal)]
    except BaseExceptionGroup as group:
        _, rest = group.split((TransportError, RunRefused, DiskError))
        if rest is not None:
            raise rest from group
        reasons = [str(leaf) for leaf in leaves(group)]
    complain(f"agent-rl: {'; '.join(reasons)}")
    _tell_main_host(topology, files, host, reasons)
    return MISTAKE


def _tell_main_host(topology: Topology, files: Files, host: str | None, reasons: Sequence[str]) -> None:
    """Where ``host`` is not the main host: tell that host why this one does not start."""
    from actors.runtime.refusal import tell_main_host
    from agent_rl.config.source import first_of

    tell_main_host(topology, first_of(files).absolute().parent, host, "; ".join(reasons))


def _did_anything(directory: Path) -> bool:
    """Whether the run's journal has a group, a row of metrics.jsonl or a checkpoint."""
    from agent_rl.records.journal import JournalError, read_journal
    from agent_rl.records.summary import CHECKPOINT

    try:
        journal = read_journal(directory)
    except JournalError:  # the summary is all that is left to show; `agent-rl report` says what is wrong
        return True
    try:
        return bool(journal.counts() or journal.record_count() or journal.fact(CHECKPOINT))
    finally:
        journal.close()


def _show_results(topology: Topology, host: str | None, before: SummaryFile | None, exit_code: int) -> None:
    """Print the results of a run, unless it was refused or ended before it did anything."""
    from agent_rl.observe.live import SteadyConsole, summary_table
    from agent_rl.records.run_directory import add_end, read_end, read_summary

    summary = read_summary(topology.run.directory, before)
    if summary is not None and exit_code and (reason := read_end(topology.run.directory)):
        summary = add_end(topology.run.directory, summary, reason)
    if exit_code == MISTAKE if summary is None else not _did_anything(topology.run.directory):
        return
    report = exit_code != INTERRUPTED and host in {None, topology.main_host}
    about_report = leave_report(topology.run.directory) if report else ""
    with showing(topology.run.directory / "summary.json"):
        if about_report:
            say(about_report)
        if summary is None:
            return
        SteadyConsole().print(summary_table(summary))
        for remark in summary.get("remarks", []):
            say(f"note: {remark}")
        if checkpoint := summary.get("checkpoint"):
            say(f"checkpoint: {checkpoint}")
        if "stopped" in summary:
            say(f"stopped: {summary['stopped']}")
        # NaN, a figure there was nothing to compute from, is not JSON
        unknown = {name: None for name, value in summary.items() if isinstance(value, float) and not isfinite(value)}
        say(json.dumps(summary | unknown, allow_nan=False), flush=True)
