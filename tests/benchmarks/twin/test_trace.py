"""A trace with impossible numbers is refused by its field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.twin.trace import EngineLife, EngineModel, LearnerModel, Shape, Trace, TraceError, check

MODEL = EngineModel(10_000, 64, 0.01, 1e-4, 1e-7, 1e-4, 1e-9)


def made(**changes: Any) -> Trace:
    groups = tuple((Shape(5, (10, 3), (0.5,), (4,)), Shape(5, (7,))) for _ in range(2))
    engines = (EngineLife("a", MODEL),)
    return replace(Trace("t", 1, "made up", 2, 1, 2, 1, 100, engines, LearnerModel(1000.0), groups), **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": 0}, "samples: 0 is no number above 0"),
        ({"limit": 20}, "group 0, rollout 0: 22 tokens are more than the limit of 20"),
        ({"steps": 3}, "2 groups are there; 3 steps of 1 groups need 3"),
        ({"max_staleness": -1}, "max_staleness: -1 is negative"),
        ({"learner": LearnerModel(float("nan"))}, "learner, tokens_per_s: nan is no number above 0"),
        ({"learner": LearnerModel(1.0, pause_s=-1)}, "learner, pause_s: -1 is negative"),
        ({"engines": ()}, "engines: each needs a name of its own, and there must be one"),
        ({"engines": (EngineLife("a", MODEL, lost=5.0),)}, "engines: one must be there from the start and stay"),
        (
            {"engines": (EngineLife("a", MODEL), EngineLife("b", MODEL, joins=9.0, lost=5.0))},
            "engine b: it joins at 9.0 s, which is unsorted",
        ),
        ({"engines": (EngineLife("a", replace(MODEL, kv_total=90)),)}, "kv_total: a rollout of 100 tokens"),
        ({"engines": (EngineLife("a", replace(MODEL, step_s=-1.0)),)}, "engine a, step_s: -1.0 is no number above 0"),
        ({"groups": ((Shape(5, (1,)),), (Shape(5, (1,)),))}, "group 0: 1 rollouts are there; samples says 2"),
        ({"groups": ((Shape(5, (1, 2)), Shape(5, (1,))),) * 2}, "rollout 0: 2 turns, 0 tool_s, 0 tool_tokens"),
        ({"groups": ((Shape(5, (0,)), Shape(5, (1,))),) * 2}, "rollout 0: prompt and written must be above 0"),
        ({"groups": ((Shape(5, (1, 1), (-1.0,), (1,)), Shape(5, (1,))),) * 2}, "tool_s or tool_tokens is negative"),
    ],
)
def test_impossible_numbers_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceError) as caught:
        check(made(**changes))
    assert message in str(caught.value)
