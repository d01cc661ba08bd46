"""What the benchmarks compute from what they have measured."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.filter.stored import encode_stored
from agent_rl.config.examples import EXAMPLES
from agent_rl.config.load import load_topology
from agent_rl.config.topology import Topology
from agent_rl.records.sqlite import SqliteJournal
from benchmarks import bench_learning, bench_overlap, bench_throughput
from benchmarks.bench_hostile import Heard
from benchmarks.bench_learning import overlap_of
from benchmarks.bench_roc import curves, make, reached
from benchmarks.bench_throughput import Counters, Hosts, Traffic, limit
from benchmarks.command import Failure, WrongOptions, call
from benchmarks.hostile import REACH, SHARES
from benchmarks.runs import Run, RunFailed, Window, stage_rows, window
from tests.builders import opened

# learning -------------------------------------------------------------------------------------------------------------


def test_learning_tells_medians_over_the_seeds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, Sequence[str]]] = []

    def run(file: Path, _directory: Path, overrides: Sequence[str]) -> dict[str, Any]:
        asked.append((file.name, overrides))
        success = {"success_x_greedy": len(asked) / 10, "success_x_greedy_low": 0.0, "success_x_greedy_high": 1.0}
        return {**success, "minutes": 3.0, "minutes_rl": 2.0, "mean_staleness": None, "overlap": 1}

    monkeypatch.setattr(bench_learning, "run", run)
    assert (
        call("learning", ["doors", "--seeds", "3", "--first-seed", "4", "--mode", "synchronous", "--set", "a=1"]) == 0
    )
    assert asked == [("doors.toml", [f"run.seed={seed}", "run.mode=synchronous", "a=1"]) for seed in (4, 5, 6)]
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {
        "seeds": 3,
        "overlap": 3,
        "success_x_greedy_median": 0.2,
        "minutes_median": 3.0,
        "minutes_rl_median": 2.0,
        "mean_staleness_median": None,
    }


def write_journal(folder: Path, groups: Sequence[tuple[str, str]]) -> Path:
    """A journal with a group of each (purpose, problem id)."""
    folder.mkdir()
    journal = SqliteJournal(folder / "journal.sqlite")
    for number, (purpose, name) in enumerate(groups):
        group = opened(number, purpose=purpose)
        group = replace(group, problem=replace(group.problem, id=name))
        journal.open_group(group.group, 0, number, group.purpose, encode_stored(group))
    journal.commit()
    journal.close()
    return folder


def test_operands_of_training_and_evaluation_are_read_from_the_journal(tmp_path: Path) -> None:
    trained = [("train", "sum:12+345"), ("train", "difference:7+8")]
    assert overlap_of(write_journal(tmp_path / "apart", [*trained, ("evaluate_sampled", "sum:12+346")])) == 0
    assert overlap_of(write_journal(tmp_path / "shared", [*trained, ("evaluate_greedy", "product:345+12")])) == 1
    other = [("train", "doors:a"), ("evaluate_greedy", "doors:a"), ("evaluate_greedy", "doors:b")]
    assert overlap_of(write_journal(tmp_path / "other", other)) == 1
    with pytest.raises(Failure, match="nothing was trained or nothing evaluated"):
        overlap_of(write_journal(tmp_path / "half", trained))


# roc ------------------------------------------------------------------------------------------------------------------


def test_without_correct_rollouts_their_errors_are_unknown() -> None:
    steps = [{"tool_error_share_correct": s, "success": 2 * s, "response_tokens": 30.0} for s in (0.0, 0.25)]
    found = curves(steps)
    assert math.isnan(found["error_share"][0])
    assert found["error_share"][1] == 0.25
    assert found["response_tokens"] == [30.0, 30.0]


def test_the_reached_value_is_the_mean_of_the_late_steps() -> None:
    assert reached([9.0] * 8 + [1.0, 3.0]) == 2.0
    assert reached([9.0] * 8 + [math.nan, 3.0]) == 3.0
    assert math.isnan(reached([1.0, math.nan]))


def test_a_sweep_goes_on_where_it_stopped_and_refuses_other_settings(tmp_path: Path) -> None:
    (tmp_path / "done.json").write_text('["a=1"]')
    make(tmp_path, ["a=1"])
    with pytest.raises(RunFailed, match="made with other settings"):
        make(tmp_path, ["a=2"])


# hostile --------------------------------------------------------------------------------------------------------------


def test_the_attacks_are_many_and_no_two_are_the_same() -> None:
    attacks = [*REACH, *SHARES]
    assert len(SHARES) >= 40
    assert len(REACH) >= 80
    assert len({attack.name for attack in attacks}) == len({attack.code for attack in SHARES}) + len(REACH)
    for attack in attacks:
        for side in (attack.code, attack.accomplice, attack.victim):
            assert "{{" not in side
            compile(side, attack.name, "exec")


def test_the_p95_of_few_calls() -> None:
    assert Heard([0.1] * 96 + [2.0] * 4).p95 == pytest.approx(0.1)
    assert Heard([3.0]).p95 == 3.0
    assert Heard().p95 == 0.0


# runs, throughput and overlap -----------------------------------------------------------------------------------------


def row(wall: float, seconds: float = 1.0, **actors: dict[str, Any]) -> dict[str, Any]:
    plain = {"state": "running", "busy": 0.0, "cpu": 0.0, "waiting_for": "", "waited": 0.0, "figures": {}}
    said = {name.replace("_", "."): plain | each for name, each in actors.items()}
    return {"wall": wall, "seconds": seconds, "actors": said, "cores": 2}


def test_rates_are_growth_over_the_window_and_the_first_row_is_where_it_starts() -> None:
    rows = [
        row(100.0, generator_0={"figures": {"rollouts": 50, "generated_tokens": 1000}}),
        row(101.0, generator_0={"figures": {"rollouts": 60, "generated_tokens": 1500}, "busy": 0.5, "cpu": 0.75}),
        row(104.0, 3.0, generator_0={"figures": {"rollouts": 90, "generated_tokens": 3000}, "busy": 0.9, "cpu": 0.75}),
    ]
    found = window(rows)
    assert (found.seconds, found.rollouts_per_s, found.generated_tokens_per_s) == (4.0, 10.0, 500.0)
    assert (found.busy["generator.0"], found.cpu["generator.0"]) == (pytest.approx(0.8), pytest.approx(0.75))
    assert found.idle("generator") == pytest.approx(0.2)
    with pytest.raises(ValueError, match="two rows"):
        window(rows[:1])


def test_a_restarted_actor_and_one_that_appears_later_count_from_nothing() -> None:
    rows = [
        row(0.0, a_0={"figures": {"calls": 100}}),
        row(1.0, a_0={"figures": {"calls": 110}}),
        row(2.0, a_0={"figures": {"calls": 4}}, a_1={"figures": {"calls": 6}}),
    ]
    assert window(rows).tool_calls_per_s == (10 + 4 + 6) / 2


def test_waits_are_gathered_without_their_numbers() -> None:
    waits = [{"waiting_for": f"roc_filter: step {n}", "waited": 0.5} for n in range(1, 5)]
    rows = [row(0.0), *(row(float(n), learner_0=each) for n, each in enumerate(waits, 1))]
    assert window(rows).waits == {"learner.0": {"roc_filter: step": pytest.approx(0.5)}}


def test_rows_of_a_stage_are_those_in_which_the_learner_was_in_it() -> None:
    rows = [
        row(float(n), learner_0={"figures": {"stages": 2.0, "stage": stage, "step": step}})
        for n, (stage, step) in enumerate([(0, 9), (1, 0), (1, 1), (1, 2)])
    ]
    assert [found["wall"] for found in stage_rows(rows, 1, after_step=1)] == [2.0, 3.0]


SPENT = {"kv_scheduler.0": {"rollout_generator: a newer policy (the staleness budget is spent)": 0.7}}
SLOW, FAST, OTHER = (Traffic(2.2e6, 1e5, 0.4, can) for can in (2.4e6, 1e9, 9e6))
FULL = {"a": Traffic(0.0, 0.0, 0.3, 1e9), "b": Traffic(0.0, 0.0, 0.97, 1e9)}


@pytest.mark.parametrize(
    ("busy", "cpu", "waits", "hosts", "limited_by"),
    [
        ({"a.0": 0.95, "b.0": 0.2}, {}, {}, {}, "a.0"),
        ({"rollout_generator.1": 0.95}, {}, {}, {}, "the engine of rollout_generator.1"),
        ({"a.0": 0.5}, {"a.0": 0.4, "b.0": 1.5}, {}, {}, "cores (most: b.0)"),
        ({"a.0": 0.5, "b.0": 0.1}, {"a.0": 0.4}, {}, {}, "a.0 (and waiting)"),
        ({}, {}, {}, {}, "nothing was heard of any actor"),
        ({"a.0": 0.5}, {}, {}, {"a": SLOW, "b": OTHER}, "the link of a, which sends 2.20 of 2.40 MB/s"),
        ({"a.0": 0.5}, {}, {}, {"a": FAST, "b": OTHER}, "a.0 (and waiting)"),
        ({"a.0": 0.5}, {"a.0": 0.2}, {}, FULL, "cores of b (most: a.0)"),
        (
            {"a.0": 0.6, "b.0": 0.4},
            {},
            SPENT,
            {},
            "staleness budget (spent 70 % of the time; from policy to policy mostly a.0)",
        ),
        ({"a.0": 0.95}, {}, SPENT, {}, "a.0"),
    ],
)
def test_the_limit_of_a_topology(
    busy: dict[str, float],
    cpu: dict[str, float],
    waits: dict[str, dict[str, float]],
    hosts: dict[str, Traffic],
    limited_by: str,
) -> None:
    actors = Window(10.0, 0.0, 0.0, 0.0, 0.0, 0.0, busy, cpu, waits)
    assert limit(bench_throughput.Measured(actors, hosts or {"local": Traffic(0.0, 0.0, 0.1)}), 2) == limited_by


def test_a_host_counts_bytes_besides_loopback_and_ticks_of_its_cores() -> None:
    text = (
        "Inter-|   Receive  |  Transmit\n face |bytes packets\n"
        "    lo: 99 1 0 0 0 0 0 0 99 1 0 0 0 0 0 0\n"
        "  eth0: 1000 1 0 0 0 0 0 0 500 1 0 0 0 0 0 0\n"
        "  eth1: 24 1 0 0 0 0 0 0 12 1 0 0 0 0 0 0\n"
        "cpu  10 1 20 60 5 0 4 0 0 0\ncpu0 5 0 10 30 2 0 2 0 0 0\n"
    )
    assert Counters.read(text) == Counters(512, 1024, 35, 100)
    between = Traffic.between(Counters(0, 24, 0, 0), Counters(512, 1024, 35, 100), 2.0, 1024.0)
    assert between == Traffic(256.0, 500.0, 0.35, 1024.0)
    assert between.used == 0.25


def test_hosts_are_reached_by_ssh_and_the_main_host_is_this_machine() -> None:
    roles = dict.fromkeys(("kv_scheduler", "roc_filter", "learner"), 'host="a"')
    roles |= dict.fromkeys(("rollout_generator", "tool_executor"), 'hosts=["b"]')
    placed = [*(f"actors.{role}.{where}" for role, where in roles.items()), "security.key_file=key"]

    def topology(main: str) -> Topology:
        hosts = f'hosts={{a={{address="{main}"}},b={{address="10.0.0.2"}}}}'
        return load_topology(EXAMPLES / "quickstart.toml", [hosts, *placed])

    hosts = Hosts(topology("127.0.0.1"), "ssh -p 22")
    assert hosts.names == ("a", "b")
    assert hosts.command("a", "cat", "a b") == ["cat", "a b"]
    assert hosts.command("b", "cat", "a b") == ["ssh", "-p", "22", "10.0.0.2", "cat 'a b'"]
    with pytest.raises(WrongOptions, match=r"main host a \(10.0.0.1\) is another machine"):
        Hosts(topology("10.0.0.1"), "ssh")


def overlap(tokens_per_s: float, cpu: float = 1.0) -> bench_overlap.Measured:
    """Ten steps in ten seconds."""
    used = {"learner.0": cpu / 4, "tool_executor.0": 3 * cpu / 4}
    return bench_overlap.Measured(10.0, 10 * tokens_per_s, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, used, 1.0, 2, 10)


def test_overlap_is_compared_within_each_round_and_bounded_where_the_cores_are_never_idle() -> None:
    found = {"asynchronous": [overlap(30), overlap(8), overlap(20)]}
    found["synchronous"] = [overlap(20), overlap(2), overlap(10)]
    assert bench_overlap.ratio(found, "") == 2.0
    # Ten steps in ten seconds: two cores have 2 s to give a step. Of these, ours used 1.6 s and theirs 1 s.
    found = {"asynchronous, slow tools": [overlap(30, cpu=1.6)], "synchronous, slow tools": [overlap(20, cpu=1.0)]}
    assert bench_overlap.bounds(found, ", slow tools") == pytest.approx(
        {
            "async_over_sync_slow_tools_bound": 1.5 / 0.8,
            "async_over_sync_slow_tools_bound_sync_cpu": 2.0,
            "async_over_sync_slow_tools_share_of_bound": 0.8,
        }
    )


def test_overlap_tells_what_a_step_costs_by_actor(tmp_path: Path) -> None:
    def actors(wall: float) -> dict[str, dict[str, Any]]:
        figures = {"stages": 1.0, "stage": 0.0, "step": 2 * wall}
        return {"learner_0": {"figures": figures, "cpu": 0.8}, "scheduler_0": {"cpu": 0.1}}

    rows = [row(float(n), **actors(float(n))) for n in range(3)]
    (tmp_path / "timeline.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    step = {"kind": "step", "trained_tokens": 50, "groups_decided": 4, "rollouts": 8, "success": 0.5}
    metrics = [step | {"staleness_mean": 1.0}] * 4 + [{"kind": "stage", "stage_seconds": 2.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    found = bench_overlap.read(Run(None, tmp_path, tmp_path / "output"))  # type: ignore[arg-type]
    assert found.cpu == {"learner.0": 0.4, "scheduler.0": 0.05}
    assert (found.step_seconds, found.cores, found.tokens_per_s) == (0.5, 2, 100.0)
    assert found.most_tokens_per_s == pytest.approx(2 * 50 / 0.45)
