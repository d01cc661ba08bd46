"""The type of matrix products: how it is chosen, that it changes results by rounding alone, and what time it takes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from actors.engines.torch.model import CausalModel, read_weights
from agent_rl.config.placement import threads_of
from agent_rl.config.topology import SftStage
from agent_rl.figures import AnswerFigures, EvaluationFigures, RolloutMeans
from agent_rl.learning import rates
from agent_rl.learning.forecast import Pace, forecast
from agent_rl.learning.policy_model import ModelOptions, PolicyModel
from agent_rl.learning.rates import TYPES, Compute, Type, compute_of, faster, product_rate
from agent_rl.learning.spare_cores import EVERY_SECONDS, SpareCores, idle_seconds
from agent_rl.learning.trainer import write_weights
from agent_rl.models.devices import Machine, multiplies_bfloat16
from agent_rl.models.model_files import weight_count
from agent_rl.records.checkpoint_files import Position
from agent_rl.topology_checks import model as model_checks
from agent_rl.topology_checks.model import slow_products
from agent_rl_contract import builders
from tests.agent_rl.config.test_stage_settings import HEAD, load
from tests.agent_rl.learning.test_training import assert_same, everything
from tests.agent_rl.learning.trainers import before_updates, small_trainer

CPU = torch.device("cpu")
RL = "[[stages]]\nkind = 'rl'\nsteps = 1\nmax_turns = 1\nmax_response_tokens = 8\n"
KINDS: list[tuple[Type, Type]] = [
    ("float32", "float32"),
    ("float32", "bfloat16"),
    ("bfloat16", "float32"),
    ("bfloat16", "bfloat16"),
]
SEQUENCES = [torch.arange(7, 60), torch.arange(40, 52), torch.cat([torch.arange(7, 47), torch.arange(60, 70)])]
WANTED = [torch.arange(53) > 38, torch.arange(12) > 2, torch.arange(50) > 38]
BATCH = [(list(range(7, 40)), [0] * 8 + [1] * 25), (list(range(30, 50)), [0] * 3 + [1] * 17)]


def test_the_other_type_is_taken_only_where_it_is_clearly_faster():
    assert faster("float32", {"float32": 100.0, "bfloat16": 150.0}) == "float32"
    assert faster("float32", {"float32": 100.0, "bfloat16": 151.0}) == "bfloat16"
    assert faster("bfloat16", {"float32": 89.0, "bfloat16": 10.0}) == "float32"
    assert faster("bfloat16", {"float32": 100.0, "bfloat16": 90.0}) == "bfloat16"


def test_large_models_are_measured_small_ones_and_named_types_are_not(model, monkeypatch):
    measured: list[torch.dtype] = []

    def measure(_: torch.device, dtype: torch.dtype) -> float:
        measured.append(dtype)
        return 1e11 if dtype == torch.bfloat16 else 1e10

    monkeypatch.setattr(rates, "product_rate", measure)
    assert compute_of("auto", "float32", model, CPU).type == "float32"
    assert compute_of("bfloat16", "float32", model, CPU) == Compute("bfloat16", "[model] compute")
    assert measured == []
    monkeypatch.setattr(rates, "LEAST_WEIGHTS", weight_count(model))
    chosen = compute_of("auto", "float32", model, CPU)
    assert chosen.row() == {"computed_in": "bfloat16", "why": "measured", "float32_gflops": 10, "bfloat16_gflops": 100}
    assert chosen.update_seconds(135_000_000, 4000) == pytest.approx(6 * 135e6 * 4000 / (rates.UPDATE_SHARE * 1e11))


def test_a_measurement_that_fails_leaves_the_type_of_the_weights(model, monkeypatch):
    def fail(*_: object) -> float:
        raise RuntimeError("no kernel\nat some place")

    monkeypatch.setattr(rates, "product_rate", fail)
    monkeypatch.setattr(rates, "LEAST_WEIGHTS", 0)
    expected = Compute("bfloat16", "the measurement failed: no kernel")
    assert compute_of("auto", "bfloat16", model, CPU) == expected
    assert expected.update_seconds(1, 1) is None


def test_rates_are_measured(monkeypatch):
    monkeypatch.setattr(rates, "BYTES", 1 << 22)
    assert product_rate(CPU, torch.float32) > 1e8
    assert rates.rates_text(CPU).startswith("products in GFLOP/s: float32 ")


@pytest.mark.parametrize(("dtype", "compute"), KINDS)
def test_log_probabilities_agree_in_every_type(model, dtype, compute):
    exact = PolicyModel(model, dtype="float32", device="cpu", options=ModelOptions())
    made = PolicyModel(model, dtype=dtype, compute=compute, device="cpu", options=ModelOptions())
    expected, entropies = exact.logprobs(SEQUENCES, WANTED, temperature=1.0)
    logprobs, entropy = made.logprobs(SEQUENCES, WANTED, temperature=1.0)
    bound = 1e-4 if dtype == compute == "float32" else 5e-2
    assert torch.allclose(logprobs, expected, atol=bound)
    assert torch.allclose(entropy, entropies, atol=bound)
    assert made.module.config.dtype == TYPES[dtype]
    assert {tensor.dtype for _, tensor in made.served()} == {TYPES[dtype]}
    if compute == "bfloat16":
        assert not torch.equal(logprobs, expected)  # products were rounded


@pytest.mark.parametrize(("dtype", "compute"), KINDS)
def test_masters_are_float32_and_take_updates_that_bfloat16_would_lose(model, tmp_path, dtype, compute):
    """Steps of 1e-5 are lost in a bfloat16 weight of 0.1; its float32 master sums them, also across a checkpoint."""
    trained = small_trainer(model, dtype=dtype, compute=compute)
    stage = SftStage(kind="sft", steps=50, batch=2, warmup_steps=0, learning_rate=1e-5)
    before = {name: weight.clone() for name, weight in trained.optimizer._masters.items()}
    losses = [trained.sft_step(BATCH, stage, step).loss for step in range(30)]
    assert losses[-1] < losses[0]
    for name, weight in trained.model.named_parameters():
        master = trained.optimizer._masters[name]
        assert master.dtype == torch.float32
        assert not torch.equal(before[name], master)
        assert weight is master or (weight.grad is None and torch.equal(weight, master.bfloat16()))
    trained.save(tmp_path / "checkpoint", Position(0, 0, 30))
    again = small_trainer(model, dtype=dtype, compute=compute)
    again.restore(tmp_path / "checkpoint")
    assert again.sft_step(BATCH, stage, 30) == trained.sft_step(BATCH, stage, 30)
    assert_same(everything(again), everything(trained))


def test_learning_in_both_types_goes_the_same_way(model):
    stage = SftStage(kind="sft", steps=50, batch=2, warmup_steps=0, learning_rate=1e-3)
    plain, mixed = small_trainer(model), small_trainer(model, compute="bfloat16")
    curves = [[each.sft_step(BATCH, stage, step).loss for step in range(30)] for each in (plain, mixed)]
    assert curves[0][-1] < 0.8 * curves[0][0]
    assert curves[1] == pytest.approx(curves[0], rel=0.02)


@pytest.mark.parametrize(("dtype", "compute"), KINDS)
def test_an_engine_takes_what_is_published_whatever_it_computes_in(model, tmp_path, dtype, compute):
    path = tmp_path / "policy.safetensors"
    write_weights(small_trainer(model, dtype=dtype).copy_weights(1), path)
    engine = CausalModel(model, dtype=dtype, device=CPU, compute=compute)
    engine.replace_weights(read_weights(path, engine.specs))
    assert {tensor.dtype for tensor in engine._tensors.values()} == {TYPES[compute]}
    assert engine.new_cache(1)._data.dtype == TYPES[compute]


def test_an_engine_converts_what_is_published_on_its_device(model):
    engine = CausalModel(model, dtype="float32", device=torch.device("meta"), compute="bfloat16")
    copied = []

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten.copy_.default:
                copied.append((args[0].dtype, args[1].dtype, args[1].device.type))
            return func(*args, **(kwargs or {}))

    for dtype in (torch.float32, torch.bfloat16):
        weights = {name: torch.zeros(tensor.shape, dtype=dtype) for name, tensor in engine._tensors.items()}
        with Seen():
            engine.replace_weights(weights)
    converted, plain = (torch.bfloat16, torch.float32, "meta"), (torch.bfloat16, torch.bfloat16, "cpu")
    assert copied == [converted] * len(weights) + [plain] * len(weights)


def test_the_first_update_is_foretold_and_later_ones_are_not(model, monkeypatch):
    trained = small_trainer(model)
    said = []
    monkeypatch.setattr(trained.model, "compute", Compute("float32", "measured", {"float32": 1e6}))
    before_updates(trained, lambda _: said.append(trained.under_way))
    stage = SftStage(kind="sft", steps=2, batch=2, warmup_steps=0)
    for number in range(2):
        trained.sft_step(BATCH, stage, number)
    weights = sum(p.numel() for p in trained.model.module.parameters())
    seconds = 6 * weights * 53 / (rates.UPDATE_SHARE * 1e6)
    assert said[0].startswith("first update of 0M weights: some ")
    assert int(said[0].split()[-2].replace(",", "")) == pytest.approx(seconds, abs=1)
    assert (said[1], trained.under_way) == ("", "")


def test_a_processor_says_whether_it_multiplies_bfloat16():
    assert multiplies_bfloat16("model name : x\nflags\t\t: fpu avx512f avx512_bf16 sse\n") is True
    assert multiplies_bfloat16("flags\t\t: fpu avx2 sse\n") is False
    assert multiplies_bfloat16("Features\t: fp asimd bf16\n") is True
    assert multiplies_bfloat16("") is None


@pytest.mark.parametrize(
    ("native", "settings", "key"),
    [
        (False, ['model.dtype="bfloat16"'], None),
        (False, ['model.dtype="bfloat16"', 'model.compute="bfloat16"'], "compute"),
        (False, ['model.dtype="bfloat16"', 'actors.rollout_generator.settings.engine="vllm"'], "dtype"),
        (True, ['model.compute="float32"'], "compute"),
        (True, [], None),
        (None, ['model.compute="float32"'], None),
    ],
)
def test_a_type_that_the_processor_is_slow_at_is_warned_of(tmp_path, monkeypatch, native, settings, key):
    topology = load(tmp_path, HEAD + RL, *settings)

    class Large:
        weights = 10**9

    monkeypatch.setattr(model_checks, "shape_of", lambda _: Large)
    found = list(slow_products(topology, Machine("", [], None, native)))
    assert {finding[0] for finding in found} == ({("model", key)} if key else set())


ON_THREE_GPUS = ("actors.rollout_generator.replicas=3", 'actors.rollout_generator.settings.device="cuda"')
IN_TURNS = ("actors.learner.share='time'", "actors.rollout_generator.share='time'")


@pytest.mark.parametrize(
    ("settings", "cores", "threads"),
    [
        ([], 2, {"learner.0": 1, "rollout_generator.0": 1}),
        ([], 16, {"learner.0": 8, "rollout_generator.0": 8}),
        (["actors.rollout_generator.replicas=3"], 16, {"learner.0": 4, "rollout_generator.2": 4}),
        (['actors.rollout_generator.settings.device="cuda"'], 16, {"learner.0": 8, "rollout_generator.0": 8}),
        (
            ['actors.learner.settings.device="cuda"', "actors.learner.ranks=4", *ON_THREE_GPUS],
            16,
            {"learner.0": 2, "rollout_generator.2": 2},
        ),
        (["actors.learner.ranks=4"], 10, {"learner.0": 2, "learner_ranks.2": 2, "rollout_generator.0": 2}),
        (IN_TURNS, 6, {"learner.0": 6}),
        ([*IN_TURNS, "actors.learner.ranks=2"], 6, {"learner.0": 3, "learner_ranks.0": 3, "rollout_generator.0": 3}),
        ([*IN_TURNS, *ON_THREE_GPUS, 'actors.learner.settings.device="cuda"'], 6, {"learner.0": 2}),
    ],
)
def test_processes_of_a_host_share_its_cores(tmp_path, settings, cores, threads):
    topology = load(tmp_path, HEAD + RL, *settings)
    for actor, count in threads.items():
        assert threads_of(topology, actor, weights=10**9, cores=cores) == (count, cores)
        assert threads_of(topology, actor, weights=10**6, cores=cores) == (1, 1)


@pytest.mark.parametrize(
    ("own", "most", "threads"), [(1, 1, 1), (2, 0, 2), (8, 16, 8), (16, 16, 8), (2, 2, 0), (1, 2, 0)]
)
def test_who_has_work_takes_the_cores_that_others_leave_idle(own: int, most: int, threads: int) -> None:
    """Two cores and another process: both busy, the other one at rest, at half a core, busy again; 0: it adapts."""
    before, (now, used, idle) = torch.get_num_threads(), (0.0, 0.0, 0.0)
    cores = SpareCores(own, most, clock=lambda: now, used=lambda: used, idle=lambda: idle)
    seen = []
    for mine, nobodys in ((1.0, 0.0), (1.0, 1.0), (2.0, 0.0), (1.5, 0.0), (0.9, 0.9), (1.5, 0.0), (1.0, 0.0)):
        now, used, idle = now + 1.0, used + mine, idle + nobodys
        cores.take()
        seen.append(torch.get_num_threads())
    assert seen == ([threads] * 7 if threads else [1, 2, 2, 1, 2, 1, 1])
    now, idle = now + EVERY_SECONDS / 2, idle + 1.0
    cores.take()
    assert torch.get_num_threads() == seen[-1], "it looks once a second"
    torch.set_num_threads(before)


def test_idle_cores_are_counted_by_the_kernel(tmp_path: Path) -> None:
    ticks, first = os.sysconf("SC_CLK_TCK"), min(os.sched_getaffinity(0))
    rows = f"cpu  9 9 9 9 9\ncpu{first} 1 2 3 {4 * ticks} {ticks} 6\ncpu9999 0 0 0 {ticks} 0\nintr 5\n"
    (tmp_path / "stat").write_text(rows)
    assert idle_seconds(tmp_path / "stat") == 5.0
    assert 0.0 < idle_seconds() <= idle_seconds()


def answered(rollouts: int, tokens: float) -> AnswerFigures:
    means = RolloutMeans(rollouts=rollouts, response_tokens=tokens)
    return AnswerFigures(problems=rollouts, success=0.5, low=0.4, high=0.6, lost=0, answered=means)


def test_the_pace_is_that_of_all_answers():
    figures = EvaluationFigures(name="before", sampled=answered(30, 60.0), greedy=answered(10, 20.0))
    assert Pace.of(figures, 8.0) == Pace(40, 50.0, 8.0)
    assert Pace.of(EvaluationFigures(name="before", sampled=answered(0, 0.0)), 8.0) is None


@pytest.mark.parametrize(("a_token", "minutes"), [(0.0, 3), (0.1, 3), (0.5, 9), (None, 3)])
def test_the_slower_of_sampling_and_updates_takes_the_time(a_token, minutes):
    """Ten steps of 2 groups of 4: 80 rollouts of 2 s each; 2 of each group are trained, 200 tokens in two epochs."""
    stage, algorithm = builders.rl_stage(), builders.algorithm(epochs=1)
    told = forecast(stage, algorithm, Pace(40, 25.0, 80.0), lambda tokens: a_token and a_token * tokens)
    assert told == f"{stage.name} takes at least 80 rollouts, 2,000 response tokens, {minutes} minutes"
