"""The simulator keeps its own rules, on random small traces, under every policy; and no policy beats the bound."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scheduling.bound import lower_bound
from benchmarks.scheduling.policies import POLICIES
from benchmarks.scheduling.routers import LeastRequests
from benchmarks.scheduling.simulator import Simulator
from benchmarks.twin.modelled_engine import ModelledEngine, Rollout
from benchmarks.twin.outcome import Outcome
from benchmarks.twin.trace import EngineLife, EngineModel, LearnerModel, Shape, Trace, check

MODEL = EngineModel(400, 6, 0.01, 1e-3, 1e-5, 1e-3, 1e-7, page=4)


class Checked(ModelledEngine):
    """Looks at the KV cache after everything that happens."""

    def _evict(self) -> None:
        super()._evict()
        assert self.used + self.cached_tokens <= self.model.kv_total
        assert self.cached_tokens == sum(self.cached.values())
        written = sum(r.context + self.rows_since(r) for r in self.rows)
        assert written == self.context


@st.composite
def shapes(draw: st.DrawFn, prompt: int) -> Shape:
    written = draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    tools = [(draw(st.floats(0, 2)), draw(st.integers(0, 10))) for _ in written[1:]]
    return Shape(prompt, tuple(written), tuple(s for s, _ in tools), tuple(t for _, t in tools))


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    samples, per_step, steps = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    prompts = draw(st.lists(st.integers(1, 40), min_size=per_step * steps, max_size=per_step * steps))
    groups = tuple(tuple(draw(shapes(prompt)) for _ in range(samples)) for prompt in prompts)
    other = EngineModel(300, 3, 0.02, 0.0, 2e-5, 5e-4, 0.0, page=1)
    engines = [EngineLife("a", MODEL), EngineLife("b", draw(st.sampled_from([MODEL, other])))]
    for name, when in (("c", "lost"), ("d", "drains")):
        if draw(st.booleans()):
            joins = draw(st.floats(0, 1))
            engines.append(EngineLife(name, MODEL, joins=joins, **{when: joins + draw(st.floats(0.1, 3))}))
    learner = LearnerModel(draw(st.floats(50, 5000)), publish_s=draw(st.floats(0, 1)), kv_kept=draw(st.booleans()))
    staleness = draw(st.integers(0, 2))
    trace = Trace("random", 0, "", samples, per_step, steps, staleness, 250, tuple(engines), learner, groups)
    return check(replace(trace, opens_late=draw(st.booleans())))


def run(trace: Trace, name: str) -> Outcome:
    spec = POLICIES[name]
    simulator = Simulator(trace, spec.make(), evicts_half=spec.evicts_half, each_turn=spec.each_turn)
    simulator.engines = [Checked(e.name, e.model, evicts_half=spec.evicts_half) for e in simulator.engines]
    return simulator.run()


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=6, deadline=None)
@given(trace=traces())
def test_a_policy_finishes_within_the_rules_and_never_beats_the_bound(name: str, trace: Trace) -> None:
    outcome = run(trace, name)  # raises when a token is lost or written twice
    assert outcome.makespan_s >= lower_bound(trace) * (1 - 1e-9)
    assert 0 <= outcome.hit_rate <= 1
    assert max(outcome.staleness) <= trace.max_staleness
    assert not outcome.faults
    assert outcome.written_tokens == trace.written() + outcome.lost_tokens
    again = run(trace, name)
    assert (again.makespan_s, again.preempted, again.steps) == (outcome.makespan_s, outcome.preempted, outcome.steps)


def test_an_engine_gets_nothing_before_it_joins() -> None:
    group = tuple(Shape(10, (60,)) for _ in range(4))
    engines = (EngineLife("a", MODEL), EngineLife("b", MODEL, joins=1000.0))
    trace = check(Trace("late", 0, "", 4, 1, 4, 1, 250, engines, LearnerModel(1000.0, publish_s=0.0), (group,) * 4))
    placed = []
    simulator = Simulator(trace, LeastRequests(), record=lambda now, decision: placed.append((now, decision)))
    assert simulator.run().makespan_s < 1000
    assert {decision.engine for _, decision in placed} == {"a"}


def alone(written: tuple[int, ...], **changes: float) -> Trace:
    group = (Shape(10, written, (1.0,) * (len(written) - 1), (5,) * (len(written) - 1)),)
    model = replace(MODEL, **changes)
    learner = LearnerModel(1000.0, publish_s=0.0)
    return check(Trace("alone", 0, "", 1, 1, 1, 1, 250, (EngineLife("a", model),), learner, (group,)))


def test_the_time_of_a_group_is_told_from_its_opening() -> None:
    outcome = Outcome(alone((3,)))
    outcome.opened(0, 0, 1.0)
    for now in (5.0, 6.0):
        outcome.started(0, now)
    outcome.group_ended(0, 9.0)
    assert outcome.group_p99_s == 8.0


def test_a_rollout_alone_takes_what_the_formulas_say() -> None:
    outcome = Simulator(alone((20, 10)), LeastRequests()).run()
    decode = sum(0.01 + 1e-3 + 1e-5 * (10 + n) for n in range(20)) + sum(
        0.01 + 1e-3 + 1e-5 * (35 + n) for n in range(10)
    )
    prefill = 10 * (1e-3 + 1e-7 * 10 / 2) + 5 * (1e-3 + 1e-7 * (30 + 35) / 2)
    assert outcome.makespan_s == pytest.approx(decode + prefill + 1.0 + 45 * 0.5 / 1000)
    assert outcome.hit_rate == 30 / 45


def test_turns_join_together_once_they_are_enough_or_have_waited() -> None:
    def joined_after(queued: int) -> int:
        engine = ModelledEngine("a", replace(MODEL, max_rollouts=64, kv_total=9000, join_share=0.5, join_steps=8))
        rollouts = [Rollout(f"r{n}", n, n, 0, Shape(10, (200,))) for n in range(4 + queued)]
        for rollout in rollouts[:4]:
            engine.put(rollout)
        engine.settle()
        assert len(engine.rows) == 4, "nothing runs, so nobody waits"
        for rollout in rollouts[4:]:
            engine.put(rollout)
        engine.settle()
        while len(engine.rows) == 4:
            engine.advance(engine.next_event())
            engine.settle()
        return engine.steps

    assert joined_after(1) == 8
    assert joined_after(2) == 0


@pytest.mark.parametrize(
    "changes", [{}, {"steps": 4, "max_staleness": 0, "learner": LearnerModel(20.0, 0.5, 3.0, 0.0)}]
)
def test_the_bound_is_reached_without_prefill_alone_and_by_steps_that_wait_for_each_other(
    changes: dict[str, Any],
) -> None:
    trace = alone((20, 10), prefill_s=0.0, prefill_context_s=0.0)
    trace = check(replace(trace, **changes, groups=trace.groups * changes.get("steps", 1)))
    assert Simulator(trace, LeastRequests()).run().makespan_s == pytest.approx(lower_bound(trace))


def test_a_full_cache_preempts_the_newest_and_computes_it_again() -> None:
    group = tuple(Shape(10, (200,)) for _ in range(2))
    learner = LearnerModel(1000.0)
    engines = (EngineLife("a", replace(MODEL, kv_total=300)),)
    trace = check(Trace("full", 0, "", 2, 1, 1, 1, 250, engines, learner, (group,)))
    outcome = Simulator(trace, LeastRequests()).run()
    assert outcome.preempted == 1
    assert outcome.preempted_tokens == 10 + 137  # 2 * (10 + 137 + 3) fill the 300 tokens
    assert outcome.written_tokens == 400


def test_prefixes_leave_the_cache_least_recently_used_first() -> None:
    engine = ModelledEngine("a", replace(MODEL, kv_total=100, page=1, watermark=0.0))
    rollouts = [Rollout(f"{n}", n, n, 0, Shape(30, (5, 5), (1.0,), (0,))) for n in range(4)]
    for rollout in rollouts[:2]:
        engine.put(rollout)
    engine.settle()
    engine.advance(engine.next_event())
    assert engine.ended() == rollouts[:2]
    assert [engine.cached.get(r, 0) for r in rollouts] == [35, 35, 0, 0]
    engine.put(rollouts[2])
    engine.settle()
    engine.advance(engine.next_event())
    assert [engine.cached.get(r, 0) for r in rollouts] == [30, 35, 0, 0]
