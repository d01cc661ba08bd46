"""How every benchmark tells: a table for people, then one JSON object of figures by name as the last line."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

PLAIN_WIDTH = 140


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under their header; floats with three significant digits, numbers to the right."""
    table = Table(title=title, title_justify="left")
    for index, name in enumerate(header):
        numeric = all(isinstance(row[index], int | float) for row in rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(_cell, row))
    console = Console(markup=False)  # a formula may hold brackets
    if not console.is_terminal:  # a file or a pipe: as wide as documents are
        console = Console(width=PLAIN_WIDTH, markup=False)
    console.print(table)


def print_figures(figures: Mapping[str, float | str | None]) -> None:
    """Print the last line. A figure that could not be measured is null; NaN and infinity are no JSON."""
    unknown = {name: None for name, value in figures.items() if isinstance(value, float) and not math.isfinite(value)}
    print(json.dumps({**figures, **unknown}, allow_nan=False), flush=True)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of the values do not exceed; NaN without values."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else math.nan


def _cell(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    if not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
