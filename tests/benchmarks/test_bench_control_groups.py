"""The benchmark of control groups: its figures, where the host has any."""

from __future__ import annotations

import json

import pytest

from benchmarks.command import call
from tests.actors.sandbox.running import groups_or_skip


def test_figures_are_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    groups_or_skip("memory", "pids")
    assert call("control_groups", ["--rounds", "2", "--passes", "1", "--moves", "5"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["cpu_ratio"] == pytest.approx(figures["cpu_ms_on"] / figures["cpu_ms_off"])
    assert 0 < figures["move_ms_median"] <= figures["move_ms_max"]
