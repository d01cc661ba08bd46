"""The numerics guard names what an engine does wrong, and is silent where nothing is wrong."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from agent_rl.config.topology import Lora
from agent_rl.learning.guard_causes import Sampled
from tests.agent_rl.learning.guard_faults import (
    FAULTS,
    FRESH,
    MOVED_IN_HEALTH,
    UNKNOWN,
    Pair,
    plain,
    top_k,
    top_p,
    write_model,
)

PLAIN = Sampled(1.0)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """More are slower for so small a model."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def pairs(path: Path) -> dict[bool, Pair]:
    """Without and with adapters."""
    return {False: Pair(path), True: Pair(path, lora=Lora(rank=4))}


@pytest.fixture
def pair(pairs: dict[bool, Pair]) -> Pair:
    return anew(pairs[False])


def anew(pair: Pair) -> Pair:
    pair.guard._steps, pair.guard._suspected, pair.guard._found = 0, 0, ""
    return pair


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_at_once_and_named(name: str, pairs: dict[bool, Pair]) -> None:
    fault = FAULTS[name]
    pair = anew(pairs[fault.lora])
    weights = {name: tensor.clone() for name, tensor in pair.model.trained().items()}
    text = pair.guard.check(fault.rollouts(pair), fault.known)
    assert fault.named in text, text
    assert all(torch.equal(tensor, weights[name]) for name, tensor in pair.model.trained().items())


AT_ONCE = {"logits scaled", "end masked", "epsilon", "norm of a layer old", "learner's dropout"}


@pytest.mark.parametrize(
    "name", [name if name in AT_ONCE else pytest.param(name, marks=pytest.mark.slow) for name in FRESH]
)
def test_another_fault_of_engine_or_learner_is_found_in_two_checks_and_named_if_its_cause_is_known(
    name: str, path: Path
) -> None:
    fault = FRESH[name]
    pair = Pair(path)
    rollouts = fault.rollouts(pair)
    text = pair.guard.check(rollouts, fault.known)
    assert text or name not in AT_ONCE
    text = text or pair.guard.check(rollouts, fault.known)
    assert fault.named in text or (text and fault.named == UNKNOWN), text


def test_a_small_difference_that_nothing_explains_is_reported_by_the_second_check(pair: Pair) -> None:
    wrong = pair.rollouts(plain(pair.engine))
    for rollout in wrong:
        rollout.behaviour += 0.01 * torch.linspace(-1.0, 1.0, len(rollout.behaviour)).roll(int(rollout.tokens[0]))
    assert pair.guard.check(wrong, PLAIN) == ""
    assert "engine and learner differ by 0.0" in pair.guard.check(wrong, PLAIN)


def sound(pair: Pair):
    return pair.rollouts(plain(pair.engine))


def test_filters_that_the_run_knows_of_are_sound(pair: Pair) -> None:
    for filtered, known in ((top_k(10), Sampled(1.0, top_k=10)), (top_p(0.8), Sampled(1.0, top_p=0.8))):
        assert pair.guard.check(pair.rollouts(plain(pair.engine), filtered=filtered), known) == ""


def test_only_the_beginning_of_a_rollout_that_one_version_sampled_is_compared(pair: Pair) -> None:
    long = sound(pair)
    for rollout in long:
        rollout.versions[15:] = 3
        rollout.behaviour[15:] -= 9.0
    assert pair.guard.check(long, PLAIN) == ""
    none = pair.rollouts(plain(pair.before))
    for rollout in none:
        rollout.versions[:] = 0  # whose weights are gone
    assert pair.guard.check(none, PLAIN) == ""


def test_merged_adapters_are_sound(pairs: dict[bool, Pair]) -> None:
    assert anew(pairs[True]).guard.check(sound(pairs[True]), PLAIN) == ""


def test_a_sound_engine_is_never_accused(pair: Pair) -> None:
    half = copy.deepcopy(pair.engine).bfloat16()
    for seed in range(12):
        for engine in (pair.engine, half):
            said = anew(pair).guard.check(pair.rollouts(plain(engine), count=2, seed=seed), PLAIN)
            assert said == "", engine.dtype


class Health(NamedTuple):
    """A pair without a fault."""

    pair: Mapping[str, Any] = {}
    engine: torch.dtype = torch.float32
    rollouts: Mapping[str, Any] = {}
    how: Sampled = PLAIN
    cast: bool = False
    """Whether products are in bfloat16, and weights are not."""


HALF = torch.bfloat16
HEALTHY = {
    "float32": Health(),
    "bfloat16 engine": Health(engine=HALF),
    "one version behind": Health(rollouts={"behind": 1}),
    "float16 engine": Health(engine=torch.float16),
    "cast engine": Health(cast=True),
    "filters": Health(rollouts={"filtered": lambda each: top_p(0.9)(top_k(20)(each))}, how=Sampled(1.0, 0.9, 20)),
    "temperature": Health(rollouts={"temperature": 0.7}, how=Sampled(0.7)),
    "adapters": Health({"lora": Lora(rank=4)}),
    "all in bfloat16": Health({"dtype": "bfloat16", "compute": "bfloat16"}, HALF),
    "cast learner": Health({"compute": "bfloat16"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_updates_of_a_healthy_pair_raise_no_alarm(name: str, path: Path) -> None:
    health = HEALTHY[name]
    pair = Pair(path, **health.pair)
    for seed in range(list(HEALTHY).index(name), 40, len(HEALTHY)):
        pair.update(MOVED_IN_HEALTH)
        engine = copy.deepcopy(pair.before if "behind" in health.rollouts else pair.engine)
        kept = engine.model.rotary_emb.inv_freq
        engine = engine.to(health.engine)
        engine.model.rotary_emb.inv_freq = kept  # as engines and transformers have it, in float32
        with torch.autocast("cpu", HALF, enabled=health.cast):
            rollouts = pair.rollouts(plain(engine), count=3, seed=seed, **health.rollouts)
            two = pair.rollouts(plain(engine), count=3, seed=-seed, generator="b", **health.rollouts)
        assert pair.guard.check([*rollouts, *two], health.how) == ""
