"""The twin: its tokens, its engine, a whole small run, and what messages cost."""

from __future__ import annotations

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
from actors.twin.clock import VirtualClock
from actors.twin.engine import TwinEngine
from actors.twin.report import twin_lines
from actors.twin.roles import ModelledModel
from actors.twin.run import TwinRun, run_twin
from actors.twin.tokens import CALLS, LENGTH, RIGHT, STOP, array_length, written
from agent_rl.config.examples import topology_file
from agent_rl.config.load import load_topology
from agent_rl.messages import PolicyVersion
from agent_rl.simulation.costs import Cost, Costs, shipped_costs
from agent_rl.simulation.engine import ModelledEngine
from agent_rl.simulation.plan import plan_of
from agent_rl.simulation.prediction import lines
from agent_rl.simulation.profile import read_profile
from agent_rl.simulation.trace import EngineModel, LearnerModel, Shape

pytestmark = pytest.mark.clock(make=VirtualClock)

SMALL = (
    "algorithm.groups_per_step=2",
    "algorithm.samples=4",
    "algorithm.keep=2",
    "actors.rollout_generator.replicas=2",
)
FILE = "examples/paper_size.toml"


def twin(steps=2, messages=None, overrides=(), tool_s=0.15) -> TwinRun:
    profile = read_profile("mi300x")
    tools = profile.tools.model_copy(update={"median_s": tool_s, "longest_s": 30 * tool_s})
    profile = profile.model_copy(update={"tools": tools})
    if messages is not None:
        profile = profile.model_copy(update={"messages": messages})
    topology = load_topology((topology_file(FILE),), (*SMALL, *overrides))
    return run_twin(topology, plan_of(topology, profile, where=FILE, steps=steps, seed=0), profile, seed=0)


def text_of(made: TwinRun) -> str:
    told = [*lines(made.prediction, read_profile("mi300x")), *twin_lines(made.prediction, made.world, made.warnings)]
    return "\n".join(told)


def test_the_modelled_model_can_be_asked_all_that_the_learner_asks_of_a_real_one():
    """A short run does not come to each of these calls."""
    saving = {name for name in vars(Saving) if not name.startswith("_") and name != "save"} - {"due"}  # supervised only
    assert {name for name in saving if not hasattr(ModelledModel, name)} == set()
    for name in ("load", "save", "publish", "begin_rl", "busy_seconds", "give_memory_back"):
        real, modelled = (list(signature(getattr(cls, name)).parameters) for cls in (TrainedModel, ModelledModel))
        assert modelled == real, name


# Tokens


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=4), st.sampled_from([0, CALLS, RIGHT]), st.booleans())
@settings(max_examples=50)
def test_a_turn_stands_for_its_tokens_under_the_policies_that_wrote_them(counts, flag, plain):
    counts[-1] = max(1, counts[-1] if plain is False else min(counts[-1], 50))
    runs = [(PolicyVersion(0, number), min(count, 50) if plain else count) for number, count in enumerate(counts)]
    turn = written(runs, flag, plain=plain)
    assert array_length(turn.tokens) == sum(count for _, count in runs)
    assert int(turn.tokens[-1]) == STOP
    assert int(turn.tokens[-2]) & ~LENGTH == flag
    for policy, count in runs:
        assert array_length(turn.tokens[turn.policies[:, 1] == policy.version]) == count


# The engine

MODEL = EngineModel(1000, 8, step_s=0.01, row_s=0.0, context_s=0.0, prefill_s=0.0, prefill_context_s=0.0)
SHAPE = Shape(10, (100, 50), (1.0,), (20,))


async def nothing(_: int) -> None:
    await trio.lowlevel.checkpoint()


def engine() -> TwinEngine:
    learner = LearnerModel(1.0, pause_s=1.0)
    made = ModelledEngine("rollout_generator.0", MODEL)
    return TwinEngine(made, learner, lambda _: (0, 0, SHAPE), lambda _, __: 0, nothing, longest=500, plain=False)


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
    assert twin(steps=1, overrides=turns).prediction.outcome.steps == 1
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
    assert text_of(first) == text_of(second)
    assert not first.warnings
    made = first.prediction
    assert made.outcome.steps == 2
    written_by_trained = sum(count for process in first.world.processors.values() for count in process.tokens.values())
    assert written_by_trained >= made.plan.trace.written()
    busiest = next(line for line in text_of(first).splitlines() if line.startswith("busiest actor"))
    assert busiest.split()[2].rstrip(",") in first.world.processors


def test_a_saturated_actor_shows():
    costs = shipped_costs()
    dear = {**costs, "roc_filter": {**costs["roc_filter"], "Trajectory": Cost(seconds=200.0)}}
    normal, slow = twin(steps=1), twin(steps=1, messages=dear)
    assert slow.prediction.outcome.makespan_s > 8 * 200.0 > normal.prediction.outcome.makespan_s
    text = text_of(slow)
    assert "busiest actor     roc_filter.0, " in text
    assert "it limits the run" in text


def test_an_executor_with_too_few_places_shows():
    slow = {"steps": 1, "tool_s": 20.0}
    few = twin(
        **slow, overrides=("actors.tool_executor.settings.interpreters=1", "actors.tool_executor.settings.children=1")
    )
    many = twin(**slow)
    assert few.prediction.outcome.makespan_s > many.prediction.outcome.makespan_s
    (of_few,), (of_many,) = few.world.places.values(), many.world.places.values()
    assert of_few.full_s == pytest.approx(of_few.used_s)
    assert of_many.used_s > 0.5 * of_few.used_s
    assert of_many.full_s == 0
    assert "all of them taken for 0.0% of the makespan\n" in text_of(many)
    assert "calls wait for it" in text_of(few)


def test_messages_that_are_not_in_the_table_cost_nothing():
    costs = Costs({"roc_filter": {"Trajectory": Cost(seconds=1.0, token_s=0.5)}})
    assert costs.seconds("roc_filter", "Trajectory", 4) == 3.0
    assert costs.seconds("roc_filter", "GroupOpened", 4) == 0.0
    assert costs.seconds("learner", "Trajectory", 4) == 0.0


@pytest.mark.slow
def test_two_processes_with_other_hashes_print_the_same():
    command = [sys.executable, "-m", "actors.cli", "simulate", FILE, "--steps", "2"]
    command += [part for setting in SMALL for part in ("--set", setting)]
    told = [
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout
        for seed in ("1", "2")
    ]
    assert told[0] == told[1]
    assert b"busiest actor" in told[0]
