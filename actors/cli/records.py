"""``agent-rl report``, ``audit`` and ``export``: what a run directory holds, made readable, checked, and handed on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from actors.cli.output import Mistake, complain, say
from actors.cli.parameters import RunDirectory


def report(
    directory: RunDirectory,
    /,
    *,
    rebuild: Annotated[
        bool, Parameter(help="first make metrics.jsonl and summary.json again, from the journal")
    ] = False,
) -> None:
    """Write report.html into a run directory."""
    from agent_rl.files.disk import DiskError
    from agent_rl.observe.report import ReportError, write_report
    from agent_rl.records.journal import JournalError
    from agent_rl.records.run_directory import in_use
    from agent_rl.records.run_records import rebuild as rebuild_records

    try:
        if rebuild:
            if in_use(directory):
                raise Mistake(f"{directory} is in use by a run, which writes these files; stop it first")
            rebuild_records(directory)
        say(str(write_report(directory, decode_stored)))
    except (ReportError, JournalError, DiskError, OSError) as error:
        raise Mistake(str(error)) from error


def leave_report(directory: Path) -> str:
    """The report at a run's end, and a line about it. A run that went well does not fail by its report."""
    from agent_rl.observe.report import write_report
    from agent_rl.records.journal import JOURNAL

    if not (directory / JOURNAL).is_file():
        return ""

    try:
        return f"report: {write_report(directory, decode_stored)}"
    except Exception as error:  # noqa: BLE001 - reported with the remedy; the run's results count
        reason = f"{type(error).__name__}: {error}"
        complain(f"agent-rl: no report was written ({reason}); agent-rl report {directory} tries again")
        return ""


def decode_stored(payload: bytes) -> Any:
    """A message as the journal stores it. Raises ValueError."""
    from actors.roc_filter.replay import decode_stored as decode
    from agent_rl.records.journal import JournalError

    try:
        return decode(payload)
    except JournalError as error:
        raise ValueError(str(error)) from error


def audit(
    directory: RunDirectory,
    /,
    *,
    deep: Annotated[
        bool, Parameter(help="read every byte of journal and checkpoints again, and name what was changed")
    ] = False,
) -> int:
    """Exit code 1 when groups were lost, trained twice or too late, or the deep audit found a fault."""
    if not directory.is_dir():
        raise Mistake(f"there is no run directory {directory}")
    from agent_rl.records.audit import audit as audit_groups
    from agent_rl.records.audit import deep_audit
    from agent_rl.records.journal import JournalError

    try:
        bytes_read = deep_audit(directory) if deep else None
        if bytes_read is not None:
            say("\n".join(bytes_read.lines()))
        groups = audit_groups(directory)
    except JournalError as error:
        raise Mistake(str(error)) from error
    say("\n".join(groups.lines()))
    return 0 if groups.balanced and not (bytes_read and bytes_read.faults) else 1


def export(
    directory: RunDirectory,
    /,
    *,
    form: Annotated[Literal["jsonl", "parquet"], Parameter(name="--format")] = "jsonl",
    output: Annotated[
        Path | None,
        Parameter(metavar="FILE", help="where to; left out: trajectories.jsonl or .parquet in the run directory"),
    ] = None,
    right: Annotated[
        bool, Parameter(help="only right answers to training problems, which an sft stage takes as data", negative="")
    ] = False,
) -> None:
    """Write the trajectories that the journal holds, a row each: texts, tools, rewards, policies, log-probabilities.

    The run may be under way. FILE appears whole or not at all.
    """
    from agent_rl.files.disk import DiskError
    from agent_rl.records.export import ExportError
    from agent_rl.records.export import export as write_trajectories
    from agent_rl.records.journal import JournalError

    try:
        say("\n".join(write_trajectories(directory, decode_stored, form, output, right=right).lines()))
    except (ExportError, JournalError, DiskError) as error:
        raise Mistake(str(error)) from error
