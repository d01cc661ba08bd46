"""Micro-batches by token budget; rows in which shared prefixes stand once, and the attention over them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from agent_rl.environments.base import TaskError
from agent_rl.learning import batching
from agent_rl.learning.batching import POOL, Masked, SupervisedBatches, fitting, microbatches, shares, split_evenly
from agent_rl.learning.packing import pack
from agent_rl.learning.prefixes import Prefixes
from agent_rl.learning.tree_attention import tree_attention


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


CPU = torch.device("cpu")
GIVEN = st.lists(st.lists(st.integers(0, 2), max_size=12), min_size=1, max_size=12).filter(any)
"""Of three tokens only, so that prefixes, whole sequences and sequences within others are shared."""


def tensors(given_sequences: list[list[int]]) -> list[torch.Tensor]:
    return [torch.tensor(each, dtype=torch.int64) for each in given_sequences]


def distinct(sequences: list[list[int]], block: int = 1) -> int:
    """The tokens of a row: each once that is first to follow its prefix, and those beyond whole shared blocks."""
    prefixes = {tuple(each[: size * block]) for each in sequences for size in range(1, len(each) // block + 1)}
    return block * len(prefixes) + sum(len(each) % block for each in sequences)


@given(GIVEN, st.integers(1, 4))
def test_a_row_holds_each_shared_block_once_and_every_sequence(sequences, block):
    row = pack(tensors(sequences), CPU, block=block)
    assert row.tokens.shape == row.positions.shape == (1, distinct(sequences, block))
    assert sum(row.lengths) == row.tokens.shape[1]
    assert row.longest == max(map(len, sequences))
    places = torch.arange(sum(map(len, sequences))) if row.places is None else row.places
    for given_tokens, own in zip(sequences, places.split([len(each) for each in sequences]), strict=True):
        assert row.tokens[0, own].tolist() == given_tokens
        assert row.positions[0, own].tolist() == list(range(len(given_tokens)))
    if row.places is None:
        assert distinct(sequences, block) == sum(map(len, sequences))
        assert torch.equal(row.tokens[0], torch.cat(tensors(sequences)))


@given(GIVEN, st.integers(1, 4))
def test_each_token_attends_to_its_own_path(sequences, block):
    """Segments by themselves, and descendants to the shared ones before them, are the pairs within the sequences."""
    row = pack(tensors(sequences), CPU, block=block)
    bounds = np.cumsum([0, *row.lengths]).tolist()
    seen = [(a, b) for start, end in pairwise(bounds) for a in range(start, end) for b in range(start, a + 1)]
    for start, end, last in row.shared:
        assert start < end < last
        seen += [(a, b) for a in range(end, last) for b in range(start, end)]
    assert len(seen) == len(set(seen))
    places = torch.arange(row.tokens.shape[1]) if row.places is None else row.places
    paths = [own.tolist() for own in places.split([len(each) for each in sequences])]
    assert set(seen) == {(own[a], own[b]) for own in paths for a in range(len(own)) for b in range(a + 1)}


@given(GIVEN, st.integers(1, 40), st.integers(1, 20), st.integers(0, 3))
def test_every_rank_has_as_many_micro_batches_and_they_hold_rows_within_the_budget(sequences, budget, ranks, block):
    """Of more ranks than sequences, some have empty ones."""
    prefixes = Prefixes.of([np.array(each, np.int64) for each in sequences], block) if block else None
    batches = microbatches([len(each) for each in sequences], max_tokens=budget, ranks=ranks, prefixes=prefixes)
    assert len(batches) == ranks
    assert len({len(own) for own in batches}) == 1
    found = [batch for own in batches for batch in own]
    assert sorted(index for batch in found for index in batch) == list(range(len(sequences)))
    for batch in found:
        chosen = [sequences[index] for index in batch]
        tokens = pack(tensors(chosen), CPU, block=block).tokens.shape[1] if batch else 0
        assert tokens <= budget or len([each for each in chosen if each]) == 1


def test_sequences_of_a_prompt_are_computed_together_where_the_budget_permits():
    prompts = [[number] * 50 for number in range(3)]
    sequences = [np.array([*prompts[index % 3], 10 + index], np.int64) for index in range(24)]
    prefixes = Prefixes.of(sequences, 1)
    lengths = [len(each) for each in sequences]
    assert microbatches(lengths, max_tokens=60, prefixes=prefixes)[0] == [list(range(n, 24, 3)) for n in range(3)]
    halves = microbatches(lengths, max_tokens=54, prefixes=prefixes)[0]
    assert [len(batch) for batch in halves] == [4] * 6
    assert all(len({index % 3 for index in batch}) == 1 for batch in halves)
    alone = microbatches(lengths, max_tokens=50, prefixes=prefixes)[0]  # each is longer than the budget
    assert sorted(alone) == [[index] for index in range(24)]


def test_ranks_share_a_family_when_its_work_would_lie_on_one():
    sequences = [np.array([0] * 40 + [number] * 40, np.int64) for number in range(1, 17)]
    prefixes = Prefixes.of(sequences, 1)
    ranked = microbatches([80] * 16, max_tokens=10_000, ranks=4, prefixes=prefixes)
    assert [sorted(map(len, own)) for own in ranked] == [[4]] * 4


@pytest.mark.parametrize(("dtype", "off"), [(torch.float64, 1e-12), (torch.float32, 2e-6), (torch.bfloat16, 4e-2)])
def test_values_and_gradients_are_those_of_attention_with_a_mask(dtype, off):
    """The mask is made from the paths."""
    rng = np.random.default_rng(5)
    prompt, turn = rng.integers(0, 9, 40), rng.integers(0, 9, 17)
    parts = [[prompt, turn, rng.integers(0, 9, size)] for size in (1, 30, 5)]
    parts += [[prompt, rng.integers(0, 9, 22)], [prompt], *[[rng.integers(9, 12, 30)]] * 2]
    sequences = [torch.from_numpy(np.concatenate(each)) for each in parts]
    row = pack(sequences, CPU, block=1)
    assert len(row.shared) == 2
    assert row.places is not None
    size = row.tokens.shape[1]
    mask = torch.zeros(size, size, dtype=torch.bool)
    for own in row.places.split([len(each) for each in sequences]):
        mask[own[:, None], own] |= torch.ones(len(own), len(own), dtype=torch.bool).tril()
    drawn = torch.Generator().manual_seed(0)
    qkv = [torch.randn(1, size, 3, 16, dtype=torch.float64, generator=drawn).transpose(1, 2) for _ in range(3)]
    ours, plain = ([each.to(kind).requires_grad_() for each in qkv] for kind in (dtype, torch.float64))
    made = tree_attention(*ours, row.lengths, row.shared, 0.3)
    expected = scaled_dot_product_attention(*plain, attn_mask=mask, scale=0.3).transpose(1, 2)
    assert float((made - expected).detach().abs().max()) < off
    pull = torch.randn(made.shape, dtype=torch.float64, generator=drawn)
    made.backward(pull.to(dtype))
    expected.backward(pull)
    for own, theirs in zip(ours, plain, strict=True):
        assert own.grad is not None
        assert theirs.grad is not None
        assert float((own.grad - theirs.grad).abs().max()) < off * float(theirs.grad.abs().max())
