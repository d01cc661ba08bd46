"""Messages over a pipe arrive whole and in order however the bytes are split; what is no message is refused."""

import os
from itertools import pairwise

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.transport.clouds import CLOUDS, REGISTRY, cloud, same
from transport import DecodeError, EncodeError
from transport.stream import LENGTH_BYTES, LIMITS, PipeReader, Unpacker, packed

ARRAY = np.zeros(1 << 16, np.float32)


@given(st.lists(CLOUDS, max_size=4), st.lists(st.integers(0, 2000)), st.integers(0, 50))
def test_any_split_of_the_bytes_gives_the_same_messages(sent, cuts, missing):
    data = b"".join(map(packed, sent))
    data += packed(cloud())[:missing]  # the sender dies meanwhile
    unpacker, heard = Unpacker(REGISTRY), []
    places = [0, *sorted(cuts), len(data)]
    for begin, end in pairwise(places):
        unpacker.feed(data[begin:end])
        heard += unpacker
    assert len(heard) == len(sent)
    assert all(map(same, heard, sent))


@given(st.binary(min_size=1), st.booleans())
def test_garbage_raises_decode_error_only_and_what_came_before_is_heard(garbage, has_length):
    unpacker = Unpacker(REGISTRY)
    unpacker.feed(
        packed(cloud()) + (len(garbage).to_bytes(LENGTH_BYTES, "big") if has_length else b"\xff" * 4) + garbage
    )
    messages = iter(unpacker)
    assert same(next(messages), cloud())
    with pytest.raises(DecodeError):
        next(messages)


def test_a_message_of_the_largest_size_in_one_frame_passes_and_nothing_larger_does():
    beside = len(packed(cloud(name="x" * (1 << 20)))) - LENGTH_BYTES - (1 << 20)
    largest = cloud(name="x" * (LIMITS.message_bytes - beside))
    unpacker = Unpacker(REGISTRY)
    unpacker.feed(packed(largest))
    assert [len(message.name) for message in unpacker] == [len(largest.name)]
    too_large = "16777217 bytes, the limit is 16777216"
    for more, said in ((cloud(name=f"{largest.name}x"), too_large), (cloud(values=ARRAY), "2 frames, the limit is 1")):
        with pytest.raises(EncodeError, match=said):
            packed(more)
    unpacker.feed((LIMITS.message_bytes + 1).to_bytes(LENGTH_BYTES, "big"))  # before its bytes come
    with pytest.raises(DecodeError, match=too_large):
        list(unpacker)


async def test_the_end_of_the_pipe_is_none_also_within_a_message_and_who_gives_up_loses_nothing():
    for rest in (b"", packed(cloud())[:7]):
        reading, writing = os.pipe()
        reader, data = PipeReader(reading, REGISTRY), packed(cloud())
        for part in (data[:9], data[9:] + data[:3], data[3:] + rest):
            os.write(writing, part)
            with trio.move_on_after(1) as scope:
                assert same(await reader.receive(), cloud())
            assert scope.cancelled_caught == (part == data[:9])
        os.close(writing)
        assert await reader.receive() is None
        os.close(reading)
