"""Structured logs: one JSON object a line, in a file of each process's own."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import structlog


def log_directory(run_directory: Path) -> Path:
    """Where a run's logs are."""
    return run_directory / "logs"


@contextlib.contextmanager
def open_log(
    run_directory: Path, name: str, *, level: int = logging.INFO, **bound: Any
) -> Iterator[structlog.typing.FilteringBoundLogger]:
    """A logger that appends JSON lines to ``<run>/logs/<name>.jsonl``, each with ``bound`` in it.

    Times are UTC in ISO 8601; an exception's traceback is structured (``exception``). Nothing global is configured.
    """
    directory = log_directory(run_directory)
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / f"{name}.jsonl").open("a", encoding="utf-8", buffering=1) as file:
        logger = structlog.wrap_logger(
            structlog.WriteLogger(file),
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.StackInfoRenderer(),
                structlog.processors.dict_tracebacks,
                structlog.processors.JSONRenderer(default=str),
            ],
            wrapper_class=structlog.make_filtering_bound_logger(level),
            **bound,
        )
        yield cast("structlog.typing.FilteringBoundLogger", logger.bind())
