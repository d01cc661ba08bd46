"""The report of a run: one self-contained HTML file, made from its run directory."""

from __future__ import annotations

from pathlib import Path

from agent_rl.observe.report.page import page
from agent_rl.observe.report.records import ReportError, read_records
from agent_rl.observe.report.samples import Decode, read_samples

__all__ = ["FILE", "Decode", "ReportError", "write_report"]

FILE = "report.html"


def write_report(directory: Path, decode: Decode) -> Path:
    """Write ``report.html`` into the run directory, completely or not at all. Returns its path.

    ``decode`` reads a message as stored by the journal. Raises OSError. Raises ReportError when there is no run, or
    when the journal cannot be read; in the second case the report is written with the rest.
    """
    path = directory / FILE
    records = read_records(directory)
    made = page(records, read_samples(directory, records, decode))
    partial = path.with_suffix(".partial")
    partial.write_text(made, encoding="utf-8")
    partial.replace(path)
    if records.journal_fault:
        raise ReportError(f"{records.journal_fault}. {path} shows what the other files of the run hold")
    return path
