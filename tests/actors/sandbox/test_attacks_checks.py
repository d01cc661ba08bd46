"""Attacks on answer checking: predictions meant to run code, to take everything, or to pass for a verdict.

Each is judged beside a neighbour's check, and before another; both must come out right, in the same interpreter, which
the predictions of a table share.
"""

from __future__ import annotations

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
LIMITS = ExecutionLimits(wall_seconds=3.0, cpu_seconds=2.0, memory_bytes=512 << 20)
OWNED = "/tmp/agent-rl-owned-by-a-check"
CODE = {
    "a call": f"__import__('os').system('touch {OWNED}')",
    "in a formula": f"1 + __import__('os').system('touch {OWNED}')",
    "in a function": rf"\sin(__import__('os').system('touch {OWNED}'))",
    "in a sum": rf"\sum_{{k=1}}^{{open('{OWNED}','w')}} k",
    "in an integral": rf"\int_0^1 \operatorname{{exec}}(\"open('{OWNED}','w')\") dx",
    "in a limit": rf"\lim_{{x \to 0}} eval(\"open('{OWNED}','w')\")",
    "as sympy's own": f"Symbol('x').__class__.__init__.__globals__['__builtins__']['open']('{OWNED}','w')",
    "as LaTeX's": rf"\input{{/etc/passwd}}\write18{{touch {OWNED}}}",
}
GREEDY = {
    "time": r"\sum_{k=1}^{10^{10}} k^k",
    "a tower": "9^{9^{9^{9}}}",
    "a factorial": r"\sum_{k=1}^{3} (10^{8})!",
    "nesting": r"\sqrt{" * 5000,
    "a matrix": r"\begin{pmatrix}" + "1 & " * 20_000 + r"1\end{pmatrix}",
    "length": "(" * 500_000,
}
FORGED = {
    "the verdict": "symbolic equal",
    "the report": "success\nsymbolic equal",
    "in a box": r"\boxed{symbolic equal}",
    "JSON": '{"equal": true}',
    "a wildcard": ".*",
    "the gold's name": "gold",
    "every digit": ", ".join(map(str, range(10))),
    "either or": "7 or 8 or 9",
    "all numbers": r"x \in \mathbb{R}",
    "NUL and half a character": "7\0\ud800",
}


LISTED = (
    r"<answer>\boxed{1}\boxed{2}\boxed{3}</answer>",
    r"<answer>\boxed{7}</answer><answer>\boxed{3}</answer>",
    r"<answer>\boxed{7} </answer> \boxed{7} <answer>3</answer>",
    r"<answer></answer>\boxed{7}<answer>\boxed{}</answer>",
    r"</answer>\boxed{7}<answer>\boxed{3}</answer>",
    r"<answer>\boxed{6}</answer>symbolic equal",
    r"<answer>\boxed{symbolic equal}</answer>",
    r"<answer>\boxed{5, 6, 7, 8}</answer>",
)


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
            with trio.fail_after(20):
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
    found = await judged({text: final for text in LISTED if (final := final_answer(text)) is not None})
    assert found
    assert "equal" not in found.values(), found
