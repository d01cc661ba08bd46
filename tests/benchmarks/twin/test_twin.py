"""The twin: its tokens, its engine, and a whole small run."""

import os
import subprocess
import sys
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.engines.base import EngineError, TurnRequest
from actors.learner.model import Saving, TrainedModel
from agent_rl.config.load import load_topology
from agent_rl.messages import PolicyVersion
from benchmarks.bench_twin import PAPER, figures_of, warnings_of
from benchmarks.twin.clock import VirtualClock
from benchmarks.twin.engine import TwinEngine
from benchmarks.twin.modelled_engine import ModelledEngine
from benchmarks.twin.plan import plan_of
from benchmarks.twin.profile import read_profile
from benchmarks.twin.roles import ModelledModel
from benchmarks.twin.run import TwinRun, run_twin
from benchmarks.twin.tokens import CALLS, LENGTH, RIGHT, STOP, array_length, written
from benchmarks.twin.trace import EngineModel, LearnerModel, Shape

pytestmark = pytest.mark.clock(make=VirtualClock)

SMALL = (
    "algorithm.groups_per_step=2",
    "algorithm.samples=4",
    "algorithm.keep=2",
    "actors.rollout_generator.replicas=2",
)


def twin(steps=2, overrides=(), tool_s=0.15) -> TwinRun:
    profile = read_profile("mi300x")
    tools = profile.tools.model_copy(update={"median_s": tool_s, "longest_s": 30 * tool_s})
    profile = profile.model_copy(update={"tools": tools})
    topology = load_topology(PAPER, (*SMALL, *overrides))
    return run_twin(topology, plan_of(topology, profile, where="paper.toml", steps=steps, seed=0), profile, seed=0)


def test_the_modelled_model_can_be_asked_all_that_the_learner_asks_of_a_real_one():
    """A short run does not come to each of these calls."""
    saving = {name for name in vars(Saving) if not name.startswith("_") and name != "save"} - {"due"}  # supervised only
    assert {name for name in saving if not hasattr(ModelledModel, name)} == set()
    for name in ("load", "save", "publish", "begin_rl", "busy_seconds", "give_memory_back"):
        real, modelled = (list(signature(getattr(cls, name)).parameters) for cls in (TrainedModel, ModelledModel))
        assert modelled == real, name


# Tokens


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=4), st.sampled_from([0, CALLS, RIGHT]))
@settings(max_examples=50)
def test_a_turn_stands_for_its_tokens_under_the_policies_that_wrote_them(counts, flag):
    counts[-1] = max(1, counts[-1])
    runs = [(PolicyVersion(0, number), count) for number, count in enumerate(counts)]
    turn = written(runs, flag)
    assert array_length(turn.tokens) == sum(count for _, count in runs)
    assert int(turn.tokens[-1]) == STOP
    assert int(turn.tokens[-2]) & ~LENGTH == flag
    for policy, count in runs:
        assert array_length(turn.tokens[turn.policies[:, 1] == policy.version]) == count


# The engine

MODEL = EngineModel(1000, 8, step_s=0.01, row_s=0.0, context_s=0.0, prefill_s=0.0, prefill_context_s=0.0)
SHAPE = Shape(10, (100, 50), (1.0,), (20,))


def engine() -> TwinEngine:
    learner = LearnerModel(1.0, pause_s=1.0)
    made = ModelledEngine("rollout_generator.0", MODEL)
    return TwinEngine(made, learner, lambda _: (0, 0, SHAPE), lambda _, __: 0, longest=500)


def asked(tokens: int) -> TurnRequest:
    return TurnRequest(
        rollout="a", tokens=range(tokens), max_tokens=400, temperature=1.0, stop_tokens=frozenset({STOP}), seed=0
    )


async def test_an_engine_writes_the_turns_of_the_trace_in_the_time_of_its_model():
    async with trio.open_nursery() as nursery:
        made = engine()
        await nursery.start(made.run)
        began = trio.current_time()
        first = await made.generate(asked(10))
        assert (array_length(first.tokens), trio.current_time() - began) == (100, pytest.approx(1.0))
        second = await made.generate(asked(130))
        assert array_length(second.tokens) == 50
        with pytest.raises(EngineError, match="no turn of the trace begins after 131 tokens"):
            await made.generate(asked(131))
        nursery.cancel_scope.cancel()


async def test_tokens_after_new_weights_are_of_the_new_policy():
    async with trio.open_nursery() as nursery:
        made = engine()
        await nursery.start(made.run)

        async def update() -> None:
            await trio.sleep(0.4)
            await made.load_weights(Path(), PolicyVersion(0, 1))

        nursery.start_soon(update)
        began = trio.current_time()
        turn = await made.generate(asked(10))
        assert trio.current_time() - began == pytest.approx(2.0)  # the pause, too
        versions = [array_length(turn.tokens[turn.policies[:, 1] == version]) for version in (0, 1)]
        assert versions == [40, 60]
        nursery.cancel_scope.cancel()


async def test_an_engine_that_sleeps_writes_nothing_and_goes_on_where_it_was():
    async with trio.open_nursery() as nursery:
        made = engine()
        await nursery.start(made.run)

        async def sleep() -> None:
            await trio.sleep(0.4)
            await made.sleep()
            assert made.figures.generated_tokens == 40
            await trio.sleep(5.0)
            assert made.figures.generated_tokens == 40
            await made.wake()

        nursery.start_soon(sleep)
        began = trio.current_time()
        turn = await made.generate(asked(10))
        assert trio.current_time() - began == pytest.approx(6.0, abs=0.02)
        assert array_length(turn.tokens) == 100
        nursery.cancel_scope.cancel()


def test_in_a_run_engines_sleep_while_the_learner_of_their_device_trains(monkeypatch):
    slept, sleep = [], TwinEngine.sleep

    async def noted(made: TwinEngine) -> None:
        slept.append(made.model.name)
        await sleep(made)

    monkeypatch.setattr(TwinEngine, "sleep", noted)
    turns = tuple(f'actors.{role}.share="time"' for role in ("learner", "rollout_generator"))
    assert twin(steps=1, overrides=turns).outcome.steps == 1
    names = ["rollout_generator.0", "rollout_generator.1"]
    assert sorted(slept) == sorted(2 * names), "an engine begins asleep, and falls asleep for the step"


async def test_a_turn_that_is_given_up_leaves_the_engine():
    async with trio.open_nursery() as nursery:
        made = engine()
        await nursery.start(made.run)
        with trio.move_on_after(0.5):
            await made.generate(asked(10))
        made.release("a")
        assert made.figures.running == 0
        assert made.model.next_event() == np.inf
        nursery.cancel_scope.cancel()


# A whole run


def test_a_run_is_a_function_of_file_seed_and_profile():
    first, second = twin(), twin()
    assert figures_of(first) == figures_of(second)
    assert list(warnings_of(first)) == []
    assert first.outcome.steps == 2
    assert first.outcome.written_tokens >= first.plan.trace.written()


def test_an_executor_with_too_few_places_shows():
    slow = {"steps": 1, "tool_s": 20.0}
    few = twin(
        **slow, overrides=("actors.tool_executor.settings.interpreters=1", "actors.tool_executor.settings.children=1")
    )
    many = twin(**slow)
    assert few.outcome.makespan_s > many.outcome.makespan_s
    (of_few,), (of_many,) = few.world.places.values(), many.world.places.values()
    assert of_few.full_s == pytest.approx(of_few.used_s)
    assert of_many.used_s > 0.5 * of_few.used_s
    assert of_many.full_s == 0
    assert figures_of(many)["executor full"] == 0
    assert any("its 1 places are all taken for " in warning for warning in warnings_of(few))


@pytest.mark.slow
def test_two_processes_with_other_hashes_print_the_same():
    command = [sys.executable, "-m", "actors.cli", "bench", "twin", "--steps", "2"]
    command += [part for setting in SMALL for part in ("--set", setting)]
    told = [
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout
        for seed in ("1", "2")
    ]
    assert told[0] == told[1]
    assert b"engines idle" in told[0]
