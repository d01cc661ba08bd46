"""The rehearsal: what is read of processes and timelines, what follows at the paper's size, and a small run."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bench_rehearsal import Options, complaints, factor, longest_idle, rows_of
from benchmarks.command import call
from benchmarks.rehearsal.usage import Process, Usage, Watch, usage

MIB = 2**20


def test_interpreters_count_with_their_actor_and_ranks_apart() -> None:
    processes = {
        each.pid: each
        for each in (
            Process(1, 0, 9.0, 9),
            Process(2, 1, 1.0, 10),
            Process(3, 2, 0.5, 20),
            Process(4, 3, 0.25, 40),
            Process(5, 1, 2.0, 100),
            Process(7, 5, 8.0, 300, rank=True),
            Process(6, 5, 4.0, 200, rank=True),
            Process(8, 6, 1.0, 1),
        )
    }
    assert usage(processes, {"tool_executor.0": 2, "learner.0": 5, "gone.0": 99}) == {
        "tool_executor.0": Usage(1.75, 70, 2),
        "learner.0": Usage(2.0, 100, 5),
        "learner.0 rank 1": Usage(5.0, 201, 6),
        "learner.0 rank 2": Usage(8.0, 300, 7),
    }


def test_seconds_count_from_the_beginning_on_and_over_a_restart() -> None:
    watch = Watch()
    watch.begin({"a.0": Usage(5.0, 100, 1)})
    for cpu, private, pid in ((7.0, 300, 1), (6.5, 10, 1), (1.0, 50, 2), (2.0, 200, 2)):  # a child ended; a new process
        watch.look({"a.0": Usage(cpu, private, pid)})
    seen = watch.actors["a.0"]
    assert seen.seconds == pytest.approx(2.0 + 2.0)
    assert (seen.private_before, seen.private_most) == (100, 300)


def test_the_paper_has_32_times_the_rollouts_and_more_generators_and_executors() -> None:
    options = Options()
    assert factor("roc_filter.0", options) == 32
    assert factor("learner.0 rank 3", options) == 32
    assert factor("rollout_generator.4", options) == pytest.approx(32 * 16 / 56)
    assert factor("tool_executor.0", options) == pytest.approx(32 / 7)


def test_of_replicas_the_busiest_is_told_and_what_grew_is_multiplied() -> None:
    watch = Watch()
    watch.begin({"rollout_generator.0": Usage(0, 0), "rollout_generator.1": Usage(0, 0), "roc_filter.0": Usage(1, MIB)})
    watch.look(
        {"rollout_generator.0": Usage(3, 0), "rollout_generator.1": Usage(6, 0), "roc_filter.0": Usage(4, 3 * MIB)}
    )
    rows = {row.actor: row for row in rows_of(watch, Options(steps=3))}
    assert rows.keys() == {"rollout_generator.1", "roc_filter.0"}
    assert rows["roc_filter.0"].scaled_seconds == pytest.approx(32.0)
    assert rows["roc_filter.0"].scaled_mib == pytest.approx(1 + 2 * 32)


def row(wall: float, tokens: int, busy: float = 0.0) -> dict[str, Any]:
    """A row of a timeline."""
    return {
        "wall": wall,
        "actors": {
            "learner.0": {"busy": busy, "figures": {"step": 1.0}},
            "rollout_generator.0": {"busy": 0.5, "figures": {"generated_tokens": tokens}},
        },
    }


def test_idle_is_the_time_without_a_total_that_grows_and_without_a_learner_that_computes() -> None:
    rows = [row(0, 5), row(1, 9), row(2, 9), row(3, 9), row(4, 12), row(5, 12, busy=0.9), row(6, 12)]
    assert longest_idle(rows) == 2
    assert longest_idle(rows[:2]) == 0
    assert longest_idle([]) == 0


def test_warnings_after_the_last_step_are_of_the_end(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    lines = [
        {"level": "warning", "event": "link", "link_event": "PeerSilent", "timestamp": "2026-01-01T00:00:01.5Z"},
        {"level": "info", "event": "stage", "timestamp": "2026-01-01T00:00:02.0Z"},
        {"level": "warning", "event": "isolation of model code", "timestamp": "2026-01-01T00:00:03.0Z"},
        {"level": "warning", "event": "a link leads to nobody", "timestamp": "2026-01-01T00:00:09.0Z"},
    ]
    (tmp_path / "logs" / "roc_filter.0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = complaints(tmp_path, datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC))
    assert found == {"roc_filter.0: link PeerSilent": 1}


@pytest.mark.slow
def test_a_small_rehearsal_ends_balanced_with_the_figures_of_each_role(capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--steps", "1", "--groups", "1", "--generators", "2", "--ranks", "2", "--tokens", "400", "--pace", "400"]
    assert call("rehearsal", options) == 0
    figures = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert figures["rehearsal_rollouts"] == 32
    assert figures["rehearsal_groups_missing"] == 0
    assert figures["rehearsal_balanced"] == 1
    assert 0.7 * 32 * 400 < figures["rehearsal_tokens"] < 1.3 * 32 * 400
    for role in ("kv_scheduler.0", "roc_filter.0", "learner.0", "learner.0_rank_1", "tool_executor.0"):
        assert figures[f"mib_{role}"] > 10
        assert figures[f"cpu_s_a_step_{role}"] >= 0
