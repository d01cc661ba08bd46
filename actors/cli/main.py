"""The command line: ``agent-rl check``, ``run``, ``report``, ``audit``, ``eval``, ``data``, ``bench`` and ``keys``.

A user's mistake ends with one clear message on stderr and exit code 2, never with a traceback.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import importlib.metadata
import json
import pkgutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.cli.data import arguments as data_arguments
from actors.cli.evaluation import arguments as evaluation_arguments
from actors.cli.output import complain, drop_output, hold_standard_files, showing
from actors.runtime.interrupts import INTERRUPTED, raise_from_now_on
from agent_rl.config.examples import topology_file
from agent_rl.config.user_modules import look_in_working_directory

if TYPE_CHECKING:
    from agent_rl.config.topology import Topology
    from agent_rl.observe.live import LiveView
    from agent_rl.records.run_directory import SummaryFile

MISTAKE = 2
REFUSED_PATHS = {errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EROFS}
"""What the system answers where a path that the user named cannot be used, whoever comes to ask first."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of ``agent-rl``; returns the exit code."""
    hold_standard_files()
    look_in_working_directory()
    try:
        options = _parser().parse_args(arguments)
        if options.command not in {_run, _eval}:  # which have something to end in order, and say when
            raise_from_now_on()
        return int(options.command(options))
    except KeyboardInterrupt:
        complain("agent-rl: interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        drop_output()
        return 1
    except OSError as error:
        if error.filename is None or error.errno not in REFUSED_PATHS:
            raise
        return _mistake(f"{error.filename}: {error.strerror}; name another path, or get the right to use this one")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="agent-rl", description="Train language models to use tools by reinforcement learning."
    )
    parser.add_argument("--version", action="version", version=f"agent-rl {_version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    check = commands.add_parser("check", help="prove a topology file sound, or list all its faults")
    _add_topology(check)
    check.set_defaults(command=_check)

    run = commands.add_parser("run", help="run a topology file, or continue its run")
    _add_topology(run)
    run.add_argument("--host", metavar="NAME", help="start the actors of this host alone")
    run.set_defaults(command=_run)

    report = commands.add_parser("report", help="make report.html from a run directory; every run ends with it")
    report.add_argument("directory", type=Path, metavar="RUN", help="the run directory")
    report.add_argument(
        "--rebuild", action="store_true", help="first make metrics.jsonl and summary.json again, from the journal"
    )
    report.set_defaults(command=_report)

    audit = commands.add_parser("audit", help="prove that no group of a run was lost or trained twice")
    audit.add_argument("directory", type=Path, metavar="RUN", help="the run directory")
    audit.add_argument(
        "--deep",
        action="store_true",
        help="read every byte of journal and checkpoints again, and name what was changed",
    )
    audit.set_defaults(command=_audit)

    bench = commands.add_parser("bench", help="measure: transport, rollout, overlap, throughput, ...", add_help=False)
    bench.add_argument("subject", nargs="?", default="", metavar="SUBJECT", help="left out: they are listed")
    bench.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="what the subject takes")
    bench.set_defaults(command=_bench)

    evaluate = commands.add_parser("eval", help="evaluate a model on problems, or compare two results")
    evaluation_arguments.add_arguments(evaluate)
    evaluate.set_defaults(command=_eval)

    data = commands.add_parser("data", help="prepare data: convert, filter, decontaminate, deduplicate, conversations")
    data_arguments.add_arguments(data)
    data.set_defaults(command=_data)

    keys = commands.add_parser("keys", help="make the key that hosts of one run share")
    keys.add_argument("file", type=Path, metavar="FILE", help="where to write it; it must not exist")
    keys.set_defaults(command=_keys)
    return parser


def _add_topology(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        type=topology_file,
        metavar="FILE",
        help="the topology file (TOML), or the name of an example: quickstart",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="KEY=VALUE",
        help="use this value instead, as in --set stages.1.steps=5; may be repeated",
    )


def _check(options: argparse.Namespace) -> int:
    topology = _sound_topology(options.file, options.overrides)
    if topology is None:
        return MISTAKE
    from agent_rl.checks.describe import describe

    print("\n".join([f"{options.file} is sound", "", *describe(topology)]))
    return 0


def _run(options: argparse.Namespace) -> int:
    topology = _sound_topology(options.file, options.overrides, options.host)
    if topology is None:
        return MISTAKE
    from agent_rl.models.hub import HubError, is_hub_name, model_files
    from agent_rl.observe.live import LiveView
    from agent_rl.records.run_directory import summary_file

    before = summary_file(topology.run.directory)
    name = topology.model.path
    if name is not None and is_hub_name(name):  # before actors with deadlines wait for it
        try:
            model_files(name, complain)
        except HubError as error:
            return _mistake(str(error))
    exit_code = _supervise(topology, options.file, options.overrides, options.host, LiveView)
    _show_results(topology, options, before, exit_code)
    return exit_code


def _supervise(
    topology: Topology,
    file: Path,
    overrides: Sequence[str],
    host: str | None,
    view_class: type[LiveView],
    again: str = "",
) -> int:
    """Run a topology to its end; what is wrong is said. Raises KeyboardInterrupt when it is interrupted before it began."""
    from functools import partial

    import trio

    from actors.runtime.supervise import run_topology
    from agent_rl.files.disk import DiskError
    from agent_rl.records.run_directory import RunRefused
    from transport import TransportError

    try:
        return trio.run(partial(run_topology, topology, file, overrides, host, view_class=view_class, again=again))
    except (RunRefused, DiskError, OSError) as refusal:
        return _mistake(str(refusal))
    except BaseExceptionGroup as group:
        refusals, rest = group.split((TransportError, RunRefused, DiskError, KeyboardInterrupt))
        if rest is not None or refusals is None:
            raise
        leaves = _leaves(refusals)
        if any(isinstance(error, KeyboardInterrupt) for error in leaves):
            raise KeyboardInterrupt from None
        return _mistake("; ".join(str(error) for error in leaves))


def _show_results(topology: Topology, options: argparse.Namespace, before: SummaryFile | None, exit_code: int) -> None:
    """What the run came to; nothing for one that was refused, or ended before it did anything."""
    from math import isfinite

    from agent_rl.observe.live import SteadyConsole, summary_table
    from agent_rl.records.run_directory import add_end, read_end, read_summary

    summary = read_summary(topology.run.directory, before)
    if summary is not None and exit_code and (reason := read_end(topology.run.directory)):
        summary = add_end(topology.run.directory, summary, reason)
    done = summary is not None and any(
        name.startswith("success_") or (value and name in {"steps", "groups_opened", "sft_steps", "checkpoint"})
        for name, value in summary.items()
    )
    if not done and (summary is not None or exit_code == MISTAKE):
        return
    report = exit_code != INTERRUPTED and options.host in {None, topology.main_host}
    said = _leave_report(topology.run.directory) if report else ""
    with showing(topology.run.directory / "summary.json"):
        if said:
            print(said)
        if summary is None:
            return
        SteadyConsole().print(summary_table(summary))
        for remark in summary.get("remarks", []):
            print(f"note: {remark}")
        if checkpoint := summary.get("checkpoint"):
            print(f"checkpoint: {checkpoint}")
        if "stopped" in summary:
            print(f"stopped: {summary['stopped']}")
        # NaN, a figure there was nothing to compute from, is not JSON
        unknown = {name: None for name, value in summary.items() if isinstance(value, float) and not isfinite(value)}
        print(json.dumps(summary | unknown, allow_nan=False), flush=True)


def _leave_report(directory: Path) -> str:
    """The report at a run's end, and a line about it. A run that went well does not fail by its report, whatever is wrong with that."""
    if not (directory / "journal.sqlite").is_file():
        return ""
    from agent_rl.observe.report import write_report

    try:
        return f"report: {write_report(directory, _decode_stored)}"
    except Exception as error:  # noqa: BLE001 - said, with what to do; the run's results are not the report's to lose
        reason = f"{type(error).__name__}: {error}"
        complain(f"agent-rl: no report was written ({reason}); agent-rl report {directory} tries again")
        return ""


def _report(options: argparse.Namespace) -> int:
    from agent_rl.files.disk import DiskError
    from agent_rl.observe.report import ReportError, write_report
    from agent_rl.records.journal import JournalError
    from agent_rl.records.run_directory import in_use
    from agent_rl.records.run_records import rebuild

    try:
        if options.rebuild:
            if in_use(options.directory):
                return _mistake(f"{options.directory} is in use by a run, which writes these files; stop it first")
            rebuild(options.directory)
        path = write_report(options.directory, _decode_stored)
    except (ReportError, JournalError, DiskError, OSError) as error:
        return _mistake(str(error))
    print(path)
    return 0


def _decode_stored(payload: bytes) -> Any:
    """A message as the journal stores it. Raises ValueError."""
    from actors.filter.stored import decode_stored
    from agent_rl.records.journal import JournalError

    try:
        return decode_stored(payload)
    except JournalError as error:
        raise ValueError(str(error)) from error


def _audit(options: argparse.Namespace) -> int:
    if not options.directory.is_dir():
        return _mistake(f"there is no run directory {options.directory}")
    from agent_rl.records.audit import audit
    from agent_rl.records.deep_audit import deep_audit
    from agent_rl.records.journal import JournalError

    try:
        deep = deep_audit(options.directory) if options.deep else None
        if deep is not None:
            print("\n".join(deep.lines()))
        found = audit(options.directory)
    except JournalError as error:
        return _mistake(str(error))
    print("\n".join(found.lines()))
    return 0 if found.balanced and not (deep and deep.faults) else 1


def _eval(options: argparse.Namespace) -> int:
    from actors.cli.evaluation.command import evaluate
    from actors.cli.evaluation.progress import EvaluationView

    def run(file: Path, overrides: Sequence[str], again: str) -> int:
        topology = _sound_topology(file, overrides)
        return MISTAKE if topology is None else _supervise(topology, file, overrides, None, EvaluationView, again)

    return evaluate(options, run, _decode_stored, _mistake)


def _data(options: argparse.Namespace) -> int:
    from actors.cli.data.command import prepare

    return prepare(options, _mistake)


def _bench(options: argparse.Namespace) -> int:
    import benchmarks

    subjects = {
        module.name.removeprefix("bench_"): module.name
        for module in pkgutil.iter_modules(benchmarks.__path__)
        if module.name.startswith("bench_")
    }
    if options.subject in {"", "-h", "--help"}:
        print("usage: agent-rl bench SUBJECT ...\n")
        for subject, name in sorted(subjects.items()):
            docstring = importlib.import_module(f"benchmarks.{name}").__doc__ or ""
            print(f"  {subject:12} {docstring.splitlines()[0]}")
        return 0
    if options.subject not in subjects:
        return _mistake(f"there is no benchmark {options.subject!r}; there are {', '.join(sorted(subjects))}")
    return int(importlib.import_module(f"benchmarks.{subjects[options.subject]}").main(options.arguments))


def _keys(options: argparse.Namespace) -> int:
    if options.file.exists():
        return _mistake(f"{options.file} exists; a key that hosts share is not written over")
    from transport import CurveKeys

    try:
        CurveKeys.generate().save(options.file)
    except OSError as error:
        return _mistake(f"{options.file} cannot be written: {error.strerror}")
    print(f"wrote {options.file}: copy it to every host, readable by you alone, and name it in the topology file:")
    print(f'\n[security]\nkey_file = "{options.file}"')
    return 0


def _sound_topology(file: Path, overrides: Sequence[str], host: str | None = None) -> Topology | None:
    """The topology, if nothing is wrong with it; otherwise every fault is on stderr."""
    from agent_rl.checks.topology import check_topology
    from agent_rl.config.load import TopologyError, load_topology
    from agent_rl.config.user_modules import look_beside

    look_beside(file)
    try:
        topology = load_topology(file, overrides)
        faults = check_topology(topology, file, overrides, host=host)
    except TopologyError as error:
        faults = error.faults
    else:
        if not faults:
            return topology
    for fault in faults:
        complain(fault.render(file))
    return None


def _mistake(message: str) -> int:
    complain(f"agent-rl: {message}")
    return MISTAKE


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


def _version() -> str:
    try:
        return importlib.metadata.version("agent-rl")
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return "(not installed)"
