"""The modelled engine keeps its own rules, and takes the seconds that its formulas say."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.twin.modelled_engine import ModelledEngine, Rollout
from benchmarks.twin.trace import EngineModel, Shape

MODEL = EngineModel(400, 6, 0.01, 1e-3, 1e-5, 1e-3, 1e-7, page=4)


class Checked(ModelledEngine):
    """Looks at the KV cache after everything that happens."""

    def _evict(self) -> None:
        super()._evict()
        assert self.used + self.cached_tokens <= self.model.kv_total
        assert self.cached_tokens == sum(self.cached.values())
        assert self.context == sum(rollout.context + self.rows_since(rollout) for rollout in self.rows)


def rollouts_of(*shapes: Shape) -> list[Rollout]:
    return [Rollout(f"r{number}", number, number // 2, shape) for number, shape in enumerate(shapes)]


def finish(engine: ModelledEngine) -> list[Rollout]:
    """Run the engine until a turn ends."""
    while True:
        engine.settle()
        engine.advance(engine.next_event())
        if ended := engine.ended():
            return ended


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 200)), min_size=1, max_size=12), st.booleans())
def test_every_turn_ends_and_no_token_is_lost_or_written_twice(turns, kept):
    engine = Checked("a", MODEL)
    waiting = rollouts_of(*(Shape(prompt, (written,)) for prompt, written in turns))
    for rollout in waiting:
        engine.put(rollout)
    while waiting:
        engine.pause(0.5, kept=kept)
        for rollout in finish(engine):
            waiting.remove(rollout)
            assert (rollout.left, rollout.context) == (0, rollout.shape.context)
    assert engine.written == sum(written for _, written in turns)
    assert engine.busy <= engine.clock
    assert engine.rows == {}


def test_a_rollout_alone_takes_what_the_formulas_say():
    engine = Checked("a", MODEL)
    (rollout,) = rollouts_of(Shape(10, (20, 10), (1.0,), (5,)))
    engine.put(rollout)
    assert finish(engine) == [rollout]
    first = 10 * (1e-3 + 1e-7 * 10 / 2) + sum(0.01 + 1e-3 + 1e-5 * (10 + n) for n in range(20))
    assert engine.clock == pytest.approx(first)
    rollout.turn, rollout.context, rollout.left = 1, 35, 10
    engine.put(rollout)
    finish(engine)
    second = 5 * (1e-3 + 1e-7 * (30 + 35) / 2) + sum(0.01 + 1e-3 + 1e-5 * (35 + n) for n in range(10))
    assert engine.clock == pytest.approx(first + second)
    assert (engine.hit, engine.asked) == (30, 45)


def test_a_full_cache_preempts_the_newest_and_computes_it_again():
    engine = Checked("a", replace(MODEL, kv_total=300))
    for rollout in rollouts_of(Shape(10, (200,)), Shape(10, (200,))):
        engine.put(rollout)
    assert [rollout.name for rollout in finish(engine) + finish(engine)] == ["r0", "r1"]
    assert engine.preempted == 1
    assert engine.preempted_tokens == 10 + 137  # 2 * (10 + 137 + 3) fill the 300 tokens
    assert engine.written == 400


@pytest.mark.parametrize(("queued", "steps"), [(1, 8), (2, 0)])
def test_turns_join_together_once_they_are_enough_or_have_waited(queued, steps):
    engine = Checked("a", replace(MODEL, max_rollouts=64, kv_total=9000, join_share=0.5, join_steps=8))
    rollouts = rollouts_of(*[Shape(10, (200,))] * (4 + queued))
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
    assert engine.steps == steps


def test_prefixes_leave_the_cache_least_recently_used_first():
    engine = Checked("a", replace(MODEL, kv_total=100, page=1, watermark=0.0))
    rollouts = [Rollout(f"{number}", number, number, Shape(30, (5, 5), (1.0,), (0,))) for number in range(4)]
    for rollout in rollouts[:2]:
        engine.put(rollout)
    assert finish(engine) == rollouts[:2]
    assert [engine.cached.get(r, 0) for r in rollouts] == [35, 35, 0, 0]
    engine.put(rollouts[2])
    finish(engine)
    assert [engine.cached.get(r, 0) for r in rollouts] == [30, 35, 35, 0]
