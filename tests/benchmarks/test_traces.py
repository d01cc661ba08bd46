"""The traces: functions of their seeds, with the shapes that their sources state."""

from __future__ import annotations

import pytest

from agent_rl.simulation.bound import lower_bound
from agent_rl.simulation.trace import Trace
from benchmarks.traces import GENERATORS, JUDGING_SEEDS, TRAINING_SEEDS, generate


def figures(trace: Trace) -> tuple[float, float, float]:
    """Mean tokens written, mean calls, and the median of all tokens of a rollout."""
    shapes = [shape for group in trace.groups for shape in group]
    context = sorted(shape.context for shape in shapes)
    calls = sum(len(shape.tool_s) for shape in shapes) / len(shapes)
    return trace.written() / len(shapes), calls, context[len(context) // 2]


def test_no_seed_both_trains_and_judges() -> None:
    assert len(JUDGING_SEEDS) == 5
    assert not set(TRAINING_SEEDS) & set(JUDGING_SEEDS)


@pytest.mark.parametrize("name", GENERATORS)
def test_a_trace_is_a_function_of_its_seed(name: str) -> None:
    trace = generate(name, 101, 0.01)
    assert trace == generate(name, 101, 0.01)
    assert trace.groups != generate(name, 102, 0.01).groups
    assert trace.source
    assert lower_bound(trace) > 0


def test_shapes_are_those_of_their_sources() -> None:
    written, calls, _ = figures(generate("paper", 101, 0.04))
    assert 9300 < written < 10_950
    assert 2.6 < calls < 2.9
    _, calls, context = figures(generate("agentic", 101, 0.25))
    assert 42 * 0.8 < calls < 42 * 1.3
    assert 130_000 < context < 170_000
    written, _, _ = figures(generate("brutal", 101, 0.25))
    assert 1150 < written < 1400


def test_an_unknown_trace_is_named() -> None:
    with pytest.raises(ValueError, match="there is no trace 'papers'; there are paper, "):
        generate("papers", 1)
