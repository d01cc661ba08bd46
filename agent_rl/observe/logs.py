"""Structured logs: one JSON object a line, in a file of each process's own."""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import structlog
from structlog.tracebacks import ExceptionDictTransformer

from agent_rl.files.disk import LossyLines, writing


def log_directory(run_directory: Path) -> Path:
    """Where a run's logs are."""
    return run_directory / "logs"


class _LineLogger:
    """Receives finished lines from structlog, of every level."""

    def __init__(self, lines: LossyLines) -> None:
        self._lines = lines

    def msg(self, line: str) -> None:
        about_lost = json.dumps({"event": "log lines lost", "level": "warning", "lines": self._lines.lost})
        self._lines.append(line, about_lost=about_lost)

    debug = info = warning = error = critical = exception = msg


@contextlib.contextmanager
def open_log(
    run_directory: Path, name: str, *, limit: float = math.inf, level: int = logging.INFO, **bound: Any
) -> Iterator[structlog.typing.FilteringBoundLogger]:
    """A logger that appends JSON lines with the fields ``bound`` to ``<run>/logs/<name>.jsonl``, up to ``limit`` bytes.

    Times are UTC in ISO 8601. Tracebacks are structured (``exception``). Nothing global is configured. Lines that the
    disk refuses are left out, and the next written line is preceded by their number (see `LossyLines`).
    """
    directory = log_directory(run_directory)
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(LossyLines(directory / f"{name}.jsonl", limit)) as lines:
        logger = structlog.wrap_logger(
            _LineLogger(lines),
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.StackInfoRenderer(),
                structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),  # secrets
                structlog.processors.JSONRenderer(default=str),
            ],
            wrapper_class=structlog.make_filtering_bound_logger(level),
            **bound,
        )
        yield cast("structlog.typing.FilteringBoundLogger", logger.bind())
