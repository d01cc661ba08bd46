"""Payloads: packed small, and the same again to the last byte."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest

from actors.roc_filter.stored import decode_stored, encode_stored
from agent_rl.records.payloads import SMALL, pack, unpack
from agent_rl.testing import opened, trajectory
from transport import encode


def frames(draw: random.Random) -> list[bytes]:
    made = []
    for _ in range(draw.randrange(5)):
        size = draw.choice([0, 1, 7, 8, SMALL - 1, SMALL, draw.randrange(20_000)])
        kinds = [
            os.urandom(size),
            bytes(size),
            b"words and words again " * (size // 22 + 1),
            b"".join(bytes([draw.randrange(3)]) * draw.randrange(1, 900) for _ in range(12)),
            np.repeat(np.array([[1, 7], [1, 8]], np.int32), [size, 3], axis=0).tobytes(),
        ]
        made.append(draw.choice(kinds)[: draw.choice([size, 20_000])])
    return made


def test_whatever_is_packed_comes_back() -> None:
    draw = random.Random(5)
    for _ in range(400):
        whole = frames(draw)
        assert unpack(pack(whole)) == whole


@pytest.mark.parametrize("tokens", [1, 6, 63, 1000, 10_007])
def test_a_message_comes_back_equal(tokens: int) -> None:
    made = trajectory(opened(3), 2, tokens=tokens)
    again = decode_stored(encode_stored(made))
    assert [bytes(frame) for frame in encode(again)] == [bytes(frame) for frame in encode(made)]
    assert decode_stored(encode_stored(opened(3))) == opened(3)


def test_policies_and_masks_take_next_to_nothing() -> None:
    policies = np.repeat(np.array([[1, 7], [1, 8]], np.int32), 5_000, axis=0)
    mask = np.ones(10_000, np.uint8)
    mask[3_333:4_444] = 0
    assert len(pack([policies.tobytes()])) < 40
    assert len(pack([mask.tobytes()])) < 100


def test_what_does_not_shrink_stays_as_it_is() -> None:
    noise = os.urandom(40_000)
    assert len(pack([noise])) == len(noise) + 5
