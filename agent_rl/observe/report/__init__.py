"""The report of a run: one self-contained HTML file, made from its run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent_rl.observe.report.page import html
from agent_rl.observe.report.records import Records, ReportError
from agent_rl.observe.report.watched import Watched
from agent_rl.records.journal import Decode

__all__ = ["FILE", "Decode", "ReportError", "Watched", "html", "read_page", "write_report"]

FILE = "report.html"


def read_page(directory: Path, decode: Decode) -> tuple[Records, dict[str, Any]]:
    """The records of a run, and its report as one object. Raises ReportError when there is no run."""
    watched = Watched(directory, decode)
    while watched.look().more:
        pass
    page = watched.saved_page()
    return watched.records, page


def write_report(directory: Path, decode: Decode) -> Path:
    """Write ``report.html`` into the run directory, for its owner, completely or not at all. Returns its path.

    ``decode`` reads a message as stored by the journal. Raises OSError. Raises ReportError when there is no run, or
    when the journal cannot be read; in the second case the report is written with the rest.
    """
    path = directory / FILE
    records, page = read_page(directory, decode)
    partial = path.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    partial.touch(0o600)
    partial.write_text(html(page), encoding="utf-8")
    partial.replace(path)
    if records.journal_fault:
        raise ReportError(f"{records.journal_fault}. {path} shows what the other files of the run hold")
    return path
