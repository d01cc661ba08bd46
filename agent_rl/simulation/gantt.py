"""A Gantt chart of a simulated run, as an HTML page or a PNG picture.

::

    busy spans --> Bins (shares of time) --> Lane --> layout: rectangles and words --> SVG in a page, or Pillow

Pillow draws the picture. It is an optional package, ``agent_rl[png]``: one wheel without dependencies, which vLLM has
too, where matplotlib would bring nine. The page needs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from agent_rl.files.disk import whole
from agent_rl.observe.report.page import content_policy
from agent_rl.observe.words import clock, percent, time_marks, visible

MOST_BINS = 1024
LEVELS = 12
"""Shades of a lane."""
WIDTH, LEFT, RIGHT, TOP, LANE, GAP = 1400, 190, 20, 56, 14, 4
"""Of the chart, in pixels."""
COLOURS = {"step": (31, 119, 180), "engine": (44, 140, 80), "process": (200, 90, 30)}
STYLE = "body{font:14px sans-serif;margin:1em}svg text{font:11px sans-serif}"


class GanttError(Exception):
    """A chart that cannot be drawn, and what to do."""


class Bins:
    """The share of time that something was busy, in at most `MOST_BINS` bins of one width, which doubles as needed."""

    def __init__(self, width: float = 0.01) -> None:
        """``width``: seconds of the first bins."""
        self.width = width
        self.seconds: list[float] = []

    def add(self, start: float, end: float, share: float = 1.0) -> None:
        """It was busy from ``start`` to ``end``, in this share of the time."""
        if end <= start or not share:
            return
        while end > MOST_BINS * self.width:
            pairs = zip(self.seconds[::2], [*self.seconds[1::2], 0.0], strict=False)
            self.seconds = [first + second for first, second in pairs]
            self.width *= 2
        last = int(end / self.width)
        self.seconds += [0.0] * (last + 1 - len(self.seconds))
        for number in range(int(start / self.width), last + 1):
            within = min(end, (number + 1) * self.width) - max(start, number * self.width)
            self.seconds[number] += max(0.0, within) * share


class Box(NamedTuple):
    """A span of a lane, in seconds, with its shade from 0 to 1 and what it is."""

    start: float
    end: float
    shade: float
    title: str


@dataclass(frozen=True, slots=True)
class Lane:
    """A row of the chart. ``kind`` is one of `COLOURS`."""

    name: str
    kind: str
    boxes: Sequence[Box]


@dataclass(frozen=True, slots=True)
class Gantt:
    """A chart of ``seconds`` of a run."""

    title: str
    seconds: float
    lanes: Sequence[Lane]


def boxes_of(bins: Bins, until: float) -> list[Box]:
    """Neighbouring bins of one shade as one box; what is idle has none."""
    found: list[Box] = []
    levels = [min(LEVELS, round(LEVELS * seconds / bins.width)) for seconds in bins.seconds]
    for level, numbered in groupby(enumerate(levels), key=lambda item: item[1]):
        numbers = [number for number, _ in numbered]
        start, end = numbers[0] * bins.width, min(until, (numbers[-1] + 1) * bins.width)
        if level and start < end:
            busy = sum(bins.seconds[number] for number in numbers) / (end - start)
            found.append(Box(start, end, level / LEVELS, percent(min(1.0, busy))))
    return found


@dataclass(slots=True)
class _Drawing:
    """Rectangles (x, y, width, height, colour, title) and words (x, y, text, whether they end at x)."""

    width: int
    height: int
    boxes: list[tuple[float, float, float, float, tuple[int, int, int], str]] = field(default_factory=list)
    words: list[tuple[float, float, str, bool]] = field(default_factory=list)


def _drawing(gantt: Gantt) -> _Drawing:
    height = TOP + len(gantt.lanes) * (LANE + GAP) + 10
    made = _Drawing(WIDTH, height)
    scale = (WIDTH - LEFT - RIGHT) / max(gantt.seconds, 1e-9)
    made.words.append((10, 16, gantt.title, False))
    for mark in time_marks(gantt.seconds, 12):
        x = LEFT + mark * scale
        made.boxes.append((x, TOP - 8, 1, height - TOP, (225, 225, 225), ""))
        made.words.append((x, TOP - 14, clock(mark), False))
    for number, lane in enumerate(gantt.lanes):
        y = TOP + number * (LANE + GAP)
        made.words.append((LEFT - 8, y + LANE - 3, lane.name, True))
        for box in lane.boxes:
            left, right = LEFT + box.start * scale, LEFT + box.end * scale
            title = f"{lane.name}, {clock(box.start)} to {clock(box.end)}: {box.title}"
            made.boxes.append((left, y, max(1.0, right - left), LANE, _shaded(lane.kind, box.shade), title))
    return made


def _shaded(kind: str, shade: float) -> tuple[int, int, int]:
    red, green, blue = (round(255 + (part - 255) * (0.15 + 0.85 * shade)) for part in COLOURS[kind])
    return red, green, blue


def html(gantt: Gantt) -> str:
    """The chart as a page that needs nothing else."""
    drawing = _drawing(gantt)
    parts: list[str] = []
    for x, y, width, height, colour, title in drawing.boxes:
        fill = "#{:02x}{:02x}{:02x}".format(*colour)
        inner = f"<title>{escape(visible(title))}</title>" if title else ""
        place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        parts.append(f'<rect {place} fill="{fill}">{inner}</rect>')
    for x, y, text, ends in drawing.words:
        anchor = "end" if ends else "start"
        parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(visible(text))}</text>')
    size = f'viewBox="0 0 {drawing.width} {drawing.height}" width="{drawing.width}" height="{drawing.height}"'
    svg = f'<svg {size} role="img">{"".join(parts)}</svg>'
    head = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
        f'content="{content_policy(STYLE)}">'
    )
    return f"{head}<title>{escape(visible(gantt.title))}</title><style>{STYLE}</style>{svg}\n"


def png(gantt: Gantt, path: Path) -> None:
    """Write the chart as a picture. Raises GanttError without Pillow."""
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise GanttError(
            f"{path}: a PNG needs Pillow; install agent_rl[png], or name a file that ends in .html"
        ) from error
    drawing = _drawing(gantt)
    image = Image.new("RGB", (drawing.width, drawing.height), "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(11)
    for x, y, width, height, colour, _ in drawing.boxes:
        draw.rectangle((x, y, x + width - 1, y + height - 1), fill=colour)
    for x, y, text, ends in drawing.words:
        draw.text((x, y), text, fill="black", font=font, anchor="rs" if ends else "ls")
    image.save(path, format="PNG")


def check_paths(paths: Iterable[Path]) -> None:
    """Raise GanttError for a file that is neither a page nor a picture."""
    for path in paths:
        if path.suffix not in {".html", ".png"}:
            raise GanttError(f"{path}: a chart is written as .html or .png; name such a file")


def write(gantt: Gantt, paths: Iterable[Path]) -> Iterator[Path]:
    """Write the chart to each file, by its suffix; gives the files. Raises GanttError and DiskError."""
    for path in paths:
        with whole(path) as partial:
            if path.suffix == ".png":
                png(gantt, partial)
            else:
                partial.write_text(html(gantt), encoding="utf-8")
        yield path
