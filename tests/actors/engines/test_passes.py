"""Forward passes, added up by size."""

from __future__ import annotations

from actors.engines.base import PassTable
from agent_rl.figures import Passes


def test_passes_are_added_up_by_the_power_of_two_that_holds_what_they_wrote() -> None:
    table = PassTable()
    empty = table.table
    for written, prefilled in ((1, 0), (5, 0), (8, 0), (8, 30), (9, 0), (0, 512)):
        table.add(0.5, 0.25, written=written, prefilled=prefilled, context=100)
    assert dict(table.table) == {
        "1": Passes(1, 0.5, 0.25, 1, 0, 100),
        "8": Passes(2, 1.0, 0.5, 13, 0, 200),
        "8+": Passes(1, 0.5, 0.25, 8, 30, 100),
        "16": Passes(1, 0.5, 0.25, 9, 0, 100),
        "0+": Passes(1, 0.5, 0.25, 0, 512, 100),
    }
    assert not empty, "another thread may be reading it"
