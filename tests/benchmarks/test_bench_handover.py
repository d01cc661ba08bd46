"""The benchmark of rollouts that survive their generator: small."""

from __future__ import annotations

import json

import pytest

from benchmarks.bench_handover import Options, one_turn
from benchmarks.command import call


@pytest.mark.slow
def test_a_quick_measurement_ends_with_its_figures(capfd: pytest.CaptureFixture[str]) -> None:
    assert call("handover", ["--quick"]) == 0
    figures = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert figures.keys() >= {"survival_overhead", "survival_overhead_clock", "survival_overhead_counted"}
    assert figures["survival_overhead_counted"] > 0


def test_a_turn_takes_eight_bytes_a_token_beside_its_texts() -> None:
    figures: dict[str, float] = {}
    for tokens in (25, 2500):
        one_turn(tokens, Options(turns=3), figures)
    assert figures["bytes_25"] < 600
    assert figures["bytes_2500"] < 2500 * 8 + 1200
