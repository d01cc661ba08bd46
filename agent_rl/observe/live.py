"""Shows people the state of a run: a table on a terminal, plain lines elsewhere.

``LiveView`` holds the newest statuses and renders them. It uses neither clock nor screen. ``Display`` shows it.
Texts of actors appear as texts: never as markup, and with hidden characters made visible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeGuard, TypeVar

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from agent_rl.figures import ActorFigures, LearnerFigures
from agent_rl.messages import ActorStatus
from agent_rl.observe.replicas import DASH, ActorRow, Replica, number, rows, shown_figures, unusual
from agent_rl.observe.words import clock, visible

T = TypeVar("T")

WIDE, MEDIUM = 120, 100
"""From these widths on, the table has a column for the age of the status, and a column for restarts."""
LATE_SECONDS = 3.0
"""Actors report twice a second. An actor without a report for this long is shown as late."""


@dataclass
class _ActorLine:
    process: str = "starting"
    state: str = ""
    """What the actor says of itself; empty before its first status."""
    detail: str = ""
    restarts: int = 0
    heard_at: float | None = None
    figures: ActorFigures = field(default_factory=ActorFigures)
    shown: Mapping[str, float] | None = None
    """The figures of the actor's line, once they were looked at."""


class LiveView:
    """The newest status of every actor. ``now`` is seconds on any monotonic clock, the same in every call."""

    def __init__(self, name: str, actors: Sequence[str], stages: Sequence[str], now: float) -> None:
        self.name, self.started = name, now
        self._stages = tuple(stages)
        self._actors = {actor: _ActorLine() for actor in actors}
        self.silences: Mapping[str, str] = {}
        """Silent actors, with how long they are silent and who waits for them. Shown as their state."""

    def observe(self, status: ActorStatus, now: float) -> None:
        """Take in a status. Actors of other hosts appear with their first status."""
        line = self._actors.setdefault(status.actor, _ActorLine())
        line.state, line.detail, line.heard_at = status.state, status.detail, now
        line.figures, line.shown = status.figures, None

    def process(self, actor: str, state: str) -> None:
        """The supervisor reports the state of an actor's process: starting, restarting, stopping, stopped, ..."""
        line = self._actors.setdefault(actor, _ActorLine())
        line.process = state
        if state == "restarting":
            line.restarts += 1
        if state in {"starting", "restarting"}:
            line.state, line.heard_at, line.figures, line.shown = "", None, ActorFigures(), None

    def forecast(self) -> str:
        """What the last rl stage takes."""
        return self._learner.forecast

    def milestone(self) -> int | None:
        """The stage. A plain line is due when it changes."""
        return self._learner.stage

    def line(self, now: float) -> str:
        """The whole run in one line."""
        figures = "  ".join(f"{label} {value}" for label, value in self.figures()) or "starting"
        unusual = [f"{actor} {state}" for actor, state in self.unusual(now)]
        noted = ", ".join([*unusual, *(f"alarm {name.replace('_', ' ')}" for name in self.alarms())])
        return f"[{clock(now - self.started)}] {figures}" + (f"  ({noted})" if noted else "")

    def figures(self) -> list[tuple[str, str]]:
        """The figures of the whole run with labels, the most important first, without those that nothing reports yet.

        Those of engines and groups are left out until a group is opened.
        """
        learner, step, steps = self._learner, *self.progress()
        per_step, success = learner.seconds_per_step, learner.success
        left = max(0, steps - step) * per_step if _known(per_step) and _known(step) and _known(steps) else None
        filters = self._of(lambda figures: figures.filter)
        generators = self._of(lambda figures: figures.generator)
        executors = self._of(lambda figures: figures.executor)
        fates = filters[0].fates if filters else None
        without = fates.steps_without_update if fates else 0
        queued = [each.queue for each in filters] + [each.queue for each in executors]
        used, total = sum(each.kv_used for each in generators), sum(each.kv_total for each in generators)
        groups_open = filters[0].groups_open if filters else None
        none_yet = fates is not None and not (groups_open or fates.groups_trained or fates.groups_dropped)
        shown = [
            ("stage", self._stage()),
            ("rollout" if learner.steps is None and steps is not None else "step", f"{_count(step)}/{_count(steps)}"),
            ("left", DASH if left is None else clock(left)),
            *([("loss", f"{learner.loss:.3f}")] if _known(learner.loss) else []),
            ("success", _percent(success)),
            *([("reward", f"{learner.reward:.3f}")] if _known(learner.reward) and learner.reward != success else []),
            *((f"success {name}", _percent(means.success)) for name, means in learner.environments.items()),
            *([("steps without update", _count(without))] if without else []),
        ]
        if not none_yet:
            shown += [
                ("tokens/s", _count(_sum(each.tokens_per_s for each in generators))),
                ("tool calls/s", number(_sum(each.calls_per_s for each in executors))),
                ("KV in use", _percent(used / total) if total else DASH),
                ("staleness", f"{number(learner.staleness_mean)} (max {_count(learner.staleness_max)})"),
                *([("KL", f"{learner.kl:.2g}")] if _known(learner.kl) else []),
                ("queued", _count(_sum(queued))),
                ("groups open", _count(groups_open)),
                ("trained", _count(fates.groups_trained if fates else None)),
                ("dropped", _count(fates.groups_dropped if fates else None)),
            ]
        return [(label, value) for label, value in shown if DASH not in value.replace("/", " ").split()]

    def render(self, now: float, width: int) -> RenderableType:
        """The live table, at most ``width`` wide: the run above, some lines for each actor or role below."""
        figures = [Text.assemble((f"{label} ", "dim"), (visible(value), "bold")) for label, value in self.figures()]
        title = Text(f"{self.name}, {clock(now - self.started)}", style="bold")
        step, steps = self.progress()
        bar = ProgressBar(total=steps or 1, completed=step or 0, width=min(width, 60))
        above = Padding(bar, 0, expand=False), Columns(figures, padding=(0, 2)), Text()  # the bar has no end of line
        alarms = [Text(visible(f"alarm: {text}"), style="bold red") for text in self.alarms().values()]
        return Group(title, *above, *alarms, _table(rows(self._replicas(now)), width))

    def _replicas(self, now: float) -> Iterator[Replica]:
        for actor, line in self._actors.items():
            state = self.silences.get(actor) or _state(line)
            word, _, explanation = state.partition("; " if actor in self.silences else ": ")
            ago = None if line.heard_at is None else now - line.heard_at
            if line.shown is None:
                line.shown = shown_figures(line.figures)
            yield Replica(
                actor,
                word,
                explanation,
                ago,
                late=ago is not None and ago >= LATE_SECONDS,
                restarts=line.restarts,
                detail=line.detail if line.state != "failed" else "",  # for a failed actor the state shows the detail
                figures=line.shown,
            )

    def unusual(self, now: float) -> list[tuple[str, str]]:
        """Actors in another state than running, or one entry for many of a role."""
        return list(unusual(self._replicas(now)))

    def alarms(self) -> Mapping[str, str]:
        """What is wrong with the last steps, by name."""
        return self._learner.alarms

    def progress(self) -> tuple[int | None, int | None]:
        """Steps done and steps of the stage; for an evaluate stage, rollouts judged and all rollouts."""
        if self._learner.steps is not None:
            return self._learner.step, self._learner.steps
        judging = [each for each in self._of(lambda figures: figures.filter) if each.rollouts_to_judge is not None]
        return (judging[0].rollouts_judged, judging[0].rollouts_to_judge) if judging else (None, None)

    @property
    def _learner(self) -> LearnerFigures:
        return next(iter(self._of(lambda figures: figures.learner)), LearnerFigures(stages=len(self._stages)))

    def _of(self, role: Callable[[ActorFigures], T | None]) -> list[T]:
        """The figures of one role, from each of its actors."""
        return [found for line in self._actors.values() if (found := role(line.figures)) is not None]

    def _stage(self) -> str:
        number, known, count = self._learner.stage, len(self._stages), self._learner.stages
        if number is None:
            return DASH
        if number >= count:
            return "done"
        name = f" {self._stages[number]}" if number < known else ""
        return f"{number + 1}/{count}{name}"


def _table(actors: Sequence[ActorRow], width: int) -> Table:
    """A row for each actor. Narrow terminals have fewer columns; what is unusual in these stands beside the state."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("actor", overflow="fold", max_width=max(8, width // 3))
    table.add_column("state", overflow="fold", max_width=max(8, min(22, width // 4)))
    for name, least in (("heard", WIDE), ("restarts", MEDIUM)):
        if width >= least:
            table.add_column(name, no_wrap=True)
    table.add_column("figures", overflow="fold", ratio=1)
    for actor in actors:
        beside = []
        if width < MEDIUM and actor.restarts:
            beside.append(f"{actor.restarts} restart{'' if actor.restarts == 1 else 's'}")
        if width < WIDE and actor.late:
            beside.append(f"heard {actor.heard}")
        state = f"{actor.state} ({', '.join(beside)})" if beside else actor.state
        cells = [actor.name, state, *([actor.heard] if width >= WIDE else [])]
        cells += [str(actor.restarts)] if width >= MEDIUM else []
        prose = "\n".join(filter(None, [actor.explanation, ", ".join(actor.figures)]))
        style = "" if actor.state.startswith("running") else "bold"
        table.add_row(*(Text(visible(cell), style) for cell in cells), Text(visible(prose)))
    return table


class SteadyConsole(Console):
    """A console that shows the control characters in texts, and raises when its reader has gone.

    rich's own console would obey the characters, and end the process.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The pieces of what is shown. Only pieces that rich makes itself control the terminal."""
        for piece in super().render(renderable, options):
            yield piece if piece.control else Segment(visible(piece.text), piece.style)

    def on_broken_pipe(self) -> None:
        """Called while the BrokenPipeError is handled."""
        raise  # noqa: PLE0704 - the error being handled


class Display:
    """Shows the run: on a terminal a table, redrawn in place; elsewhere a line at each new stage and now and then.

    ``refresh`` draws; there is no thread. When output fails (full disk, closed pipe), the display shows nothing more,
    the run continues, and ``on_failure`` is called once with the error.
    """

    INTERVAL = 5.0
    """Seconds between lines within a stage, in the first five minutes; a log of days needs fewer lines."""
    AGAIN = 1800.0
    """Seconds after which an alarm that holds, or comes and goes, is shown again."""
    LONGEST = 60.0
    """Seconds between lines after an hour; in between, a sixtieth of the time since the start."""

    def __init__(
        self, view: LiveView, console: Console, on_failure: Callable[[Exception], object] = lambda _: None
    ) -> None:
        self._view = view
        self._console = console
        self._table = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._on_failure = on_failure
        self._failed = False
        self._due: float | None = None
        self._stage: int | None = None
        self._alarms: dict[str, float] = {}
        """When each alarm was shown last, by its name."""
        self._forecast = ""

    def refresh(self, now: float) -> None:
        """Redraw the table, or write a line if one is due. An alarm is shown when it begins, and seldom again."""
        if (text := self._view.forecast()) and text != self._forecast:
            self._forecast = text
            self.notice(text)
        for name, text in self._view.alarms().items():
            if now - self._alarms.get(name, -math.inf) >= self.AGAIN:
                self.notice(f"alarm: {text}")
                self._alarms[name] = now
        if self._table is not None:
            self._try(lambda table: table.update(self._view.render(now, self._console.width), refresh=True))
            return
        stage = self._view.milestone()
        interval = max(self.INTERVAL, min(self.LONGEST, (now - self._view.started) / 60))
        if self._due is None:
            self._due = now + interval
        if stage != self._stage or now >= self._due:
            self._stage, self._due = stage, now + interval
            self.notice(self._view.line(now))

    def notice(self, text: str) -> None:
        """Show a text once, above the table."""
        text = visible(text)
        if self._table is not None:
            self._try(lambda _: self._console.print(text, markup=False, highlight=False))
        else:
            self._try(lambda _: print(text, file=self._console.file, flush=True))

    def __enter__(self) -> Self:
        if self._table is not None:
            self._try(Live.start)
        return self

    def __exit__(self, *_: object) -> None:
        if self._table is not None:
            self._try(Live.stop)

    def _try(self, show: Callable[[Any], object]) -> None:
        """Call ``show`` with the table, unless output has failed."""
        if self._failed:
            return
        try:
            show(self._table)
        except (OSError, ValueError) as error:  # ValueError: the file is closed, or cannot write these characters
            self._failed = True
            self._on_failure(error)


def summary_table(summary: Mapping[str, object]) -> Table:
    """A finished run's figures, one on each line. A share has its interval (``_low``, ``_high``) and number."""
    table = Table("figure", "value", title="summary", title_justify="left")
    for name, value in summary.items():
        if isinstance(value, list) or name in {"stopped", "checkpoint"}:  # shown below the table
            continue
        whole = (name.removesuffix("_low"), name.removesuffix("_high"), f"success_{name.removeprefix('problems_')}")
        if any(share != name and share in summary for share in whole):
            continue
        table.add_row(name, _share(summary, name) or _figure(value))
    return table


def _share(summary: Mapping[str, object], name: str) -> str:
    """A share with its interval and what it is a share of; empty when the figure has no interval."""
    share, low, high = (summary.get(key) for key in (name, f"{name}_low", f"{name}_high"))
    if not (isinstance(share, float) and isinstance(low, float) and isinstance(high, float)):
        return ""
    count = summary.get(f"problems_{name.removeprefix('success_')}")
    of = f" of {count:,.0f}" if isinstance(count, int | float) else ""
    return f"{100 * share:.1f} %{of}  (95 %: {100 * low:.1f} to {100 * high:.1f})"


def _figure(value: object) -> str:
    if value is None or value != value:  # noqa: PLR0124 - NaN
        return DASH
    if isinstance(value, float) and not value.is_integer():
        return f"{value:,.6g}"
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)


def _state(line: _ActorLine) -> str:
    """The process' state before the first status and while it is being stopped; else the actor's own state."""
    state = line.state if line.state and line.process in {"starting", "restarting"} else line.process
    return f"{state}: {line.detail}" if line.state == "failed" and line.detail else state


def _sum(values: Iterable[float]) -> float | None:
    """The sum; None for no values."""
    found = list(values)
    return sum(found) if found else None


def _known(value: float | None) -> TypeGuard[float]:
    """Whether the value is a finite number."""
    return value is not None and math.isfinite(value)


def _count(value: float | None) -> str:
    return DASH if not _known(value) else f"{value:,.0f}"


def _percent(value: float | None) -> str:
    return DASH if not _known(value) else f"{100 * value:.1f}%"
