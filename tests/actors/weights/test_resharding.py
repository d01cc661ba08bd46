"""Plans of transfers: every value reaches every worker, and leaves the learner once, whatever the ranks hold."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.weights.resharding import ALIGNED, Box, Whole, plan, volume


def split(bounds: tuple[int, int], parts: int, number: int) -> tuple[int, int]:
    """As torch splits: all parts but the last have the same size, rounded up."""
    start, end = bounds
    size = -(-(end - start) // parts)
    first = min(end, start + number * size)
    return first, min(end, first + size)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[Whole], list[list[Box]]]:
    """Tensors, and what the ranks of a mesh (copies x rows x columns) hold of each."""
    replicate, shard, columns = draw(st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(1, 3)))
    tensors, dimensions = [], []
    for number in range(draw(st.integers(1, 5))):
        shape = tuple(draw(st.lists(st.integers(0, 7), max_size=3)))
        tensors.append(Whole(f"t{number}", shape, draw(st.sampled_from([1, 2, 4, 8]))))
        dimensions.append(draw(st.sampled_from([None, *range(min(2, len(shape)))])))
    held = []
    for _, part, column in product(range(replicate), range(shard), range(columns)):
        boxes: list[Box] = []
        for whole, dimension in zip(tensors, dimensions, strict=True):
            bounds = [(0, size) for size in whole.shape]
            if dimension is not None:
                bounds[dimension] = split(bounds[dimension], columns, column)
            if bounds:
                bounds[0] = split(bounds[0], shard, part)
            boxes.append(tuple(bounds))
        held.append(boxes)
    return tensors, held


@settings(max_examples=50)
@given(layouts(), st.integers(1, 5), st.integers(1, 200))
def test_every_value_arrives_once_and_leaves_the_learner_once(
    layout: tuple[list[Whole], list[list[Box]]], workers: int, most: int
) -> None:
    tensors, held = layout
    number_of = {whole.name: number for number, whole in enumerate(tensors)}
    arrived = {whole.name: np.zeros(whole.shape, int) for whole in tensors}
    sent = [0] * len(held)
    for each in plan(tensors, held, workers, most):
        assert len({bucket.sender for bucket in each}) == len(each)
        for bucket in each:
            assert bucket.worker == bucket.sender % workers
            assert bucket.size <= most or sum(volume(piece.box) for piece in bucket.pieces) == 1
            end = 0
            for piece in bucket.pieces:
                whole = tensors[number_of[piece.name]]
                assert end <= piece.start < end + ALIGNED
                assert piece.start % ALIGNED == 0
                assert piece.end - piece.start == volume(piece.box) * whole.itemsize
                end = piece.end
                own = held[bucket.sender][number_of[piece.name]]
                assert all(one[0] >= two[0] and one[1] <= two[1] for one, two in zip(piece.box, own, strict=True))
                arrived[piece.name][tuple(slice(*bounds) for bounds in piece.box)] += 1
                sent[bucket.sender] += piece.end - piece.start
    assert all((count == 1).all() for count in arrived.values())
    assert sum(sent) == sum(math.prod(whole.shape) * whole.itemsize for whole in tensors)


def test_what_several_ranks_hold_is_sent_by_the_one_with_the_least_to_send() -> None:
    tensors = [Whole("large", (10,), 4), Whole("b", (4,), 4), Whole("c", (5,), 4)]
    boxes: list[Box] = [((0, 10),), ((0, 4),), ((0, 5),)]
    (first,) = plan(tensors, [boxes, boxes], 1, 1000)
    assert {bucket.sender: [piece.name for piece in bucket.pieces] for bucket in first} == {0: ["large"], 1: ["b", "c"]}


@pytest.mark.parametrize(
    "held",
    [
        [[((0, 3), (0, 4))], [((4, 6), (0, 4))]],
        [[((0, 3), (0, 4))], [((2, 6), (0, 4))]],
        [[((0, 3), (0, 4))], [((3, 7), (0, 4))]],
        [[((0, 4), (0, 3))], [((0, 2), (3, 4))], [((2, 6), (2, 4))], [((4, 6), (0, 2))]],
        [[((0, 0), (0, 4))]],
        [[((0, 3), (0, 4))], [((2, 5), (0, 4))]],  # as many values as the tensor has
        [[((0, 6), (0, 2))], [((0, 6), (1, 3))]],
    ],
)
def test_parts_that_leave_gaps_or_overlap_are_refused(held: list[list[Box]]) -> None:
    with pytest.raises(ValueError, match=r"do not hold a \[6, 4\] once"):
        plan([Whole("a", (6, 4), 2)], held, 1, 100)
