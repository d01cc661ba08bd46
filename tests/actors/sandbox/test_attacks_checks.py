"""Attacks on answer checking: predictions meant to run code, to take everything, or to pass for a verdict.

Each is judged beside a neighbour's check, and before another; both must come out right, in the same interpreter, which
the predictions of a table share.
"""

import tomllib
from pathlib import Path

import pytest
import trio

from actors.sandbox.owner.client import ExecutionLimits
from actors.sandbox.owner.functions import FunctionSandbox
from agent_rl.environments.base import CheckError
from agent_rl.environments.maths.rewards import final_answer
from tests.actors.sandbox.running import live

CHECK = "agent_rl.environments.maths.rewards:check"
pytestmark = pytest.mark.real_time
LIMITS = ExecutionLimits(wall_seconds=10.0, cpu_seconds=2.0, memory_bytes=512 << 20)
OWNED = "/tmp/agent-rl-owned-by-a-check"
CHECKS = tomllib.loads(Path(__file__).with_name("attacks.toml").read_text())["checks"]
CODE = {name: text.replace("{{OWNED}}", OWNED) for name, text in CHECKS["code"].items()}
GREEDY = {
    **CHECKS["greedy"],
    "nesting": r"\sqrt{" * 5000,
    "a matrix": r"\begin{pmatrix}" + "1 & " * 20_000 + r"1\end{pmatrix}",
    "length": "(" * 500_000,
}
FORGED = {**CHECKS["forged"], "NUL and half a character": "7\0\ud800"}


async def judged(predictions, level="host"):
    """The verdict on each prediction for the gold 7, beside other checks: ``different``, ``equal``, or why none."""
    found = {}
    async with live(FunctionSandbox([CHECK], limits=LIMITS, isolation=level)) as sandbox:

        async def attack(name, prediction):
            try:
                found[name] = await sandbox.check(CHECK, "7", prediction)
            except CheckError as error:
                found[name] = str(error)

        async def right(gold, prediction, expected):
            assert await sandbox.check(CHECK, gold, prediction) == expected

        for name, prediction in predictions.items():
            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(attack, name, prediction)
                    nursery.start_soon(right, r"\frac{1}{2}", "0.5", "equal")
                    nursery.start_soon(right, r"\frac{1}{2}", "0.25", "different")
                await right("x^2+2x+1", "(x+1)^2", "equal")
                await right("7", "8", "different")
        assert sandbox.figures["restarts"] == 0
    return found


async def test_a_prediction_that_is_code_is_not_run():
    found = await judged(CODE, "limits")  # where nothing else would keep it from being run
    assert found == dict.fromkeys(CODE, "different")
    assert not Path(OWNED).exists()


async def test_a_prediction_that_takes_everything_is_not_equal():
    found = await judged(GREEDY)
    assert set(found.values()) <= {"different", "timeout", "memory_limit", "output_limit", "crashed"}, found


async def test_a_prediction_that_passes_for_a_verdict_or_for_everything_is_not_equal():
    found = await judged(FORGED)
    assert len(found) == len(FORGED)
    assert "equal" not in found.values(), found


async def test_an_end_that_lists_answers_closes_tags_early_or_prints_a_verdict_gains_nothing():
    found = await judged({text: final for text in CHECKS["listed"] if (final := final_answer(text)) is not None})
    assert found
    assert "equal" not in found.values(), found
