"""Micro-batches by token budget."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_rl.environments.base import TaskError
from agent_rl.learning import batching
from agent_rl.learning.batching import POOL, Masked, SupervisedBatches, fitting, microbatches, shares, split_evenly


@given(st.integers(0, 50), st.integers(1, 7))
def test_parts_are_even_and_never_empty(count, parts):
    split = split_evenly(range(count), parts)
    assert [index for part in split for index in part] == list(range(count))
    sizes = [len(part) for part in split]
    assert len(sizes) == min(count, parts)
    assert all(sizes)
    assert not sizes or max(sizes) - min(sizes) <= 1


def test_buckets_hold_like_lengths_and_lose_nothing():
    rng = random.Random(0)
    lengths = [rng.randint(10, 90) for _ in range(POOL * 4)]
    made = SupervisedBatches(iter(lengths), lambda n: [([0] * n, [1] * n)], batch=4, longest=100, rng=rng)
    batches = list(islice(made, POOL))
    found = [len(tokens) for batch in batches for tokens, _ in batch]
    assert sorted(found) == sorted(lengths)
    padding = sum(max(len(tokens) for tokens, _ in batch) * len(batch) for batch in batches) - sum(lengths)
    assert padding / sum(lengths) < 0.05
    assert found != sorted(found)


def test_sequences_as_long_as_allowed_are_taken_and_too_many_in_a_row_that_are_longer_are_a_fault(monkeypatch):
    monkeypatch.setattr(batching, "TOO_MANY", 3)
    lengths = [5, 6, 6, 4, 6, 6, 5, 6, 6, 6]
    taken = fitting(([([0], [1]), ([0] * length, [1] * length)] for length in lengths), 5)
    assert [len(next(taken)[1][0]) for _ in range(3)] == [5, 4, 5]
    with pytest.raises(TaskError, match="3 conversations in a row have more than the model's 5 tokens"):
        next(taken)


def lessons(encoded: list[int], seed: int = 0) -> SupervisedBatches[int]:
    """Batches of 3 from a source that draws from the same chance and holds sequences that are too long."""

    def source() -> Iterator[int]:
        while True:
            yield rng.randint(1, 120)

    def encode(length: int) -> list[Masked]:
        encoded.append(length)
        return [([len(encoded)] * length, [1] * length)]

    rng = random.Random(seed)
    return SupervisedBatches(source(), encode, batch=3, longest=100, rng=rng)


@pytest.mark.parametrize("taken", [1, POOL - 1, POOL, POOL + 1, 5 * POOL + 7])
def test_batches_go_on_where_an_earlier_process_was_and_encode_no_more_than_its_pool(taken):
    first = lessons([])
    for _ in range(taken):
        next(first)
    expected = [[len(tokens) for tokens, _ in next(first)] for _ in range(2 * POOL)]
    interrupted = lessons([])
    for _ in range(taken):
        next(interrupted)
    encoded: list[int] = []
    resumed = lessons(encoded)
    resumed.skip(taken, interrupted.drawn)
    assert resumed.drawn == interrupted.drawn
    assert len(encoded) <= (interrupted.drawn[-1] if taken % POOL else 0)
    assert [[len(tokens) for tokens, _ in next(resumed)] for _ in range(2 * POOL)] == expected


@given(st.lists(st.integers(1, 100), max_size=60), st.integers(1, 400))
def test_micro_batches_are_those_of_a_plain_first_fit(lengths, budget):
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        fits = (batch for batch in batches if sum(lengths[i] for i in batch) + lengths[index] <= budget)
        batch = next(fits, None)
        if batch is None:
            batches.append([index])
        else:
            batch.append(index)
    assert microbatches(lengths, max_tokens=budget)[0] == [sorted(batch) for batch in batches]


@given(st.lists(st.integers(1, 100), max_size=60), st.integers(1, 8))
def test_ranks_get_every_sequence_once_and_nearly_equal_tokens(lengths, ranks):
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        min(dealt, key=lambda own: sum(lengths[each] for each in own)).append(index)
    assert shares(lengths, ranks) == [sorted(own) for own in dealt]
    loads = [sum(lengths[index] for index in share) for share in dealt]
    assert max(loads) - min(loads) <= max(lengths, default=0)


@given(st.lists(st.integers(1, 100), max_size=30), st.integers(1, 5), st.integers(1, 200))
def test_every_rank_has_as_many_micro_batches_as_the_others(lengths, ranks, budget):
    packed = microbatches(lengths, ranks=ranks, max_tokens=budget)
    assert len(packed) == ranks
    assert len({len(batches) for batches in packed}) == 1
    assert sorted(i for batches in packed for batch in batches for i in batch) == list(range(len(lengths)))
    assert all(len(batch) <= 1 or sum(lengths[i] for i in batch) <= budget for batches in packed for batch in batches)


def test_ranks_without_sequences_have_empty_micro_batches():
    assert microbatches([5], ranks=3, max_tokens=120) == [[[0]], [[]], [[]]]


def test_splitting_does_not_grow_with_the_square():
    """Comparisons are counted rather than seconds: first fit over n half-full batches would make n * n / 2."""

    class Counted(int):
        compared = 0

        def __gt__(self, other: object) -> bool:
            Counted.compared += 1
            return int(self) > other

    count = 4096
    microbatches([Counted(60)] * count, max_tokens=100)
    assert 0 < Counted.compared < 60 * count
