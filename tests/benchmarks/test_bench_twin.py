"""Errors of predictions, and what is predicted without a run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.engines.reference import save_tiny_model
from actors.engines.testing import turn
from agent_rl.messages import Policy
from agent_rl.simulation.profile import Engine, Learner, Profile, read_profile
from benchmarks import bench_twin, paced
from benchmarks.bench_overlap import SLOW_TOOLS
from benchmarks.bench_twin import (
    AGAIN,
    FITTED,
    KINDS,
    OTHERS,
    Compared,
    Figures,
    Options,
    compare,
    errors,
    measured,
    predicted,
    report,
    settings_of,
)
from benchmarks.runs import RunFailed


def test_errors_are_shares_and_all_runs_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    said, was = Figures(90.0, 120.0, 0.5), Figures(100.0, 100.0, 0.25)
    assert errors(said, was) == pytest.approx((0.1, 0.2, 0.25))
    assert errors(Figures(1.0, 1.0, 1.0), Figures(1.0, 1.0, 2.0)).staleness == 0.5
    report(
        [
            Compared("paced", 0, FITTED, Figures(1.0, 1.0, 0.0), was),
            Compared("paced", 0, AGAIN, Figures(100.0, 95.0, 0.25), was),
            Compared("paced", 0, "a", said, was),
            Compared("shared", 1, "b", was, was),
            Compared("shared", 1, "c", failed="the run ended with 1"),
        ]
    )
    printed = capsys.readouterr().out.splitlines()
    assert "shared, seed 1, c: failed: the run ended with 1" in printed
    assert json.loads(printed[-1]) == {
        "twin.paced.again_worst": pytest.approx(0.05),
        "twin.paced.error_median": pytest.approx(0.2),
        "twin.paced.error_worst": 0.25,
        "twin.shared.error_median": 0,
        "twin.shared.error_worst": 0,
        "twin.error_median": pytest.approx(0.05),
        "twin.error_worst": 0.25,
        "twin.failed": 1,
    }


def test_a_run_is_measured_from_its_first_step_to_its_last() -> None:
    def row(wall: float, tokens: float) -> dict[str, Any]:
        return {"wall": wall, "actors": {"rollout_generator.0": {"figures": {"generated_tokens": tokens}}}}

    steps = [{"wall": 11.0, "staleness_mean": 0.0}, {"wall": 12.0}, {"wall": 13.0, "staleness_mean": 1.0}]
    rows = [{"wall": 9.0, "actors": {}}, row(10.0, 0.0), row(12.0, 100.0), row(14.0, 300.0)]
    assert measured(steps, rows) == (2.0, 75.0, 0.5)
    with pytest.raises(RunFailed, match="1 steps"):
        measured(steps[:1], rows)


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
        settings = settings_of(Path("model"), KINDS["shared"], 3, 0, others)
        return predicted(profile, settings, 3, 0, sleeps=others == SLOW_TOOLS)

    base = said()
    assert base == said()
    assert all(said(*others).makespan_s > base.makespan_s * 0.9 for others in OTHERS.values())
    assert said(*SLOW_TOOLS) != base
    assert said(*OTHERS["staleness 0"]).staleness == 0


def test_a_run_that_fails_is_told_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object) -> None:
        await trio.lowlevel.checkpoint()
        raise RunFailed("the run ended with 1")

    monkeypatch.setattr(bench_twin, "one", fails)
    found = trio.run(compare, "paced", 0, tmp_path, Path("model"), Options())
    assert [made.what for made in found] == [FITTED, AGAIN, *OTHERS]
    assert [made.failed for made in found] == ["the run ended with 1", *["there is no profile"] * (1 + len(OTHERS))]


def test_a_paced_engine_takes_its_seconds(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model", "qwen3", seed=0)

    async def main() -> float:
        engine = paced.PacedEngine(
            tmp_path / "model", max_rollouts=4, kv_tokens=None, dtype="float32", initial_policy=Policy(0, 0)
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(engine.run)
            began = time.perf_counter()
            written = await engine.generate(turn("r", [1, 2, 3], 4))
            nursery.cancel_scope.cancel()
            assert len(written.tokens) == engine.figures.steps
        return (time.perf_counter() - began) / engine.figures.steps

    assert trio.run(main) >= paced.STEP_S + paced.ROW_S
