"""The benchmark of lost generators: small."""

from __future__ import annotations

import json

import pytest

from actors.cli.main import main


def test_a_dead_generator_costs_its_share_and_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "members", "--steps", "12"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["dead_generator_throughput_share"] > 0.95
    assert figures["two_over_one"] > 1.6
    assert figures["rollouts_moved"] >= 1
