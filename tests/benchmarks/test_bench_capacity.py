"""The capacity benchmark: it counts all statuses, at the shipped rate, and a larger run costs in proportion."""

import json

import pytest

from actors.runtime.reports import STATUSES_PASSED_ON
from agent_rl.config.processes import Run
from benchmarks import bench_capacity
from benchmarks.bench_capacity import Cost, Options, main, measure

PASS_ON_SECONDS = STATUSES_PASSED_ON * Run.model_fields["status_seconds"].default


def test_all_statuses_are_heard_at_the_shipped_rate_and_half_of_them_when_half_are_silent() -> None:
    heard, half = measure(32, 2.0, metrics=False)
    assert heard.statuses_per_s == 32 / PASS_ON_SECONDS
    assert half.statuses_per_s == 16 / PASS_ON_SECONDS
    assert 0 < half.core_share < 1
    assert 0 < heard.core_share < 1


def test_four_times_the_actors_cost_at_most_four_times_as_much_also_when_half_are_silent() -> None:
    for few, many in zip(measure(32, 2.0, metrics=True), measure(128, 2.0, metrics=True), strict=True):
        assert many.statuses_per_s == 4 * few.statuses_per_s
        assert many.core_share < 6 * few.core_share  # 16 times, if it were quadratic


def test_the_figures_of_600_actors_are_printed_without_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_capacity, "measure", lambda *_, **__: [Cost(0.04, 600.0), Cost(0.03, 300.0)])
    assert main(Options()) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["supervisor_core_share_600"] == 0.04
    assert figures["supervisor_core_share_600_half_silent"] == 0.03
