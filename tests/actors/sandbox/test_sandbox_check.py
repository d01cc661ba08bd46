"""Checkers: answers judged in children that can be killed."""

from __future__ import annotations

import pytest
import trio

from actors.sandbox.owner.client import CheckResult, ExecutionLimits, Sandbox

PAIRS = [
    ("42", "42"),
    ("42", "43"),
    ("\\frac{1}{2}", "0.5"),
    ("x^2+2x+1", "(x+1)^2"),
    ("x", "\\frac{1}{"),
    ("3", "\ud800\0"),
    ("7", "\\sum_{k=1}^{10^{10}} k^k"),
    ("7", "\\sqrt{" * 3000),
]


def test_answers_are_judged_and_an_endless_one_is_not_equal() -> None:
    async def main() -> list[CheckResult]:
        sandbox = Sandbox(checker=True, limits=ExecutionLimits(wall_seconds=4.0, cpu_seconds=1.0))
        async with trio.open_nursery() as nursery:
            await nursery.start(sandbox.run)
            results = [await sandbox.check(gold, prediction) for gold, prediction in PAIRS]
            nursery.cancel_scope.cancel()
        return results

    with pytest.raises(TypeError):
        trio.run(Sandbox().check, "1", "1")
    with pytest.raises(TypeError):
        trio.run(Sandbox(checker=True).execute, "1")
    results = trio.run(main)
    assert [result.equal for result in results] == [True, False, True, True, False, False, False, False]
    assert [result.method for result in results[:4]] == ["exact", "exact", "symbolic", "symbolic"]
    assert results[6].method in ("timeout", "memory_limit")
    assert all(result.failure == "" for result in results)
