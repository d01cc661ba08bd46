"""The simulation of staleness rules: small."""

from __future__ import annotations

import json

import pytest

from actors.cli.main import main


def test_waiting_trains_every_group_and_the_other_rules_favour_short_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "staleness", "--steps", "300"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["wait.dropped_share"] == 0
    assert figures["wait.dropped_seconds"] is None
    assert figures["wait.trained_seconds"] == pytest.approx(figures["wait.all_seconds"], rel=0.05)
    for rule in ("drop", "train_corrected"):
        assert figures[f"{rule}.trained_seconds"] < 0.95 * figures[f"{rule}.all_seconds"]
        assert figures[f"{rule}.dropped_seconds"] > figures[f"{rule}.all_seconds"]
    assert figures["drop.dropped_share"] > figures["train_corrected.dropped_share"] > 0
