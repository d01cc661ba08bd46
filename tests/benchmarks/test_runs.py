"""What benchmarks make of a run: rates and shares of a timeline, the limit, ratios; and one real, small measurement."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actors.cli.main import main
from benchmarks import bench_overlap
from benchmarks.runs import Run, Window, stage_rows, window
from tests.end_to_end.topologies import write_micro


def row(wall: float, seconds: float = 1.0, **actors: dict) -> dict:
    plain = {"state": "running", "busy": 0.0, "cpu": 0.0, "waiting_for": "", "waited": 0.0, "figures": {}}
    return {
        "wall": wall,
        "seconds": seconds,
        "actors": {name.replace("_", "."): plain | said for name, said in actors.items()},
    }


def measured(busy: dict[str, float], cpu: dict[str, float]) -> Window:
    return Window(10.0, 0.0, 0.0, 0.0, 0.0, 0.0, busy, cpu, {})


def test_rates_are_growth_over_the_window_and_the_first_row_is_where_it_starts() -> None:
    rows = [
        row(100.0, generator_0={"figures": {"rollouts": 50, "generated_tokens": 1000}}),
        row(101.0, generator_0={"figures": {"rollouts": 60, "generated_tokens": 1500}, "busy": 0.5, "cpu": 0.75}),
        row(104.0, 3.0, generator_0={"figures": {"rollouts": 90, "generated_tokens": 3000}, "busy": 0.9, "cpu": 0.75}),
    ]
    found = window(rows)
    assert (found.seconds, found.rollouts_per_s, found.generated_tokens_per_s) == (4.0, 10.0, 500.0)
    assert found.busy["generator.0"] == pytest.approx(0.8)
    assert found.cpu["generator.0"] == pytest.approx(0.75)
    assert found.idle("generator") == pytest.approx(0.2)


def test_a_restarted_actor_and_one_that_appears_later_count_from_nothing() -> None:
    rows = [
        row(0.0, a_0={"figures": {"calls": 100}}),
        row(1.0, a_0={"figures": {"calls": 110}}),
        row(2.0, a_0={"figures": {"calls": 4}}, a_1={"figures": {"calls": 6}}),
    ]
    assert window(rows).tool_calls_per_s == (10 + 4 + 6) / 2


def test_waits_are_gathered_without_their_numbers() -> None:
    rows = [row(0.0)] + [
        row(float(n), learner_0={"waiting_for": f"roc_filter: step {n}", "waited": 0.5}) for n in range(1, 5)
    ]
    assert window(rows).waits == {"learner.0": {"roc_filter: step": pytest.approx(0.5)}}


def test_one_row_is_no_window() -> None:
    with pytest.raises(ValueError, match="two rows"):
        window([row(0.0)])


def test_rows_of_a_stage_are_those_in_which_the_learner_was_in_it() -> None:
    rows = [
        row(float(n), learner_0={"figures": {"stages": 2.0, "stage": stage, "step": step}})
        for n, (stage, step) in enumerate([(0, 9), (1, 0), (1, 1), (1, 2)])
    ]
    assert [found["wall"] for found in stage_rows(rows, 1, after_step=1)] == [2.0, 3.0]


def overlap(tokens_per_s: float, cpu: float = 1.0) -> bench_overlap.Measured:
    """Ten steps in ten seconds."""
    used = {"learner.0": cpu / 4, "tool_executor.0": 3 * cpu / 4}
    return bench_overlap.Measured(10.0, 10 * tokens_per_s, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, used, 1.0, 2, 10)


def test_the_overlap_is_compared_within_each_round() -> None:
    found = {"asynchronous": [overlap(30), overlap(8), overlap(20)]}
    found["synchronous"] = [overlap(20), overlap(2), overlap(10)]
    assert bench_overlap.ratio(found, "") == 2.0


def test_the_bound_of_overlap_is_where_the_cores_are_never_idle() -> None:
    """Ten steps in ten seconds: two cores have 2 s to give a step. Of these, ours used 1.6 s and theirs 1 s."""
    found = {"asynchronous, slow tools": [overlap(30, cpu=1.6)], "synchronous, slow tools": [overlap(20, cpu=1.0)]}
    assert bench_overlap.bounds(found, ", slow tools") == pytest.approx(
        {
            "async_over_sync_slow_tools_bound": 1.5 / 0.8,
            "async_over_sync_slow_tools_bound_sync_cpu": 2.0,
            "async_over_sync_slow_tools_share_of_bound": 0.8,
        }
    )


def test_the_overlap_tells_what_a_step_costs_by_actor(tmp_path: Path) -> None:
    def actors(wall: float) -> dict[str, dict]:
        figures = {"stages": 1.0, "stage": 0.0, "step": 2 * wall}
        return {"learner_0": {"figures": figures, "cpu": 0.8}, "scheduler_0": {"cpu": 0.1}}

    rows = [row(float(n), **actors(float(n))) | {"cores": 2} for n in range(3)]
    (tmp_path / "timeline.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    step = {"kind": "step", "trained_tokens": 50, "groups_decided": 4, "rollouts": 8, "success": 0.5}
    metrics = [step | {"staleness_mean": 1.0}] * 4 + [{"kind": "stage", "stage_seconds": 2.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    found = bench_overlap.read(Run(None, tmp_path, tmp_path / "output"))  # type: ignore[arg-type]
    assert found.cpu == {"learner.0": 0.4, "scheduler.0": 0.05}
    assert (found.step_seconds, found.cores, found.tokens_per_s) == (0.5, 2, 100.0)
    assert found.most_tokens_per_s == pytest.approx(2 * 50 / 0.45)


@pytest.mark.slow
def test_throughput_of_a_real_run_is_measured_and_names_what_limits_it(tmp_path: Path, capsys) -> None:
    topology = write_micro(tmp_path, steps=400)[0]
    assert main(["bench", "throughput", str(topology), "--seconds", "4", "--set", "stages.1.problems=1"]) == 0
    out = capsys.readouterr().out
    figures = json.loads(out.splitlines()[-1])
    assert figures["rollouts_per_s"] > 0
    assert figures["generated_tokens_per_s"] > figures["rollouts_per_s"]
    assert 0 < figures["busy_rollout_generator.0"] <= 1
    assert figures["limited_by"] in out.splitlines()[-2]


def test_throughput_says_what_is_wrong_before_it_starts(tmp_path: Path, capsys) -> None:
    topology = write_micro(tmp_path, steps=1)[0]
    assert main(["bench", "throughput", str(topology), "--stage", "afterr"]) == 2
    assert "no stage to measure among" in capsys.readouterr().err
    assert main(["bench", "throughput", str(topology), "--set", "run.seed=x"]) == 2
    assert "run.seed" in capsys.readouterr().err
