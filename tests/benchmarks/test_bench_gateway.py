"""The benchmark of the gateway at its smallest size, and what its fuzzing calls a right answer."""

from __future__ import annotations

import json

import pytest

from benchmarks.command import call
from benchmarks.gateway_fuzz import Shot, fault, shots
from benchmarks.gateway_stand import Answer


@pytest.mark.slow
def test_all_parts_have_their_figures(capfd: pytest.CaptureFixture[str]) -> None:
    code = call("gateway", ["--quick"])
    printed = capfd.readouterr().out
    figures = json.loads(printed.splitlines()[-1])
    assert code == 0, printed
    assert min(figures["gateway_over_native_low"], figures["gateway_over_native_streamed_low"]) > 0
    assert figures["gateway_connections"] == 128
    assert figures["gateway_p50_ms"] <= figures["gateway_p99_ms"]
    assert figures["gateway_fuzzed"] == figures["gateway_fuzzed_of"] == 300
    assert figures["gateway_undisturbed"] == 1


def test_the_same_seed_makes_the_same_requests() -> None:
    first, again, other = ([shot.data("key") for shot in shots(200, seed)] for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize(
    ("path", "status", "body", "right"),
    [
        ("/v1/messages", 400, {"type": "error", "error": {"type": "x", "message": "y"}}, True),
        ("/v1/messages", 400, {"error": {"type": "x", "message": "y"}}, False),
        ("/v1/responses", 400, {"error": {"type": "x", "message": "y"}}, True),
        ("/v1/responses", 400, {"error": {"type": "x", "message": ""}}, False),
        ("/v1/responses", 503, {"error": {"type": "x", "message": "y"}}, False),
        ("/r/key/v1/messages?x", 400, {"type": "error", "error": {"type": "x", "message": "y"}}, True),
    ],
)
def test_errors_have_the_shape_of_their_provider(path: str, status: int, body: object, right: bool) -> None:
    answer = Answer(status, {"content-type": "application/json"}, json.dumps(body).encode(), 0.0)
    assert (fault(Shot("value", path, b""), answer) == "") is right
