"""The numerics guard names what an engine does wrong, and is silent where nothing is wrong."""

import copy
import json

import pytest
import torch

from agent_rl.config.topology import Lora
from agent_rl.learning.guard_causes import Sampled
from benchmarks import bench_guard
from benchmarks.command import call
from benchmarks.guard_faults import FAULTS, FRESH, Pair, plain, top_k, top_p, write_model

PLAIN = Sampled(1.0)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """More are slower for so small a model."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def pairs(path):
    """Without and with adapters."""
    return {False: Pair(path), True: Pair(path, lora=Lora(rank=4))}


@pytest.fixture
def pair(pairs):
    return anew(pairs[False])


def anew(pair: Pair) -> Pair:
    pair.guard._steps, pair.guard._suspected, pair.guard._found = 0, 0, ""
    return pair


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_at_once_and_named(name, pairs):
    fault = FAULTS[name]
    pair = anew(pairs[fault.lora])
    weights = {name: tensor.clone() for name, tensor in pair.model.trained().items()}
    text = pair.guard.check(fault.rollouts(pair), fault.known)
    assert fault.named in text, text
    assert all(torch.equal(tensor, weights[name]) for name, tensor in pair.model.trained().items())


@pytest.mark.parametrize("name", ["logits scaled", "end masked", "epsilon", "norm of a layer old", "learner's dropout"])
def test_a_small_fault_or_one_of_the_learner_is_named(name, path):
    fault = FRESH[name]
    pair = Pair(path)
    assert fault.named in pair.guard.check(fault.rollouts(pair), fault.known)


def test_a_small_difference_that_nothing_explains_is_reported_by_the_second_check(pair):
    wrong = pair.rollouts(plain(pair.engine))
    for rollout in wrong:
        rollout.behaviour += 0.01 * torch.linspace(-1.0, 1.0, len(rollout.behaviour)).roll(int(rollout.tokens[0]))
    assert pair.guard.check(wrong, PLAIN) == ""
    assert "engine and learner differ by 0.0" in pair.guard.check(wrong, PLAIN)


@pytest.mark.slow
def test_the_benchmark_counts_what_is_found_and_what_is_named(monkeypatch, capsys):
    cold = FAULTS["cold"]
    faults = {"cold": cold, "by another name": cold._replace(named="hot"), "none": cold._replace(rollouts=sound)}
    monkeypatch.setattr(bench_guard, "FAULTS", faults)
    monkeypatch.setattr(bench_guard, "FRESH", {})
    assert call("guard", ["--updates", "4"]) == 1
    counts = {"faults": 3, "found": 2, "named": 1, "updates": 4, "false_alarms": 0}
    counts |= {"fresh_faults": 0, "fresh_found": 0, "fresh_named": 0}
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures == {f"guard.{name}": count for name, count in counts.items()}


def sound(pair: Pair):
    return pair.rollouts(plain(pair.engine))


def test_filters_that_the_run_knows_of_are_sound(pair):
    for filtered, known in ((top_k(10), Sampled(1.0, top_k=10)), (top_p(0.8), Sampled(1.0, top_p=0.8))):
        assert pair.guard.check(pair.rollouts(plain(pair.engine), filtered=filtered), known) == ""


def test_only_the_beginning_of_a_rollout_that_one_version_sampled_is_compared(pair):
    long = sound(pair)
    for rollout in long:
        rollout.versions[15:] = 3
        rollout.behaviour[15:] -= 9.0
    assert pair.guard.check(long, PLAIN) == ""
    none = pair.rollouts(plain(pair.before))
    for rollout in none:
        rollout.versions[:] = 0  # whose weights are gone
    assert pair.guard.check(none, PLAIN) == ""


def test_merged_adapters_are_sound(pairs):
    assert anew(pairs[True]).guard.check(sound(pairs[True]), PLAIN) == ""


def test_a_sound_engine_is_never_accused(pair):
    half = copy.deepcopy(pair.engine).bfloat16()
    for seed in range(12):
        for engine in (pair.engine, half):
            said = anew(pair).guard.check(pair.rollouts(plain(engine), count=2, seed=seed), PLAIN)
            assert said == "", engine.dtype
