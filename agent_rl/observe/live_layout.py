"""Fits the live table to a terminal. Pure: from cells and a width to lines of at most this width.

The run's figures are in as many columns as fit, the most important first. On a narrow terminal, the least important
columns of actors are left out, and unusual values of these columns appear in the state. A word or number is only broken
if it is wider than its column; it then continues in the next line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells
from rich.text import Text

GAP = 2
"""Blank columns between cells."""
NARROWEST = 20
"""Narrower terminals are treated as this wide."""
WIDE, MEDIUM = 120, 100
"""From these widths on, there is a column for the age of the status, and a column for restarts."""
STATE_WIDTH = 22
NAME_SHARE = 3
"""The divisor of the width that bounds an actor's name."""
FIGURE_LINES = 2
"""Lines of figures of an actor without room for all columns. Further figures are left out."""


@dataclass(frozen=True, slots=True)
class ActorRow:
    """The cells of an actor. ``explanation`` is prose about the state; ``figures`` come most important first."""

    name: str
    state: str
    explanation: str
    heard: str
    restarts: int
    figures: Sequence[str]
    late: bool = False
    """Whether the last status is older than it should be."""


def flow(parts: Sequence[str], separator: str, width: int) -> list[str]:
    """Lines of at most ``width`` with as many parts as fit on each. Only a part wider than a line is broken."""
    lines: list[str] = []
    for index, part in enumerate(parts):
        ending = separator.rstrip() if index < len(parts) - 1 else ""
        joined = f"{lines[-1]}{' ' if lines[-1] else ''}{part}{ending}" if lines else part + ending
        if lines and cell_len(joined) <= width:
            lines[-1] = joined
        elif cell_len(part + ending) <= width:
            lines.append(part + ending)
        elif " " in part.strip():
            lines += flow(part.split(), " ", width)
            lines[-1] += ending if cell_len(lines[-1] + ending) <= width else ""
        else:
            lines += chop_cells(part + ending, width)
    return lines


def figure_lines(title: str, figures: Sequence[tuple[str, str]], width: int) -> list[Text]:
    """The run's title and, below it, figures with labels in aligned columns."""
    width = max(width, NARROWEST)
    cells = [f"{label} {value}" for label, value in figures]
    count = next(n for n in range(len(cells), 0, -1) if n == 1 or sum(_widths(cells, n)) + GAP * (n - 1) <= width)
    widths = _widths(cells, count)
    lines = [Text(line, style="bold") for line in flow([title], " ", width)]
    for start in range(0, len(cells), count):
        line = Text()
        row = figures[start : start + count]
        if count == 1 and cell_len(cells[start]) > width:
            lines += [Text(part) for part in flow([cells[start]], " ", width)]
            continue
        for index, (label, value) in enumerate(row):
            line.append(f"{label} ", style="dim")
            line.append(value, style="bold")
            if index < len(row) - 1:
                line.append(" " * (widths[index] - cell_len(f"{label} {value}") + GAP))
        lines.append(line)
    return lines


def _widths(cells: Sequence[str], count: int) -> list[int]:
    return [max(map(cell_len, cells[index::count])) for index in range(count)]


def actor_lines(actors: Sequence[ActorRow], width: int) -> list[Text]:
    """A header, and one or more lines for each actor."""
    width = max(width, NARROWEST)
    titles = ["actor", "state", *(["heard"] if width >= WIDE else []), *(["restarts"] if width >= MEDIUM else [])]
    rows = [_columns(actor, width) for actor in actors]
    limits = [max(8, width // NAME_SHARE), min(STATE_WIDTH, max(8, width // 4)), 10, 8]
    widths = [
        min(limits[index], max(cell_len(title), *(cell_len(row[index]) for row in rows), 0))
        for index, title in enumerate(titles)
    ]
    rest = max(8, width - sum(widths) - GAP * len(widths))
    lines = [_line([[title] for title in titles], widths, ["figures"], 0, "dim")]
    for actor, row in zip(actors, rows, strict=True):
        cells = [flow([cell], " ", room) for cell, room in zip(row, widths, strict=True)]
        figures = flow(actor.figures, ", ", rest)
        if width < WIDE and len(figures) > FIGURE_LINES:
            figures = [*figures[: FIGURE_LINES - 1], figures[FIGURE_LINES - 1].removesuffix(",")]
        prose = (flow([actor.explanation], " ", rest) if actor.explanation else []) + figures
        style = "" if actor.state.startswith("running") else "bold"
        lines += [
            _line(cells, widths, prose, index, style)
            for index in range(max(1, len(prose), *(len(cell) for cell in cells)))
        ]
    return lines


def _columns(actor: ActorRow, width: int) -> list[str]:
    """The cells left of the figures. Unusual values without a column appear in the state."""
    beside = []
    if width < MEDIUM and actor.restarts:
        beside.append(f"{actor.restarts} restart{'' if actor.restarts == 1 else 's'}")
    if width < WIDE and actor.late:
        beside.append(f"heard {actor.heard}")
    state = f"{actor.state} ({', '.join(beside)})" if beside else actor.state
    columns = [actor.name, state]
    columns += [actor.heard] if width >= WIDE else []
    return columns + ([str(actor.restarts)] if width >= MEDIUM else [])


def _line(cells: Sequence[Sequence[str]], widths: Sequence[int], last: Sequence[str], index: int, style: str) -> Text:
    line = Text()
    for cell, room in zip(cells, widths, strict=True):
        text = cell[index] if index < len(cell) else ""
        line.append(text + " " * (room - cell_len(text) + GAP), style=style)
    line.append(last[index] if index < len(last) else "", style=style if style == "dim" else "")
    line.rstrip()
    return line
