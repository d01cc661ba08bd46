"""The layout of a step: numbers of rows recur."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from actors.engines.torch.packing import rounded, spans


def test_numbers_of_tokens_are_rounded_up_by_a_sixteenth_at_most_to_few_different_ones() -> None:
    counts = range(1, 4097)
    assert all(count <= rounded(count) <= count + count / 16 for count in counts)
    assert all(rounded(rounded(count)) == rounded(count) for count in counts)
    assert len({rounded(count) for count in counts}) == 144


@given(st.lists(st.integers(1, 300), max_size=80), st.sampled_from([0, 64, 256, 4096]))
def test_spans_cover_all_rows_once_and_are_as_long_as_their_longest(lengths, elements):
    found = spans(np.array(lengths, np.int64), elements)
    assert [row for first, last, _ in found for row in range(first, last)] == list(range(len(lengths)))
    assert all(length == max(lengths[first:last]) for first, last, length in found)
    if not elements:
        assert len(found) <= 1


def test_rows_are_read_apart_where_padding_would_cost_more():
    assert spans(np.array([250] * 8 + [50] * 56), 256) == ((0, 8, 250), (8, 64, 50))
    assert spans(np.array([51] * 8 + [50] * 56), 256) == ((0, 64, 51),)
    assert spans(np.array([60] * 8 + [50] * 56), 256) == ((0, 20, 60), (20, 64, 50))
