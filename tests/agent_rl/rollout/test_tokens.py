"""The body of a trajectory: what is packed comes back, and no bytes do more than raise BodyError."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.roc_filter.replay import decode_stored, encode_stored
from agent_rl.messages import BodyError, Tokens
from agent_rl.messages.tokens import HEADER, PART, RAW, RUNS
from agent_rl_contract.builders import opened, repacked, trajectory


def tokens(prompt: int, response: int, seed: int) -> Tokens:
    """Token ids and log-probabilities at random, a loss mask and policies in runs."""
    rng = np.random.default_rng(seed)
    versions = np.sort(rng.integers(0, 3, response)) + 7
    return Tokens(
        rng.integers(0, 1 << int(rng.integers(1, 31)), prompt).astype(np.int32),
        rng.integers(0, 1 << int(rng.integers(1, 31)), response).astype(np.int32),
        np.resize(np.repeat(np.array([1, 0], np.uint8), int(rng.integers(1, 900))), response),
        rng.standard_normal(response).astype(np.float32),
        np.stack([np.ones(response), versions], axis=1).astype(np.int32),
    )


SIZES = st.sampled_from([0, 1, 7, 8, 511, 512, 2047, 2048, 2049, 10_007])


@given(SIZES, SIZES, st.integers(0, 1 << 20))
@settings(deadline=None, max_examples=100)
def test_whatever_is_packed_comes_back(prompt: int, response: int, seed: int) -> None:
    given = tokens(prompt, response, seed)
    for before, after in zip(given, Tokens.unpack(given.pack()), strict=True):
        assert before.dtype == after.dtype
        assert np.array_equal(before, after)


@st.composite
def trees(draw: st.DrawFn) -> Tokens:
    """A rollout with branches of branches."""
    seed, prompt, first = draw(st.integers(0, 99)), draw(st.integers(0, 3)), draw(st.integers(0, 5))
    lengths, rows, end = [prompt + first], [], first
    for own in draw(st.lists(st.integers(1, 5), max_size=5)):
        parent = draw(st.integers(0, len(lengths) - 1))
        shared = draw(st.integers(0, lengths[parent]))
        rows.append((parent, shared, end))
        lengths.append(shared + own)
        end += own
    return tokens(prompt, end, seed)._replace(branches=np.array(rows, np.int32).reshape(-1, 3))


@given(trees())
def test_a_tree_comes_back_and_each_of_its_sequences_begins_as_the_one_it_goes_on_from(given: Tokens) -> None:
    found = Tokens.unpack(given.pack())
    assert np.array_equal(found.branches, given.branches)
    first, *branches = found.sequences
    assert np.array_equal(first.tokens[: first.shared], given.prompt_tokens)
    for each, (parent, shared, _) in zip(branches, given.branches.tolist(), strict=True):
        assert np.array_equal(each.tokens[:shared], found.sequences[parent].tokens[:shared])
    for each in found.sequences:
        assert np.array_equal(each.tokens[each.shared :], given.tokens[each.own])
    assert sum(len(each.tokens) - each.shared for each in found.sequences) == len(given.tokens)


@given(st.builds(tokens, st.just(60), st.just(3000), st.integers(0, 1 << 20)) | trees(), st.data())
@settings(deadline=None, max_examples=300)
def test_changed_bytes_are_refused_or_fit_their_lengths(given: Tokens, data: st.DataObject) -> None:
    body = bytearray(given.pack())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body) - 1) | st.integers(0, min(60, len(body) - 1)))
        body[at] ^= 1 << data.draw(st.integers(0, 7))
    del body[data.draw(st.integers(0, len(body)) | st.just(len(body))) :]
    try:
        found = Tokens.unpack(bytes(body))
    except BodyError:
        return
    assert len({len(array) for array in found[1:-1]}) == 1
    own = [place for each in found.sequences for place in range(*each.own.indices(len(found.tokens)))]
    assert own == list(range(len(found.tokens)))
    assert sum(len(each.tokens) - each.shared for each in found.sequences) == len(found.tokens)


ONE = tokens(3, 4, 0)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "requires a buffer"),
        (HEADER.pack(9, 0, 0), "its layout is 9"),
        (ONE.pack() + b"x", "1 bytes too many"),
        (ONE._replace(logprobs=np.zeros(3, np.float32)).pack(), "an array of 12 bytes, where its lengths ask for 16"),
        (ONE._replace(tokens=np.array([1, -2, 3, 4], np.int32)).pack(), "token ids below 0"),
        (ONE._replace(loss_mask=np.array([1, 2, 1, 1], np.uint8)).pack(), "a loss mask of other values"),
        (ONE._replace(branches=np.array([[1, 0, 2]], np.int32)).pack(), "branch 1 does not fit"),
        (ONE._replace(branches=np.array([[0, 6, 2]], np.int32)).pack(), "branch 1 does not fit"),
        (ONE._replace(branches=np.array([[0, 1, 4]], np.int32)).pack(), "branch 1 does not fit"),
        (HEADER.pack(1, 1 << 31, 0) + PART.pack(RAW, 4) + bytes(4), "where its lengths ask for 8589934592"),
        (HEADER.pack(1, 1 << 20, 0) + PART.pack(RUNS, 13) + b"\0" + b"\xff" * 12, "runs of other lengths"),
    ],
)
def test_what_is_wrong_is_said(body: bytes, words: str) -> None:
    with pytest.raises(BodyError, match=words):
        Tokens.unpack(body)


def test_a_head_that_counts_other_tokens_than_its_body_is_refused() -> None:
    made = trajectory(opened())
    with pytest.raises(BodyError, match="a body of 3 and 6 tokens, where its head says 3 and 7"):
        replace(made, response_length=7).unpack()


@pytest.mark.parametrize("count", [1, 6, 1000, 10_007])
def test_the_journal_gives_back_what_the_filter_received_but_for_the_judgement(count: int) -> None:
    made = trajectory(opened(3), 2, tokens=count)
    assert decode_stored(encode_stored(made)) == replace(made, judgement=None)
    assert encode_stored(made).endswith(made.body)
    assert decode_stored(encode_stored(opened(3))) == opened(3)


def test_policies_and_masks_take_next_to_nothing() -> None:
    mask = np.ones(10_000, np.uint8)
    mask[3_333:4_444] = 0
    policies = np.repeat(np.array([[1, 7], [1, 8]], np.int32), 5_000, axis=0)
    made = repacked(trajectory(opened(), tokens=10_000), loss_mask=mask, policies=policies)
    assert (made.oldest, made.newest, made.response_length) == (7, 8, 10_000)
    assert len(made.body) < 20_000
