"""Every benchmark at its smallest size: it ends well and prints its figures."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from actors.cli.main import main
from benchmarks.command import call
from tests.actors.sandbox.running import require

SMALL_MODEL = "model.initialise={hidden_size=32, layers=1, heads=2, kv_heads=1, head_dim=16, mlp_size=32}"
SMALL_STEPS = ("algorithm.groups_per_step=2", "algorithm.samples=4", "algorithm.keep=2")
SMALL_RUN = (
    *(SMALL_MODEL, *SMALL_STEPS),
    *("stages.0.steps=20", "stages.1.problems=4", "stages.2.steps=2", "stages.3.problems=4"),
)


def settings(*each: str) -> tuple[str, ...]:
    return tuple(part for setting in each for part in ("--set", setting))


SMALLEST: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "learning": (
        ("--seeds", "1", *settings(*SMALL_RUN)),
        ("seeds", "overlap", "success_after_greedy_median", "minutes_median", "minutes_rl_median"),
    ),
    "roc": (
        (
            *("--seeds", "1", "--modes", "none", "paper", "--sft-steps", "3", "--problems", "2", "--steps", "2"),
            *settings(SMALL_MODEL, *SMALL_STEPS),
        ),
        ("seeds", "roc.error_share", "no_roc.error_share", "roc.success", "no_roc.response_tokens"),
    ),
    "hostile": (
        ("--quick",),
        ("attacks", "broken", "quiet_p95_ms", "neighbour_p95_ratio", "neighbour_timeouts", "neighbours_harmed"),
    ),
}
"""By subject: the options of its smallest size, and figures that it prints."""
MAY_FAIL = {"hostile"}
"""Subjects whose exit code depends on how busy the machine is."""


@pytest.mark.slow
@pytest.mark.parametrize("subject", SMALLEST)
def test_the_smallest_size_of_each_benchmark_has_its_figures(
    subject: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options, names = SMALLEST[subject]
    if subject == "hostile":
        require("strong")
    out = ("--out", str(tmp_path)) if subject == "roc" else ()
    code = call(subject, [*options, *out])
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert code == 0 or subject in MAY_FAIL
    assert figures.keys() >= set(names)
    assert all(value is None or isinstance(value, str) or math.isfinite(value) for value in figures.values())


def test_a_run_that_fails_ends_the_benchmark_with_its_last_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "learning", "--seeds", "1", "--set", "stages.0.steps=many"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("agent-rl bench learning: the run ended with 2\n")
    assert "stages.0.steps" in error
