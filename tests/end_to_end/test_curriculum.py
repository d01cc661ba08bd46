"""A curriculum, for real: problems come again by what was observed of them, also when scheduler and filter are killed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from actors.roc_filter.replay import decode_stored
from tests.end_to_end.processes import (
    balanced,
    finish,
    journal_of,
    runs_again,
    signal_actor,
    start,
    steps_trained,
    wait_for,
)
from tests.end_to_end.topologies import write_half_right

STEPS = 20
FRONTIER = ('algorithm.curriculum="frontier"', "algorithm.curriculum_settings={again = 0.8, rest = 3}")


@pytest.mark.slow
def test_problems_come_again_and_what_was_observed_outlives_its_processes(tmp_path: Path) -> None:
    path, directory = write_half_right(tmp_path, steps=STEPS)
    process = start(path, *FRONTIER)
    for role, steps in (("kv_scheduler", 3), ("roc_filter", 6)):
        wait_for(lambda steps=steps: steps_trained(directory) >= steps, "steps")
        signal_actor(path, f"{role}.0")
        wait_for(lambda role=role: runs_again(directory, role), f"{role} to run again")
    finish(process)
    balanced(directory, steps=STEPS)
    with journal_of(directory) as journal:
        decided = journal.groups(stage=0, states=("trained", "dropped"))
        drawn = [decode_stored(row.opened).drawn for row in decided]
        observed = {row.number for row in journal.sampled(0)}
    assert observed == {row.number for row in decided if row.decided_order}
    assert set(drawn) == set(range(max(drawn) + 1))
    again = sum(count - 1 for count in Counter(drawn).values())
    assert again > 0.4 * len(drawn)
