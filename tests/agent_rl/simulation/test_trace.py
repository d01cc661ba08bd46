"""A trace with impossible numbers is refused, by file, line and field."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_rl.simulation.trace import (
    EngineLife,
    EngineModel,
    LearnerModel,
    Shape,
    Trace,
    TraceError,
    check,
    read,
    write,
)

MODEL = EngineModel(10_000, 64, 0.01, 1e-4, 1e-7, 1e-4, 1e-9)


def made(**changes: Any) -> Trace:
    groups = tuple((Shape(5, (10, 3), (0.5,), (4,)), Shape(5, (7,))) for _ in range(2))
    engines = (EngineLife("a", MODEL),)
    return replace(Trace("t", 1, "made up", 2, 1, 2, 1, 100, engines, LearnerModel(1000.0), groups), **changes)


def test_a_trace_survives_its_file(tmp_path: Path) -> None:
    trace = check(made())
    write(trace, tmp_path / "t.jsonl")
    again = read(tmp_path / "t.jsonl")
    assert again == replace(trace, engines=again.engines)
    assert again.written() == 40


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


@pytest.mark.parametrize(
    ("line", "text", "message"),
    [
        (1, "{", "line 1: no JSON"),
        (2, "[]", "line 2: a JSON object is expected"),
        (2, '{"prompt": 5}', "line 2: 'rollouts' is missing"),
        (3, '{"prompt": 5.5, "rollouts": []}', "line 3: tokens are whole numbers"),
        (3, '{"prompt": 5, "rollouts": [{"written": [1], "tool_s": []}]}', "line 3: 'tool_tokens' is missing"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: int, text: str, message: str) -> None:
    path = tmp_path / "t.jsonl"
    write(made(), path)
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[line - 1] = text
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(TraceError) as caught:
        read(path)
    assert f"{path}, {message}" in str(caught.value)


def test_missing_and_unknown_fields_of_the_head_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write(made(), path)
    head, *rest = path.read_text(encoding="utf-8").splitlines()
    for change, message in (({"learner": None}, "line 1"), ({"speed": 3}, "speed")):
        fields = {**json.loads(head), **change}
        path.write_text("\n".join([json.dumps(fields), *rest]), encoding="utf-8")
        with pytest.raises(TraceError, match=message):
            read(path)
    with pytest.raises(TraceError, match="cannot be read"):
        read(tmp_path / "none.jsonl")
