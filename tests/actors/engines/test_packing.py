"""The layout of a step: numbers of rows recur."""

from __future__ import annotations

from actors.engines.packing import rounded


def test_numbers_of_tokens_are_rounded_up_by_a_sixteenth_at_most_to_few_different_ones() -> None:
    counts = range(1, 4097)
    assert all(count <= rounded(count) <= count + count / 16 for count in counts)
    assert all(rounded(rounded(count)) == rounded(count) for count in counts)
    assert len({rounded(count) for count in counts}) == 144
