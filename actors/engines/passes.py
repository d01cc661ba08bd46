"""Forward passes by size: what `agent-rl calibrate` fits the seconds of a pass to.

A second of an engine's work has many passes, of about the same mean size in every second. So seconds alone do not tell
what a pass takes however small it is from what each of its tokens takes; passes of all sizes do.
"""

from __future__ import annotations

from collections.abc import Mapping

from agent_rl.figures import Passes


class PassTable:
    """Totals since the engine started, by the power of two that holds the tokens written in a pass.

    Passes that prefill have a "+" after it. One thread adds; any reads.
    """

    def __init__(self) -> None:
        self.table: Mapping[str, Passes] = {}
        """Never changed: replaced with each pass."""

    def add(self, seconds: float, cpu_seconds: float, *, written: int, prefilled: int, context: int) -> None:
        """A pass. It wrote and prefilled so many tokens; the sequences that it computed had so many."""
        size = f"{1 << (written - 1).bit_length() if written else 0}{'+' if prefilled else ''}"
        was = self.table.get(size, Passes(0, 0.0, 0.0, 0, 0, 0))
        self.table = {
            **self.table,
            size: Passes(
                was.count + 1,
                was.seconds + seconds,
                was.cpu_seconds + cpu_seconds,
                was.written + written,
                was.prefilled + prefilled,
                was.context + context,
            ),
        }
