"""The report of a run: one self-contained HTML file, made from its run directory."""

from __future__ import annotations

from pathlib import Path

from agent_rl.observe.report.page import page
from agent_rl.observe.report.records import ReportError, read_records
from agent_rl.observe.report.samples import Decode, read_samples

__all__ = ["FILE", "Decode", "ReportError", "make_report", "write_report"]

FILE = "report.html"


def make_report(directory: Path, decode: Decode) -> str:
    """The report as HTML. ``decode`` reads a message as stored by the journal. Raises ReportError without a run."""
    return _made(directory, decode)[0]


def _made(directory: Path, decode: Decode) -> tuple[str, str]:
    """The report, and why the journal could not be read; empty when it could."""
    records = read_records(directory)
    return page(records, read_samples(directory, records, decode)), records.journal_fault


def write_report(directory: Path, decode: Decode) -> Path:
    """Write ``report.html`` into the run directory, completely or not at all. Returns its path.

    Raises OSError. Raises ReportError when there is no run, or when the journal cannot be read; in the second case the
    report is written with the rest.
    """
    path = directory / FILE
    made, journal_fault = _made(directory, decode)
    partial = path.with_suffix(".partial")
    partial.write_text(made, encoding="utf-8")
    partial.replace(path)
    if journal_fault:
        raise ReportError(f"{journal_fault}. {path} shows what the other files of the run hold")
    return path
