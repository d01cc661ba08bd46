"""Errors of predictions, and what is predicted without a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent_rl.simulation.profile import Engine, Learner, Profile, read_profile
from benchmarks.bench_overlap import SLOW_TOOLS
from benchmarks.bench_twin import OTHERS, Figures, errors, predicted, report, settings_of


def test_errors_are_shares_and_all_runs_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    said, was = Figures(90.0, 120.0, 0.5), Figures(100.0, 100.0, 0.25)
    assert errors(said, was) == pytest.approx((0.1, 0.2, 0.25))
    assert errors(Figures(1.0, 1.0, 1.0), Figures(1.0, 1.0, 2.0)).staleness == 0.5
    report([(0, "a", said, was), (1, "b", was, was)])
    printed = capsys.readouterr().out.splitlines()
    assert json.loads(printed[-1]) == {"twin.error_median": pytest.approx(0.05), "twin.error_worst": 0.25}


def test_what_differs_changes_the_prediction_and_staleness_0_is_0() -> None:
    known = read_profile("mi300x")
    profile = Profile(
        about="made up",
        measured=True,
        engine=Engine(step_s=0.01, row_s=3e-4, context_s=1e-6, prefill_s=1e-4, kv_tokens=60_000),
        learner=Learner(tokens_per_s=2000.0, publish_s=0.2),
        tools=known.tools.model_copy(update={"median_s": 0.02, "longest_tokens": 20}),
        rollouts=known.rollouts.model_copy(update={"mean_tokens": 60.0, "prompt_tokens": (16, 26), "most_calls": 3}),
    )

    def said(*others: str) -> Figures:
        return predicted(profile, settings_of(Path("model"), 3, 0, others), 3, 0, sleeps=others == SLOW_TOOLS)

    base = said()
    assert base == said()
    assert all(said(*others).makespan_s > base.makespan_s * 0.9 for others in OTHERS.values())
    assert said(*SLOW_TOOLS).makespan_s > base.makespan_s
    assert said(*OTHERS["staleness 0"]).staleness == 0
