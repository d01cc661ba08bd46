"""A profile fitted to a run's records gives the run's engine, learner, tools and lengths back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.cli.main import main
from agent_rl.messages import ToolCallRecord, Transcript
from agent_rl.simulation.calibration import CalibrationError, RecordedRun, fit, shape_of, trace_of
from agent_rl.simulation.profile import Profile, read_profile
from agent_rl.simulation.trace import Shape, check
from agent_rl.simulation.workload import draw_groups
from tests import builders

STEP_S, ROW_S, CONTEXT_S = 0.004, 2e-4, 3e-7


def timeline(rows: int) -> list[dict[str, Any]]:
    """Rows of an engine that was busy as long as its seconds say, under loads that vary."""
    random = np.random.default_rng(1)
    made: list[dict[str, Any]] = []
    figures = {"generated_tokens": 0.0, "engine_steps": 0.0, "kv_used": 500.0, "kv_total": 9000.0}
    for _ in range(rows):
        after = {**figures, "kv_used": float(random.integers(100, 9000))}
        steps, running = int(random.integers(5, 90)), float(random.integers(1, 64))
        used = (figures["kv_used"] + after["kv_used"]) / 2
        after["engine_steps"] += steps
        after["generated_tokens"] += steps * running
        seconds = steps * (STEP_S + ROW_S * running + CONTEXT_S * used)
        actors = {"rollout_generator.0": {"busy": 1.0, "figures": after}, "learner.0": {"busy": 0.1, "figures": {}}}
        made.append({"seconds": seconds, "actors": actors})
        figures = after
    return made


def recorded(rows: int = 60) -> RecordedRun:
    profile = read_profile("mi300x")
    groups = draw_groups(profile, seed=4, groups=30, samples=16, max_response=30_000, max_turns=11)
    steps = [{"groups_decided": 16, "groups_trained": 12, "train_seconds": 2.0, "update_seconds": 0.5}] * 3
    return RecordedRun("runs/a", groups, tuple(timeline(rows)), tuple(steps), 0.5)


def test_a_profile_gives_back_what_the_records_were_made_of() -> None:
    run, known = recorded(), read_profile("mi300x")
    made = fit(run)
    assert made.engine is not None
    assert (made.engine.step_s, made.engine.row_s) == pytest.approx((STEP_S, ROW_S), rel=0.02)
    assert made.engine.context_s == pytest.approx(CONTEXT_S, rel=0.05)
    assert made.engine.kv_tokens == 9000
    assert made.rollouts.mean_tokens == pytest.approx(known.rollouts.mean_tokens, rel=0.1)
    assert made.rollouts.spread_within == pytest.approx(known.rollouts.spread_within, rel=0.1)
    assert made.rollouts.spread_between == pytest.approx(known.rollouts.spread_between, rel=0.3)
    assert made.rollouts.calls == pytest.approx(known.rollouts.calls, rel=0.05)
    assert made.rollouts.signal == 0.75
    assert made.tools.median_s == pytest.approx(known.tools.median_s, rel=0.1)
    assert made.learner.publish_s == 0.5
    mean = sum(shape.context for shape in run.shapes) / len(run.groups)
    assert made.learner.tokens_per_s == pytest.approx(12 * mean * 0.5 / 2.0)
    assert made.measured
    assert Profile.model_validate(made.model_dump()) == made
    assert check(trace_of(run, made)).groups == run.groups


def shared_run() -> RecordedRun:
    """A run on two cores: the engine was busy three times as long as it computed, the learner twice as long."""
    rows = timeline(60)
    for number, row in enumerate(rows):
        engine = row["actors"]["rollout_generator.0"]
        row["seconds"] *= 3
        engine["cpu"] = engine["busy"] / 3
        row["actors"]["learner.0"] |= {"busy": 0.5, "cpu": 0.25}
        row["actors"]["tool_executor.0"] = {"busy": 0.1, "cpu": 0.2, "figures": {"calls": 10.0 * number}}
        row["actors"]["kv_scheduler.0"] = {"busy": 0.1, "cpu": 0.1, "figures": {}}
    return replace(recorded(), timeline=tuple(rows), cores=2)


def test_on_shared_cores_seconds_are_those_of_a_core_and_tools_wait_for_the_rest() -> None:
    run = shared_run()
    made, cores = fit(run), fit(run).cores
    assert made.engine is not None
    assert cores is not None
    assert (made.engine.step_s, made.engine.row_s) == pytest.approx((STEP_S, ROW_S), rel=0.02)
    assert made.learner.tokens_per_s == pytest.approx(2 * (fit(recorded()).learner.tokens_per_s or 0))
    assert cores.cores == pytest.approx(1.9)
    assert cores.call_s == pytest.approx(0.2 * sum(row["seconds"] for row in run.timeline[1:]) / 590)
    with_core = [s for shape in run.shapes for s in shape.tool_s]
    without = [s for group in trace_of(run, made).groups for shape in group for s in shape.tool_s]
    assert without == [pytest.approx(max(0.0, s - cores.call_s), abs=1e-6) for s in with_core]
    assert Profile.model_validate(made.model_dump()) == made


def test_what_a_generator_does_beside_its_engine_takes_cores_from_all() -> None:
    run = shared_run()
    apart = shared_run()
    for number, row in enumerate(apart.timeline):
        row["actors"]["rollout_generator.0"]["figures"]["engine_cpu_seconds"] = 0.2 * sum(
            each["seconds"] for each in apart.timeline[: number + 1]
        )
    cores, of_engine = fit(run).cores, fit(apart).cores
    assert cores is not None
    assert of_engine is not None
    assert cores.cores - of_engine.cores == pytest.approx(1 / 3 - 0.2, rel=0.05)
    apart.timeline[-1]["actors"]["rollout_generator.0"]["figures"]["engine_cpu_seconds"] = 0.0
    assert fit(apart).cores == cores, "a process that was started again has counted less than the first"


def test_steps_without_a_count_are_refused_by_name() -> None:
    rows = timeline(60)
    for row in rows:
        del row["actors"]["rollout_generator.0"]["figures"]["engine_steps"]
    with pytest.raises(CalibrationError, match=r"timeline\.jsonl: engines were busy in 0 rows"):
        fit(replace(recorded(), timeline=tuple(rows)))


def test_a_trajectory_becomes_turns_answers_and_the_seconds_of_the_slowest_call_of_each_turn() -> None:
    mask = [1, 1, 1, 0, 0, 1, 0, 1, 1]
    calls = [ToolCallRecord(turn, "t", "success", 0.1, total) for turn, total in ((1, 0.25), (1, 1.5), (2, 0.75))]
    trajectory = builders.repacked(
        builders.trajectory(builders.opened(), tokens=9),
        loss_mask=np.array(mask, np.uint8),
        transcript=Transcript(("a", "b", "c"), tuple(calls)),
    )
    prompt = trajectory.prompt_length
    assert shape_of(trajectory) == Shape(prompt, (3, 1, 2), (1.5, 0.75), (2, 1))


def test_a_run_that_says_too_little_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run, said in (
        (replace(recorded(), groups=()), "no complete training group"),
        (recorded(rows=5), r"timeline\.jsonl: engines were busy in 4 rows"),
        (replace(recorded(), steps=()), r"metrics\.jsonl: no step was trained"),
    ):
        with pytest.raises(CalibrationError, match=rf"runs/a.*{said}"):
            fit(run)
    assert main(["calibrate", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "timeline.jsonl: there is none" in line
