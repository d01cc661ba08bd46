"""The display of a host that ``agent-rl up`` has started: the table on the terminal of ``up``, or notices alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from agent_rl.messages.pipes import Terminal
from agent_rl.observe.live import Display, LiveView, SteadyConsole


class HostDisplay(Display):
    """Shows the table of the main host with what ``up`` says of other hosts; on other hosts, notices alone."""

    def __init__(
        self,
        view: LiveView,
        console: SteadyConsole,
        on_failure: Callable[[Exception], object],
        *,
        said: Callable[[], Iterable[str]],
        main: bool,
        terminal: Terminal | None,
    ) -> None:
        if main and terminal is not None:  # this process writes to a pipe that ends at that terminal
            console = SteadyConsole(
                force_terminal=True,
                width=terminal.width,
                height=terminal.height,
                color_system=terminal.colours,  # type: ignore[arg-type]
                _environ={"TERM": terminal.kind},
            )
        super().__init__(view, console, on_failure)
        self._said = said
        self._main = main

    def refresh(self, now: float) -> None:
        """Show what came from ``up``; on the main host the table too."""
        for text in self._said():
            self.notice(text)
        if self._main:
            super().refresh(now)

    def __exit__(self, *error: object) -> None:
        for text in self._said():
            self.notice(text)
        super().__exit__(*error)
