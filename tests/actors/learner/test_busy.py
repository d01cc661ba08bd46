"""Seconds of a thread's work, when tasks wait for it one by one and together."""

from __future__ import annotations

from contextlib import ExitStack

from hypothesis import given
from hypothesis import strategies as st

from actors.learner.model import Busy


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=30))
def test_time_counts_once_however_many_tasks_have_work(moves: list[tuple[bool, int]]) -> None:
    """Each move begins or ends a task's work; then some time passes."""
    time, expected, tasks = 0.0, 0.0, list[ExitStack]()
    busy = Busy(lambda: time)
    for begins, seconds in moves:
        if begins:
            tasks.append(ExitStack())
            tasks[-1].enter_context(busy.working())
        elif tasks:
            tasks.pop(0).close()  # the first one ends while others go on
        expected += seconds if tasks else 0
        time += seconds
        assert busy.seconds() == expected
