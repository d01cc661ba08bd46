"""How the live table fits a terminal: pure, from cells and a width to lines that are no wider.

The run's figures stand in as many columns as fit, the most important first. Of the actors' columns the least important are left
out where it is narrow, and what is unusual in them moves into the state. Nothing is ever cut within a word or a number unless it is
alone wider than its column; then it goes on in the next line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells
from rich.text import Text

GAP = 2
"""Blank columns between cells."""
NARROWEST = 20
"""Narrower terminals are drawn as if they were so wide."""
WIDE, MEDIUM = 120, 100
"""From these widths on there is a column for when an actor was heard, and one for its restarts."""
STATE_WIDTH = 22
NAME_SHARE = 3
"""An actor's name takes at most the width divided by this."""
FIGURE_LINES = 2
"""Lines of figures of an actor, where there is no room for all columns: what comes after is left out."""


@dataclass(frozen=True, slots=True)
class ActorRow:
    """What is shown of an actor. ``said`` is prose that explains the state, ``figures`` are the most important first."""

    name: str
    state: str
    said: str
    heard: str
    restarts: int
    figures: Sequence[str]
    late: bool = False
    """Whether it was last heard longer ago than it should be."""


def flow(parts: Sequence[str], separator: str, width: int) -> list[str]:
    """Lines no wider than ``width`` with as many parts as fit on each; only a part that is wider alone is broken."""
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
    """The run's figures below its title, each with its label, in aligned columns."""
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
    """A header, and a line an actor, or several."""
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
        told = (flow([actor.said], " ", rest) if actor.said else []) + figures
        style = "" if actor.state.startswith("running") else "bold"
        lines += [
            _line(cells, widths, told, index, style)
            for index in range(max(1, len(told), *(len(cell) for cell in cells)))
        ]
    return lines


def _columns(actor: ActorRow, width: int) -> list[str]:
    """The cells left of the figures; what has no column of its own is said in the state when it is unusual."""
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
