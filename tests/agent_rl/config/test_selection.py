"""The rule of select stages: by the share of a problem's samples that were right."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.config.selection import Difficulty, Solved

KEPT = ""


@pytest.mark.parametrize(
    ("right", "settings", "reason"),
    [
        (8, {}, "always_solved"),
        (7, {}, KEPT),
        (0, {}, KEPT),
        (0, {"drop_unsolved": True}, "never_solved"),
        (7, {"below": 0.75}, "too_easy"),
        (1, {"at_least": 0.25}, "too_hard"),
        (2, {"at_least": 0.25}, KEPT),
        (None, {}, "not_sampled"),
    ],
)
def test_difficulty_by_the_share_of_right_answers(right: int | None, settings: dict, reason: str) -> None:
    solved = Solved() if right is None else Solved(right, 8)
    assert Difficulty(**settings).reason(solved) == reason


@settings(max_examples=30)
@given(st.lists(st.tuples(st.lists(st.booleans(), max_size=4), st.integers(0, 2)), min_size=1, max_size=4))
def test_samples_of_several_results_add_up_and_what_was_lost_is_not_right(results: list) -> None:
    total = Solved()
    for successes, lost in results:
        total = total + Solved.counted(successes, len(successes) + lost)
    every = [success for successes, lost in results for success in [*successes, *[False] * lost]]
    assert total == Solved(sum(every), len(every))
    always = bool(every) and all(every)
    assert (Difficulty().reason(total) == KEPT) == (bool(every) and not always)
