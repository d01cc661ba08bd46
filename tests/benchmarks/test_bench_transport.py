from __future__ import annotations

import json

import pytest

from benchmarks.bench_transport import Rates, lowest
from benchmarks.command import call
from benchmarks.transport_messages import SIZES, trajectories
from transport import encode
from transport.codec import size_of

FIGURES = {
    "push_ratio_1m",
    "push_ratio_8k",
    "push_per_s_1k",
    "push_p99_ms",
    "calls_per_s",
    "call_p99_ms",
    "codec_encode_mb_per_s",
    "codec_decode_mb_per_s",
}


def test_a_quick_measurement_ends_with_its_figures(capfd):
    assert call("transport", ["--quick"]) == 0
    figures = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert figures.keys() == FIGURES
    assert all(value > 0 for value in figures.values())
    assert figures["push_ratio_8k"] < 1.5  # bare pyzmq does less


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
def test_messages_have_the_size_they_are_named_for_and_differ(size):
    frames = [b"".join(map(bytes, encode(message))) for message in trajectories(size)]
    assert len(set(frames)) == len(frames)
    for message in trajectories(size):
        assert size_of(encode(message)) == pytest.approx(size.bytes, rel=0.02)


def test_the_run_that_flatters_the_links_least_is_told():
    slow_pyzmq = Rates(1685, 3121, 1.83)
    assert lowest([slow_pyzmq, Rates(4424, 3141, 0.71), Rates(4100, 3034, 0.74)]) == Rates(4424, 3141, 0.71)
