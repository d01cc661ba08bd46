"""The torch engine: the engines' contract, and what is its own; its host memory, where device and host are the same."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pytest
import torch
import trio
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from actors.engines.base import Engine, EngineError, TurnRequest, TurnResult
from actors.engines.reference import Architecture, save_tiny_model
from actors.engines.torch import packing
from actors.engines.torch.engine import TorchEngine
from actors.engines.torch.fused import Projection
from actors.engines.torch.kv_cache import KVCache
from actors.engines.torch.model import CausalModel, HostMemory
from actors.engines.torch.packing import prefill_parts, rounded, spans
from actors.engines.torch.sampling import sample, uniforms
from agent_rl.learning.linear import CACHES, PRODUCTS
from agent_rl.messages import PolicyVersion
from agent_rl_contract.engine import (
    CHECKS,
    FIRST_POLICY,
    SLEEP_CHECKS,
    EngineOptions,
    Subject,
    check_greedy_is_the_models_own,
    check_weights_change_under_way,
    eventually,
    generate_all,
    random_prompt,
    save_other_weights,
    sleeping,
    turn,
)
from tests.sending import check_sent_weights, check_weights_of_several_ranks

pytestmark = pytest.mark.real_time

Update = Literal["keep", "recompute"]


def new_subject(
    directory: Path,
    architecture: Architecture = "qwen3",
    kv_on_update: Update = "keep",
    *,
    device: str = "cpu",
    dtype: str = "float32",
) -> Subject:
    save_tiny_model(directory / "model", architecture, seed=0)

    def make(options: EngineOptions) -> TorchEngine:
        return TorchEngine(
            options.model_path,
            max_rollouts=options.max_rollouts,
            kv_tokens=options.kv_tokens,
            device=device,
            dtype=dtype,
            kv_on_update=kv_on_update,
            initial_policy=options.policy,
        )

    return Subject(directory / "model", make, kv_on_update=kv_on_update)


@pytest.mark.parametrize("check", [*CHECKS, *SLEEP_CHECKS], ids=lambda check: check.__name__)
@pytest.mark.parametrize(("architecture", "kv_on_update"), [("qwen3", "keep"), ("llama", "recompute")])
def test_contract(
    check: Callable[[Subject], Awaitable[None]], architecture: Architecture, kv_on_update: Update, tmp_path: Path
) -> None:
    trio.run(check, new_subject(tmp_path, architecture, kv_on_update))


@pytest.mark.parametrize(("architecture", "on_cpu"), [("qwen2", True), ("granite", True), ("qwen3", False)])
@pytest.mark.parametrize("check", [check_greedy_is_the_models_own, check_weights_change_under_way])
def test_other_architectures_and_the_parts_of_a_gpu_get_the_same_tokens(
    check: Callable[[Subject], Awaitable[None]],
    architecture: Architecture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    on_cpu: bool,
) -> None:
    monkeypatch.setattr(
        packing, "prefill_parts", lambda counts, first, **_: prefill_parts(counts, first, on_cpu=on_cpu)
    )
    trio.run(check, new_subject(tmp_path, architecture))


def test_llama_like_models_are_fused_and_others_computed_by_their_own_modules(tmp_path: Path) -> None:
    fused = {}
    for architecture in get_args(Architecture):
        save_tiny_model(tmp_path / architecture, architecture, seed=0)
        model = CausalModel(tmp_path / architecture, dtype="float32", device=torch.device("cpu"))
        fused[architecture] = model._fused is not None
    assert fused == {"qwen3": True, "qwen2": True, "llama": True, "granite": False}


@pytest.mark.parametrize("architecture", ["qwen3", "qwen2", "llama"])
def test_fused_without_one_dnn_parameters_are_parts_of_one_tensor(architecture: Architecture, tmp_path: Path) -> None:
    """As on a GPU: nothing is held twice, and values copied into the parameters take effect."""
    from transformers import AutoModelForCausalLM

    def projections(seed: int) -> tuple[list[Projection], Any]:
        save_tiny_model(tmp_path / str(seed), architecture, seed)
        attention = AutoModelForCausalLM.from_pretrained(tmp_path / str(seed)).model.layers[0].self_attn
        layers = (attention.q_proj, attention.k_proj, attention.v_proj)
        return [Projection(*layers, one_dnn=False), Projection(*layers, one_dnn=True)], attention

    inputs = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        made, attention = projections(0)
        _, other = projections(1)
        for part in ("q_proj", "k_proj", "v_proj"):
            for name, parameter in getattr(attention, part).named_parameters():
                parameter.copy_(getattr(getattr(other, part), name))
        expected = torch.cat([other.q_proj(inputs), other.k_proj(inputs), other.v_proj(inputs)], dim=1)
        for projection in made:
            projection.refresh()
            torch.testing.assert_close(projection(inputs), expected)
        assert made[0]._weight.untyped_storage().data_ptr() == attention.v_proj.weight.untyped_storage().data_ptr()


async def test_only_what_is_new_is_computed(tmp_path: Path) -> None:
    subject = new_subject(tmp_path)
    async with subject.running() as engine:
        tokens = random_prompt(0, 40)
        first = await engine.generate(turn("r", tokens, 10))
        assert engine.figures.prefilled_tokens == 40
        assert engine.figures.kv_tokens_used == 49, "the last token was never fed back"
        await engine.generate(turn("r", [*tokens, *first.tokens.tolist(), 1, 2, 3], 10))
        assert engine.figures.prefilled_tokens == 40 + 1 + 3
        assert engine.figures.cached_tokens == 49
        passes = engine.figures.passes.values()
        assert sum(each.count for each in passes) == engine.figures.steps
        assert sum(each.written for each in passes) == engine.figures.generated_tokens
        assert engine.figures.passes["1+"].prefilled == engine.figures.prefilled_tokens
        assert all(0 < each.cpu_seconds <= 1.1 * each.seconds + 0.001 for each in passes)
        assert sum(each.context for each in passes) == sum(range(40, 50)) + sum(range(53, 63))
        await engine.generate(turn("other", tokens, 1))
        assert engine.figures.passes["1+"].context == 40 + 53 + 40, "a parked sequence is not computed"


async def prefilled_by(engine: Engine, requests: Sequence[TurnRequest]) -> tuple[list[TurnResult], int]:
    before = engine.figures.prefilled_tokens
    results = await generate_all(engine, requests)
    return results, engine.figures.prefilled_tokens - before


async def test_a_prefix_is_computed_once_whenever_its_sequences_come(tmp_path: Path) -> None:
    subject = new_subject(tmp_path, kv_on_update="recompute")
    prompt = random_prompt(0, 40)
    async with subject.running(max_rollouts=16) as engine:
        results, prefilled = await prefilled_by(engine, [turn(f"first{i}", prompt, 12) for i in range(5)])
        assert prefilled in {40, 41}, "one computes the prompt of all; who comes a step later, its last token"
        later, prefilled = await prefilled_by(engine, [turn(f"later{i}", prompt, 12) for i in range(3)])
        assert prefilled == 1, "equal prompts: the last token once"
        tails = [[*prompt, *random_prompt(9 + i, 10)] for i in range(4)]
        _, prefilled = await prefilled_by(engine, [turn(f"tail{i}", tokens, 1) for i, tokens in enumerate(tails)])
        assert prefilled == 4 * 10
        other = random_prompt(5, 30)
        fresh = [[*other, *random_prompt(20 + i, 10)] for i in range(4)]
        both, prefilled = await prefilled_by(engine, [turn(f"o{i}", tokens, 8) for i, tokens in enumerate(fresh)])
        assert prefilled == 30 + 4 * 10, "of those that come at once, one computes what they share"
        given = 5 * 40 + 3 * 40 + 4 * 50 + 4 * 40
        assert engine.figures.cached_tokens + engine.figures.prefilled_tokens == given
        for result in (*results, *later):
            assert result.tokens.tolist() == subject.reference.greedy(prompt, 12)
        for tokens, result in zip(fresh, both, strict=True):
            expected = subject.reference.logprobs(tokens, result.tokens.tolist(), 0.0)
            assert abs(result.logprobs - expected).max() < 1e-4


@pytest.mark.parametrize("update", ["recompute", "keep"])
async def test_after_new_weights_a_prompt_is_computed_once_and_old_keys_are_not_copied(
    tmp_path: Path, update: Update
) -> None:
    subject = new_subject(tmp_path, kv_on_update=update)
    other = save_other_weights(subject, tmp_path / "other", seed=9)
    prompt = random_prompt(0, 40)
    async with subject.running(max_rollouts=8) as engine, trio.open_nursery() as nursery:
        for number in range(6):
            request = turn(f"r{number}", prompt, 150, temperature=1.0, seed=number)
            nursery.start_soon(engine.generate, request)
        await eventually(lambda: engine.figures.generated_tokens > 60, "all write")
        before = engine.figures.prefilled_tokens
        await engine.load_weights(tmp_path / "other" / "model.safetensors", PolicyVersion(1, 2))
        written = engine.figures.generated_tokens
        late = await engine.generate(turn("late", prompt, 5))
        assert late.tokens.tolist() == other.greedy(prompt, 5)
        since = engine.figures.prefilled_tokens - before
        assert since == 40 if update == "keep" else since <= 40 + 1 + written, (since, written)
        nursery.cancel_scope.cancel()


async def test_preempted_sequences_come_back_unchanged(tmp_path: Path) -> None:
    subject = new_subject(tmp_path)
    requests = [turn(f"r{i}", random_prompt(i, 10), 100, temperature=1.0, seed=i) for i in range(6)]
    written = []
    for kv_tokens in (None, 300):
        async with subject.running(max_rollouts=6, kv_tokens=kv_tokens) as engine:
            results = await generate_all(engine, requests)
            for request, result in zip(requests, results, strict=True):
                expected = subject.reference.logprobs(request.tokens, result.tokens.tolist(), 1.0)
                assert abs(result.logprobs - expected).max() < 1e-4
            written.append([result.tokens.tolist() for result in results])
            assert (engine.figures.preempted > 0) == (kv_tokens is not None)
    assert written[0] == written[1]


def test_a_cache_refuses_a_sequence_longer_than_the_model_allows() -> None:
    cache = KVCache(
        layers=1, rows=1, kv_heads=1, head_dim=2, max_length=100, dtype=torch.float32, device=torch.device("cpu")
    )
    cache.reserve(100)
    with pytest.raises(EngineError, match=r"101 tokens is longer than the model allows \(100\)"):
        cache.reserve(101)
    assert cache.length == 100


async def test_idle_sequences_make_way_oldest_first(tmp_path: Path) -> None:
    subject = new_subject(tmp_path)
    async with subject.running(max_rollouts=2) as engine:
        tokens = {name: random_prompt(i, 20) for i, name in enumerate("abc")}
        for name in "abc":
            tokens[name] += (await engine.generate(turn(name, tokens[name], 5))).tokens.tolist()
        assert engine.figures.preempted == 1
        prefilled = engine.figures.prefilled_tokens
        await engine.generate(turn("b", tokens["b"], 5))
        assert engine.figures.prefilled_tokens == prefilled + 1, "b was still held"
        again = await engine.generate(turn("a", tokens["a"], 5))
        assert engine.figures.prefilled_tokens == prefilled + 1 + 25, "a had made way for c"
        assert again.tokens.tolist() == subject.reference.greedy(tokens["a"], 5)


async def test_trio_goes_on_while_torch_works(tmp_path: Path) -> None:
    subject = new_subject(tmp_path)
    async with subject.running() as engine, trio.open_nursery() as nursery:
        nursery.start_soon(engine.generate, turn("r", random_prompt(0, 10), 500))
        await eventually(lambda: engine.figures.generated_tokens > 0, "tokens are generated")
        beats, before = 0, engine.figures.generated_tokens
        while engine.figures.generated_tokens < 400:
            await trio.sleep(0.001)
            beats += 1
        assert before < 400
        assert beats > 5
        nursery.cancel_scope.cancel()


async def test_weights_that_are_not_finite_stop_the_engine(tmp_path: Path) -> None:
    subject = new_subject(tmp_path)
    weights = load_file(subject.model_path / "model.safetensors")
    save_file({name: tensor * float("nan") for name, tensor in weights.items()}, tmp_path / "nan.safetensors")
    with pytest.RaisesGroup(pytest.RaisesExc(EngineError, match="not finite"), flatten_subgroups=True):
        async with subject.running() as engine:
            await engine.load_weights(tmp_path / "nan.safetensors", PolicyVersion(2, 0))
            with trio.CancelScope(shield=True), pytest.raises(EngineError, match="not finite"):
                await engine.generate(turn("r", random_prompt(0, 10), 5))
    with pytest.raises(EngineError, match="not running"):
        await engine.generate(turn("r", random_prompt(0, 10), 5))


def test_a_model_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    engine = TorchEngine(
        tmp_path / "nothing", max_rollouts=1, kv_tokens=None, dtype="float32", initial_policy=FIRST_POLICY
    )
    with pytest.raises(EngineError, match="nothing"):
        trio.run(engine.run)


async def test_stopping_fails_what_is_in_flight(tmp_path: Path) -> None:
    subject = new_subject(tmp_path)
    async with trio.open_nursery() as nursery, subject.running() as engine:

        async def expect_failure() -> None:
            with pytest.raises(EngineError, match="has stopped"):
                await engine.generate(turn("r", random_prompt(0, 10), 500))

        nursery.start_soon(expect_failure)
        await eventually(lambda: engine.figures.running == 1, "the request runs")


@pytest.mark.parametrize(
    ("request_", "word"),
    [
        (turn("r", [], 5), "tokens"),
        (turn("r", [1], 0), "max_tokens"),
        (turn("r", [1], 5, temperature=-1.0), "temperature"),
        (turn("r", [1, 61], 5), "vocabulary"),
        (turn("busy", [1], 5), "in flight"),
    ],
)
async def test_senseless_requests_are_refused(request_: object, word: str, tmp_path: Path) -> None:
    subject = new_subject(tmp_path)
    async with subject.running() as engine, trio.open_nursery() as nursery:
        nursery.start_soon(engine.generate, turn("busy", [1, 2], 500))
        await eventually(lambda: engine.figures.running == 1, "a request runs")
        with pytest.raises(EngineError, match=word):
            await engine.generate(request_)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="in flight"):
            engine.release("busy")
        nursery.cancel_scope.cancel()


async def test_bfloat16_is_near_the_reference(tmp_path: Path) -> None:
    subject = new_subject(tmp_path, dtype="bfloat16")
    async with subject.running(max_rollouts=4) as engine:
        prompts = [random_prompt(i, 20 + i) for i in range(4)]
        requests = [turn(f"r{i}", prompt, 10, temperature=1.0, seed=i) for i, prompt in enumerate(prompts)]
        for request, result in zip(requests, await generate_all(engine, requests), strict=True):
            expected = subject.reference.logprobs(request.tokens, result.tokens.tolist(), 1.0)
            assert abs(result.logprobs - expected).mean() < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("check", [check_sent_weights, check_weights_of_several_ranks])
def test_weights_that_are_sent(check: Callable[[Subject], Awaitable[None]], tmp_path: Path) -> None:
    trio.run(check, new_subject(tmp_path))


def test_numbers_of_tokens_are_rounded_up_by_a_sixteenth_at_most_to_few_different_ones() -> None:
    counts = range(1, 4097)
    assert all(count <= rounded(count) <= count + count / 16 for count in counts)
    assert all(rounded(rounded(count)) == rounded(count) for count in counts)
    assert len({rounded(count) for count in counts}) == 144


@given(st.lists(st.integers(1, 300), max_size=80), st.sampled_from([0, 64, 256, 4096]))
def test_spans_cover_all_rows_once_and_are_as_long_as_their_longest(lengths, elements):
    found = spans(np.array(lengths, np.int64), elements)
    assert [row for first, last, _ in found for row in range(first, last)] == list(range(len(lengths)))
    assert all(length == max(lengths[first:last]) for first, last, length in found)
    if not elements:
        assert len(found) <= 1


def test_new_tokens_are_padded_to_similar_ones_on_a_processor_and_to_few_kernels_on_a_gpu():
    counts = np.array([1, 1, 90, 60, 40, 30, 15, 8, 4, 4, 1])
    assert prefill_parts(counts, 2, on_cpu=True) == [(2, 4), (4, 6), (6, 8), (8, 10), (10, 11)]
    assert prefill_parts(counts, 2, on_cpu=False) == [(2, 11)]
    assert prefill_parts(np.array([5000, 2000, 2000, 9]), 0, on_cpu=False) == [(0, 1), (1, 3), (3, 4)]
    assert prefill_parts(counts[:2], 2, on_cpu=False) == []


def test_rows_are_read_apart_where_padding_would_cost_more():
    assert spans(np.array([250] * 8 + [50] * 56), 256) == ((0, 8, 250), (8, 64, 50))
    assert spans(np.array([51] * 8 + [50] * 56), 256) == ((0, 64, 51),)
    assert spans(np.array([60] * 8 + [50] * 56), 256) == ((0, 20, 60), (20, 64, 50))


def test_the_engine_bounds_the_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CACHES:
        monkeypatch.delenv(name, raising=False)
    save_tiny_model(tmp_path / "model", "llama", seed=0)
    CausalModel(tmp_path / "model", dtype="float32", device=torch.device("cpu"))
    assert {os.environ[name] for name in CACHES} == {PRODUCTS}


def test_content_leaves_and_comes_back_with_all_views() -> None:
    whole = torch.randn(6, 4)
    parts, other = whole.split([2, 4]), torch.arange(5)
    before = [tensor.clone() for tensor in (whole, *parts, other)]
    away = HostMemory([whole, *parts, other])
    assert away.size == 6 * 4 * 4 + 5 * 8
    for _ in range(2):
        away.take()
        away.take()
        assert whole.untyped_storage().nbytes() == other.untyped_storage().nbytes() == 0
        away.put_back()
        away.put_back()
        for tensor, expected in zip((whole, *parts, other), before, strict=True):
            assert torch.equal(tensor, expected)
        assert parts[1].data_ptr() == whole[2:].data_ptr()


def test_a_fused_model_computes_the_same_after_its_weights_were_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: without oneDNN, parameters are parts of one tensor."""
    monkeypatch.setattr("actors.engines.torch.model._has_one_dnn", lambda dtype: False)
    save_tiny_model(tmp_path / "model", "qwen3", seed=0)
    with torch.inference_mode():
        model = CausalModel(tmp_path / "model", dtype="bfloat16", device=torch.device("cpu"))
        assert model._fused is not None
        qkv = model._fused._layers[0].qkv
        inputs = torch.randn(3, qkv._weight.shape[1]).bfloat16()
        expected = qkv(inputs)
        away = HostMemory(parameter for layer in qkv._layers for parameter in layer.parameters())
        away.take()
        assert qkv._weight.untyped_storage().nbytes() == 0
        away.put_back()
        assert torch.equal(qkv(inputs), expected)


async def test_an_engine_that_finds_no_memory_to_wake_dies_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: HostMemory) -> None:
        raise torch.OutOfMemoryError("12 GiB wanted, 3 GiB free")

    with pytest.RaisesGroup(EngineError, EngineError, flatten_subgroups=True) as caught:
        async with sleeping(new_subject(tmp_path)) as engine:
            await engine.sleep()
            monkeypatch.setattr(HostMemory, "put_back", full)
            await engine.wake()
    assert "no memory on cpu to wake: 12 GiB wanted" in str(caught.value.exceptions[0])


# Sampling: the right distribution, drawn from the row's own seed.


def float_array(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_uniforms_are_uniform_and_uncorrelated() -> None:
    seeds, positions = np.meshgrid(np.arange(200, dtype=np.uint64), np.arange(200))
    draws = uniforms(seeds.reshape(-1), positions.reshape(-1)).reshape(200, 200)
    assert 0.0 <= draws.min() < draws.max() < 1.0
    histogram = np.histogram(draws, bins=20, range=(0, 1))[0]
    assert np.abs(histogram / 2000 - 1).max() < 0.12
    for shifted in (draws[1:] - draws[:-1], draws[:, 1:] - draws[:, :-1]):
        assert abs(shifted.var() - 1 / 6) < 0.01, "neighbouring seeds or positions correlate"


@given(st.integers(0, 2**64 - 1), st.integers(0, 10**6))
def test_a_draw_depends_on_nothing_but_seed_and_position(seed: int, position: int) -> None:
    alone = uniforms(np.array([seed], np.uint64), np.array([position]))
    company = uniforms(np.array([1, seed, 2**63], np.uint64), np.array([5, position, 0]))
    assert alone[0] == company[1]


def test_greedy_and_sampled_rows_share_a_batch() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [0.0, 3.0, 1.0], [0.0, 3.0, 1.0]])
    tokens, logprobs = sample(logits, float_array(0.0, 2.0, 1.0), float_array(0.99, 0.999, 0.0))
    assert tokens.tolist() == [1, 2, 0]
    expected = [logits[0].log_softmax(-1)[1], (logits[0] / 2).log_softmax(-1)[2], logits[0].log_softmax(-1)[0]]
    torch.testing.assert_close(logprobs, torch.stack(expected))


def test_the_largest_draw_never_takes_what_is_impossible() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(500, 97, generator=generator)
    logits[:, 60:] = -float("inf")
    largest = np.full(500, 1 - 2.0**-23, np.float32)
    tokens, logprobs = sample(logits, np.ones(500, np.float32), largest)
    assert tokens.max() < 60
    assert logprobs.isfinite().all()


@pytest.mark.parametrize(
    ("temperature", "filters", "kept"),
    [
        (0.7, (), [0, 1, 3, 4]),
        (1.0, (1.0, 2), [1, 3]),
        (1.0, (1.0, 1), [3]),
        (1.0, (0.5, 0), [3]),
        (1.0, (0.9, 0), [0, 1, 3]),
        (1.0, (0.5, 3), [3]),
        (1.0, (1.0, 99), [0, 1, 3, 4]),
        (1.0, (1e-6, 0), [3]),
    ],
)
def test_frequencies_follow_the_distribution_at_its_temperature_of_the_likeliest_tokens_alone(
    temperature: float, filters: tuple[float, ...], kept: list[int]
) -> None:
    count = 20000
    logits = torch.tensor([0.0, 1.0, -float("inf"), 2.0, -1.0])  # 0.09, 0.24, 0, 0.64, 0.03
    draws = uniforms(np.arange(count, dtype=np.uint64), np.full(count, 17))
    of_rows = [np.full(count, each, kind) for each, kind in zip(filters, (np.float32, np.int64), strict=False)]
    tokens, logprobs = sample(logits.expand(count, 5), np.full(count, temperature, np.float32), draws, *of_rows)
    expected = torch.zeros(5)
    expected[kept] = (logits / temperature).softmax(-1)[kept]
    frequencies = torch.bincount(tokens, minlength=5) / count
    assert frequencies.nonzero()[:, 0].tolist() == kept
    assert (frequencies - expected / expected.sum()).abs().max() < 0.012
    torch.testing.assert_close(logprobs, (expected / expected.sum()).log()[tokens])


def test_tokens_as_likely_as_the_last_of_the_top_k_are_kept() -> None:
    logits = torch.tensor([[1.0, 3.0, 1.0, 1.0, 0.0]]).expand(500, 5)
    draws = uniforms(np.arange(500, dtype=np.uint64), np.zeros(500, np.int64))
    tokens, _ = sample(logits, np.full(500, 5.0, np.float32), draws, np.ones(500, np.float32), np.full(500, 2))
    assert set(tokens.tolist()) == {0, 1, 2, 3}


def test_a_row_without_filters_draws_as_if_it_were_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(64, 97, generator=generator)
    draws = uniforms(np.arange(64, dtype=np.uint64), np.zeros(64, np.int64))
    temperatures = np.where(np.arange(64) % 4 == 1, 0.0, 1.0).astype(np.float32)
    alone, _ = sample(logits, temperatures, draws)
    top_k = np.where(np.arange(64) % 2 == 0, 3, 0)
    mixed, _ = sample(logits, temperatures, draws, np.ones(64, np.float32), top_k)
    assert mixed[1::2].tolist() == alone[1::2].tolist()
    assert all(token in row.topk(3).indices for token, row in zip(mixed[::2], logits[::2], strict=True))
