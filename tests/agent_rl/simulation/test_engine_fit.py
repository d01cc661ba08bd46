"""What a forward pass takes is found again, from passes by size where engines count them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agent_rl.simulation.engine_fit import load_of, not_negative

STEP_S, ROW_S, PREFILL_S = 0.003, 5e-5, 4e-5


def rows_of_seconds_alike(count: int, *, waited: float = 1.0) -> list[dict[str, Any]]:
    """Each row has as many passes of each size. Seconds of passes vary; they took ``waited`` times their work."""
    random = np.random.default_rng(3)
    totals: dict[str, list[float]] = {}
    figures: dict[str, Any] = {"generated_tokens": 0, "engine_steps": 0, "prefilled_tokens": 0, "kv_total": 500}
    made: list[dict[str, Any]] = []
    for _ in range(count):
        work = 0.0
        for size, passes, written, prefilled in (("1", 20, 1, 0), ("64", 30, 50, 0), ("256+", 10, 200, 150)):
            seconds = passes * (STEP_S + ROW_S * written + PREFILL_S * prefilled) * random.uniform(0.9, 1.1)
            grown = [passes, waited * seconds, seconds, passes * written, passes * prefilled, 0]
            totals[size] = [a + b for a, b in zip(totals.get(size, [0.0] * 6), grown, strict=True)]
            work += seconds
        figures |= {
            "engine_steps": sum(each[0] for each in totals.values()),
            "generated_tokens": sum(each[3] for each in totals.values()),
            "prefilled_tokens": sum(each[4] for each in totals.values()),
            "passes": dict(totals),
        }
        status = {"busy": waited * work, "cpu": work, "figures": dict(figures)}
        made.append({"seconds": 1.0, "actors": {"rollout_generator.0": status}})
    return made


def test_passes_by_size_tell_what_seconds_alike_do_not() -> None:
    rows = rows_of_seconds_alike(30)
    found = load_of(rows, "rollout_generator.", None).fitted()
    assert found == pytest.approx([STEP_S, ROW_S, 0.0, PREFILL_S], rel=0.1, abs=1e-6)
    for row in rows:
        del row["actors"]["rollout_generator.0"]["figures"]["passes"]
    blind = load_of(rows, "rollout_generator.", None).fitted()
    assert blind != pytest.approx([STEP_S, ROW_S, 0.0, PREFILL_S], rel=0.1, abs=1e-6)


def test_on_shared_cores_passes_take_the_processor_seconds_of_their_thread_or_a_share_of_the_wall() -> None:
    rows = rows_of_seconds_alike(30, waited=2.5)
    assert load_of(rows, "rollout_generator.", 1.0).fitted()[:2] == pytest.approx([STEP_S, ROW_S], rel=0.1)
    for row in rows:
        for passes in row["actors"]["rollout_generator.0"]["figures"]["passes"].values():
            passes[2] = 0.0
    assert load_of(rows, "rollout_generator.", 1.0).fitted()[:2] == pytest.approx([STEP_S, ROW_S], rel=0.1)
    halves = load_of(rows, "rollout_generator.", 2.0).fitted()
    assert halves[:2] == pytest.approx([STEP_S / 2, ROW_S / 2], rel=0.1), "a pass that keeps two cores takes half"


def test_coefficients_that_would_be_negative_are_0() -> None:
    rows = np.array([[1.0, 5.0], [2.0, 4.0], [3.0, 3.0], [4.0, 2.0]])
    assert not_negative(rows, rows @ np.array([2.0, -0.2])) == pytest.approx([1.8, 0.0], rel=0.2)
    assert not_negative(rows, rows @ np.array([2.0, 0.5])) == pytest.approx([2.0, 0.5])
