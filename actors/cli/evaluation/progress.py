"""An evaluation under way, for people: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from agent_rl.observe.live import LiveView
from agent_rl.observe.words import clock, visible

BAR_WIDTH = 40


class EvaluationView(LiveView):
    """How many rollouts are judged of how many."""

    _began: tuple[float, float] | None = None
    """When the first figure came, and how many rollouts were judged by then: the rate leaves earlier starts out."""

    def line(self, now: float) -> str:
        """The evaluation in one line."""
        done, total = self.progress()
        text = "starting" if done is None or total is None else f"{done:,.0f} of {total:,.0f} rollouts judged"
        left = self._left(now)
        unusual = ", ".join(f"{actor} {state}" for actor, state in self.unusual(now))
        return (
            f"[{clock(now - self.started)}] {text}"
            + (f", {clock(left)} left" if left is not None else "")
            + (f"  ({unusual})" if unusual and done is not None else "")
        )

    def render(self, now: float, width: int) -> RenderableType:
        """The same with a bar: beside it, or above it where they do not fit side by side."""
        done, total = self.progress()
        text = self.line(now)
        bar = ProgressBar(total=total or 1.0, completed=done or 0.0, width=max(1, min(BAR_WIDTH, width)))
        table = Table.grid(padding=(0, 1))
        if cell_len(text) + BAR_WIDTH + 2 > width:
            table.add_row(bar)
            table.add_row(Text(visible(text), overflow="fold"))
        else:
            table.add_row(bar, Text(visible(text)))
        return table

    def _left(self, now: float) -> float | None:
        done, total = self.progress()
        if done is None or total is None:
            return None
        if self._began is None:
            self._began = (now, done)
        since, before = self._began
        return (total - done) * (now - since) / (done - before) if done > before else None
