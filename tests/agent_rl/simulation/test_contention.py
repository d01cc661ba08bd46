"""What a simulated run shows of its cores is found again; and what a run's records say of its pace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agent_rl.config.load import load_topology
from agent_rl.simulation.contention import Pace, pace_of, pace_seen, settled
from agent_rl.simulation.plan import plan_of
from agent_rl.simulation.prediction import predict
from agent_rl.simulation.profile import Cores, Engine, Learner, Profile, read_profile

QUICKSTART = Path(__file__).parents[3] / "examples" / "quickstart.toml"
SMALL = ("algorithm.groups_per_step=4", "algorithm.samples=4", "algorithm.keep=2")


def profile(cores: float, tools: float) -> Profile:
    known = read_profile("mi300x")
    return Profile(
        about="made up",
        measured=True,
        engine=Engine(step_s=0.002, row_s=5e-5, context_s=1e-7, prefill_s=6e-5, kv_tokens=60_000),
        learner=Learner(tokens_per_s=10_000.0, publish_s=0.05),
        tools=known.tools.model_copy(update={"median_s": 0.001, "longest_s": 0.01, "longest_tokens": 5}),
        rollouts=known.rollouts.model_copy(update={"mean_tokens": 40.0, "prompt_tokens": (16, 26), "most_calls": 4}),
        cores=Cores(cores=cores, tools=tools, call_s=0.004),
    )


def test_the_cores_of_a_simulated_run_are_found_again() -> None:
    topology, steps = load_topology(QUICKSTART, SMALL), 8
    made = plan_of(topology, profile(0.9, 2.0), where="", steps=steps, seed=0)
    seen = pace_of(predict(made).outcome)
    found = settled(profile(2.0, 1.0), topology, made.trace.groups, seen, "").cores
    assert found is not None
    assert found.cores == pytest.approx(0.9, rel=0.03)
    again = replace(made, trace=replace(made.trace, shared=replace(made.trace.shared, **found.model_dump())))  # type: ignore[type-var]
    assert pace_of(predict(again).outcome).seconds == pytest.approx(seen.seconds, rel=0.01)
    slow = settled(profile(2.0, 1.0), topology, made.trace.groups, seen._replace(seconds=0.1), "").cores
    assert slow is not None
    assert slow.cores == pytest.approx(2.0), "no run has more cores than there are"


def test_what_passes_between_the_last_rollout_of_a_step_and_its_training_is_found_again() -> None:
    topology, steps = load_topology(QUICKSTART, SMALL), 8
    known = profile(2.0, 1.0).model_copy(update={"cores": None})
    late = known.model_copy(update={"learner": known.learner.model_copy(update={"gather_s": 0.07})})
    made = plan_of(topology, late, where="", steps=steps, seed=0)
    seen = pace_of(predict(made).outcome)
    found = settled(known, topology, made.trace.groups, seen, "").learner
    assert found.gather_s == pytest.approx(0.07, rel=0.1)
    again = plan_of(topology, late.model_copy(update={"learner": found}), where="", steps=steps, seed=0)
    assert pace_of(predict(again).outcome).seconds == pytest.approx(seen.seconds, rel=0.01)
    fast = settled(known, topology, made.trace.groups, seen._replace(seconds=seen.seconds / 10), "").learner
    assert fast.gather_s == 0.0


def test_the_pace_is_from_the_first_step_to_the_last() -> None:
    totals = [(10.0, 0.0), (12.0, 100.0), (14.0, 300.0)]
    assert pace_seen([{"wall": 11.0}, {"wall": 13.0}, {"wall": 15.0}], totals) == Pace(4.0, 250.0)
    assert pace_seen([{"wall": 11.0}], totals) is None
    assert pace_seen([{"wall": 11.0}, {"wall": 13.0}], []) is None
