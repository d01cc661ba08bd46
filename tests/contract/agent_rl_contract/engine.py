"""The contract of engines, as checks to run against your engine.

Describe the engine with a ``Subject`` and run each of ``CHECKS`` in trio; a check that fails raises AssertionError::

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_contract(check, tmp_path):
        save_tiny_model(tmp_path / "model", "qwen3", seed=0)
        trio.run(check, Subject(tmp_path / "model", lambda options: MyEngine(...)))

The reference is a plain Hugging Face forward pass in float32, without a cache. Each update brings weights that were not
served before: the sequence A, B, A would not reveal an engine that ignores updates.
Engines that can share a device in time must also pass ``SLEEP_CHECKS``.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
import trio
from safetensors.torch import load_file, save_file

from actors.engines.base import Engine, EngineError, TurnRequest, TurnResult
from actors.engines.reference import TINY_MAX_LENGTH, TINY_VOCABULARY, Reference
from agent_rl.messages import PolicyVersion, TransferOffer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from actors.engines.base import SleepingEngine

FIRST_POLICY = PolicyVersion(epoch=1, version=3)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The engine that a check needs: the model's directory, the capacity, and the policy of its weights."""

    model_path: Path
    max_rollouts: int
    kv_tokens: int | None
    policy: PolicyVersion


@dataclass(frozen=True)
class Subject:
    """An engine under test. ``tolerance`` bounds the error of log-probabilities; ``kv_on_update`` is its behaviour."""

    model_path: Path
    make: Callable[[EngineOptions], Engine]
    kv_on_update: Literal["keep", "recompute"] = "keep"
    tolerance: float = 1e-4
    reference: Reference = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reference", Reference(self.model_path))

    @asynccontextmanager
    async def running(self, max_rollouts: int = 8, kv_tokens: int | None = None) -> AsyncIterator[Engine]:
        """A running engine; it is stopped when the context ends."""
        engine = self.make(EngineOptions(self.model_path, max_rollouts, kv_tokens, FIRST_POLICY))
        async with trio.open_nursery() as nursery:
            await nursery.start(engine.run)
            yield engine
            nursery.cancel_scope.cancel()


def save_other_weights(subject: Subject, directory: Path, seed: int) -> Reference:
    """Save the subject's model with other random weights to ``directory``, and return the reference for it.

    The weights are in ``directory / "model.safetensors"``, as a learner publishes them.
    """
    generator = torch.Generator().manual_seed(seed)
    weights = load_file(subject.model_path / "model.safetensors")
    others = {
        name: tensor + 0.2 * torch.randn(tensor.shape, generator=generator) if tensor.ndim > 1 else tensor
        for name, tensor in weights.items()
    }
    directory.mkdir()
    save_file(others, directory / "model.safetensors", metadata={"format": "pt"})
    for name in ("config.json", "tokenizer.json"):
        (directory / name).write_bytes((subject.model_path / name).read_bytes())
    return Reference(directory)


def turn(rollout: str, tokens: Sequence[int], max_tokens: int, **sampling: Any) -> TurnRequest:
    """A TurnRequest, greedy by default."""
    greedy: dict[str, Any] = {"temperature": 0.0, "stop_tokens": frozenset(), "seed": 0}
    return TurnRequest(rollout=rollout, tokens=tokens, max_tokens=max_tokens, **{**greedy, **sampling})


def random_prompt(seed: int, length: int) -> list[int]:
    """A prompt of ``length`` random tokens."""
    prompt: list[int] = np.random.default_rng(seed).integers(0, TINY_VOCABULARY, length).tolist()
    return prompt


async def eventually(condition: Callable[[], bool], what: str, seconds: float = 10.0) -> None:
    """Wait until ``condition`` holds. The engine's thread or process does not announce it."""
    with trio.move_on_after(seconds):
        while not condition():  # noqa: ASYNC110 - there is no event: the interface only has figures
            await trio.sleep(0.001)
        return
    raise AssertionError(f"this did not happen within {seconds} s: {what}")


async def generate_all(engine: Engine, requests: Sequence[TurnRequest]) -> list[TurnResult]:
    """Send all requests at once."""
    results: dict[int, TurnResult] = {}

    async def one(index: int) -> None:
        results[index] = await engine.generate(requests[index])

    async with trio.open_nursery() as nursery:
        for index in range(len(requests)):
            nursery.start_soon(one, index)
    return [results[index] for index in range(len(requests))]


@contextmanager
def refused(what: str, *words: object) -> Iterator[None]:
    """The code in the context must raise EngineError with ``words`` in its message."""
    message = ""
    try:
        yield
    except EngineError as error:
        message = str(error)
    assert message, f"{what} was accepted"
    for word in words:
        assert str(word) in message, f"the error {message!r} does not mention {word}"


async def check_greedy_is_the_models_own(subject: Subject) -> None:
    """With mixed lengths, in several turns with text between: the likeliest tokens of a plain forward pass."""
    async with subject.running(max_rollouts=4) as engine:
        sequences = [random_prompt(i, 3 + 9 * i) for i in range(6)]
        for number in range(3):
            requests = [turn(f"r{i}", tokens, 4 + i) for i, tokens in enumerate(sequences)]
            for i, result in enumerate(await generate_all(engine, requests)):
                assert result.tokens.tolist() == subject.reference.greedy(sequences[i], 4 + i)
                assert result.finish == "length"
                assert result.policies.tolist() == [[FIRST_POLICY.epoch, FIRST_POLICY.version]] * (4 + i)
                sequences[i] = [*sequences[i], *result.tokens.tolist(), *random_prompt(100 * number + i, 1 + i)]


async def check_rewritten_history_is_computed_anew(subject: Subject) -> None:
    """A turn whose tokens differ from the cached ones, or end before them, gets the answer to its own tokens."""
    async with subject.running() as engine:
        prompt = random_prompt(0, 30)
        await engine.generate(turn("r", prompt, 5))
        for tokens in (prompt[:12], prompt[:12] + random_prompt(1, 10), prompt):
            result = await engine.generate(turn("r", tokens, 5))
            assert result.tokens.tolist() == subject.reference.greedy(tokens, 5)


async def check_logprobs_are_of_what_was_sampled_from(subject: Subject) -> None:
    """Log-probabilities include temperature and filters (greedy: temperature 1, none). Rows of a batch do not mix."""
    sampling: list[dict[str, Any]] = [{"temperature": temperature} for temperature in (0.0, 0.5, 1.0, 1.7)]
    sampling += [{"temperature": 1.7, "top_k": 3}, {"temperature": 1.0, "top_p": 0.4}, {"temperature": 1.7, "top_k": 1}]
    sampling += [{"temperature": 0.0, "top_k": 3, "top_p": 0.4}]
    prompts = [random_prompt(i, 5 + 7 * i) for i in range(8)]
    async with subject.running() as engine:
        requests = [
            turn(f"r{i}", prompt, 20, seed=i, **options)
            for i, (prompt, options) in enumerate(zip(prompts, sampling, strict=True))
        ]
        for request, result in zip(requests, await generate_all(engine, requests), strict=True):
            written = result.tokens.tolist()
            rank, share = subject.reference.likelier(request.tokens, written, request.temperature)
            assert rank < request.top_k or not request.top_k, f"a token of rank {rank} of the top {request.top_k}"
            assert share < request.top_p, f"a token beyond the share {request.top_p}"
            expected = subject.reference.logprobs(
                request.tokens, written, request.temperature, request.top_p, request.top_k
            )
            assert np.abs(result.logprobs - expected).max() < subject.tolerance
            assert [array.dtype.name for array in (result.tokens, result.policies)] == ["int32", "int32"]
            assert result.logprobs.dtype.name == "float32"


async def check_seed_decides_whatever_shares_the_batch(subject: Subject) -> None:
    """The same seed gives the same tokens in any batch, and another seed gives others."""
    prompt = random_prompt(0, 20)
    async with subject.running() as engine:
        alone = await engine.generate(turn("alone", prompt, 30, temperature=1.0, seed=7))
        engine.release("alone")
        company = [turn(f"c{i}", random_prompt(i, 4 + 5 * i), 25, temperature=1.0, seed=50 + i) for i in range(6)]
        same = turn("same", prompt, 30, temperature=1.0, seed=7)
        other = turn("other", prompt, 30, temperature=1.0, seed=8)
        results = await generate_all(engine, [*company[:3], same, other, *company[3:]])
    assert results[3].tokens.tolist() == alone.tokens.tolist()
    assert results[4].tokens.tolist() != alone.tokens.tolist()


async def check_a_rollout_goes_on_at_another_engine(subject: Subject) -> None:
    """Next turns on an engine that has not run the rollout: the tokens and log-probabilities as if it had not moved."""
    sequences = [random_prompt(i, 6 + 11 * i) for i in range(4)]
    stayed: dict[tuple[int, int], tuple[TurnRequest, TurnResult]] = {}
    async with subject.running(max_rollouts=4) as engine:
        for number in range(3):
            requests = [turn(f"r{i}", tokens, 9 + i, temperature=1.0, seed=i) for i, tokens in enumerate(sequences)]
            for i, result in enumerate(await generate_all(engine, requests)):
                stayed[i, number] = requests[i], result
                sequences[i] = [*sequences[i], *result.tokens.tolist(), *random_prompt(10 * number + i, 2 + i)]
    async with subject.running(max_rollouts=8) as engine:
        for number, moved in ((1, (0, 3)), (2, (0, 1, 2, 3))):  # two of them move twice as late as the others
            requests = [stayed[i, number][0] for i in moved]
            for i, result in zip(moved, await generate_all(engine, requests), strict=True):
                before = stayed[i, number][1]
                assert result.tokens.tolist() == before.tokens.tolist(), f"rollout {i} goes on differently"
                assert np.abs(result.logprobs - before.logprobs).max() < subject.tolerance


async def check_stop_tokens_end_a_turn(subject: Subject) -> None:
    """The stop token is the last token of the result."""
    prompt = random_prompt(3, 17)
    expected = subject.reference.greedy(prompt, 12)
    stop = expected[6]
    first = expected.index(stop) + 1
    async with subject.running() as engine:
        result = await engine.generate(turn("r", prompt, 12, stop_tokens=frozenset({stop, TINY_VOCABULARY - 1, stop})))
        assert (result.tokens.tolist(), result.finish) == (expected[:first], "stop")
        assert len(result.logprobs) == len(result.policies) == first


async def check_more_requests_than_slots(subject: Subject) -> None:
    """256 requests at once on 16 slots and little KV cache: all get right answers, and all memory is freed."""
    async with subject.running(max_rollouts=16, kv_tokens=384) as engine:
        prompts = [random_prompt(i, 4 + i % 23) for i in range(256)]
        results = await generate_all(engine, [turn(f"r{i}", prompt, 6 + i % 5) for i, prompt in enumerate(prompts)])
        for i in range(0, 256, 13):
            assert results[i].tokens.tolist() == subject.reference.greedy(prompts[i], 6 + i % 5)
        assert engine.figures.kv_tokens_used <= engine.figures.kv_tokens_total == 384
        for i in range(256):
            engine.release(f"r{i}")
        await eventually(lambda: engine.figures.kv_tokens_used == 0, "released sequences free their KV cache")
        assert (engine.figures.running, engine.figures.waiting) == (0, 0)
        assert engine.figures.generated_tokens >= sum(len(result.tokens) for result in results)
        passes = engine.figures.passes.values()
        assert all(each.seconds > 0 and each.written <= 2 * 16 * each.count for each in passes)
        if passes:
            assert 0 <= engine.figures.steps - sum(each.count for each in passes) <= len(prompts)
            written, tokens = sum(each.written for each in passes), sum(len(result.tokens) for result in results)
            assert 0.7 * tokens < written < 1.4 * tokens


async def check_cancelling_frees(subject: Subject) -> None:
    """A cancelled turn, running or waiting, frees its memory and does not disturb other turns."""
    async with subject.running(max_rollouts=2) as engine:
        async with trio.open_nursery() as nursery:
            for i in range(4):
                nursery.start_soon(engine.generate, turn(f"r{i}", random_prompt(i, 10), 450))
            await eventually(lambda: engine.figures.running == 2, "two requests run")
            await eventually(lambda: engine.figures.waiting == 2, "two requests wait")
            assert engine.figures.kv_tokens_used > 0
            nursery.cancel_scope.cancel()
        await eventually(lambda: engine.figures.kv_tokens_used == 0, "cancelled requests free their KV cache")
        await eventually(lambda: engine.figures.running + engine.figures.waiting == 0, "cancelled requests are gone")
        again = await engine.generate(turn("r1", random_prompt(1, 10), 5))
        assert again.tokens.tolist() == subject.reference.greedy(random_prompt(1, 10), 5)


async def check_a_cut_turn_is_continued(subject: Subject) -> None:
    """A rollout goes on from a part of a turn that was cut. What is cached is not computed again until its release."""
    prompt = random_prompt(7, 10)
    given = [*prompt, *subject.reference.greedy(prompt, 6), *random_prompt(8, 4)]
    async with subject.running(max_rollouts=2) as engine:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.generate, replace(turn("r0", prompt, 450), keeps_cache=True))
            await eventually(lambda: engine.figures.generated_tokens > 12, "tokens are generated")
            nursery.cancel_scope.cancel()
        await eventually(lambda: engine.figures.running == 0, "the turn is cut")
        kept, before = engine.figures.kv_tokens_used, engine.figures.prefilled_tokens
        again = await engine.generate(turn("r0", given, 5))
        assert again.tokens.tolist() == subject.reference.greedy(given, 5)
        assert not kept or engine.figures.prefilled_tokens - before <= 5
        engine.release("r0")
        await eventually(lambda: engine.figures.kv_tokens_used == 0, "a rollout that is released frees its KV cache")


async def check_what_can_never_fit_is_refused(subject: Subject) -> None:
    """A request beyond the model or the KV cache raises EngineError with the numbers; the engine continues."""
    async with subject.running() as engine:
        assert engine.longest == TINY_MAX_LENGTH
    async with subject.running(kv_tokens=96) as engine:
        assert engine.longest == 96
        for length, max_tokens in ((80, 17), (TINY_MAX_LENGTH, 1)):
            with refused(f"a turn of {length} + {max_tokens} tokens", length, 96):
                await engine.generate(turn("long", random_prompt(0, length), max_tokens))
        fits = await engine.generate(turn("fits", random_prompt(0, 80), 16))
        assert len(fits.tokens) == 16


async def check_weights_change_under_way(subject: Subject) -> None:
    """Rollouts in flight continue; each token names the policy that sampled it; later requests use the new model."""
    async with subject.running() as engine:
        served = (FIRST_POLICY, subject.reference)
        for update in range(2):
            path = subject.model_path.parent / f"update{update}"
            policy = PolicyVersion(epoch=served[0].epoch, version=served[0].version + 1)
            published = (policy, save_other_weights(subject, path, seed=10 + update))
            await update_under_way(subject, engine, path / "model.safetensors", served, published)
            served = published


async def update_under_way(
    subject: Subject,
    engine: Engine,
    source: Path | TransferOffer,
    before: tuple[PolicyVersion, Reference],
    after: tuple[PolicyVersion, Reference],
) -> None:
    """Load weights while rollouts are in flight, and check the tokens written before and after."""
    results: dict[int, TurnResult] = {}
    prompts = [random_prompt(i, 40 + 5 * i) for i in range(4)]  # long enough for a prefix cache to find them

    async def one(index: int) -> None:
        results[index] = await engine.generate(turn(f"r{index}", prompts[index], 400))

    generated = engine.figures.generated_tokens
    async with trio.open_nursery() as nursery:
        for index in range(len(prompts)):
            nursery.start_soon(one, index)
        await eventually(lambda: engine.figures.generated_tokens > generated + 40, "tokens are generated", 60.0)
        await engine.load_weights(source, after[0])
        assert engine.policy == after[0]
    for index, result in results.items():
        versions = [PolicyVersion(*pair) for pair in result.policies.tolist()]
        switch = versions.count(before[0])
        assert versions == [before[0]] * switch + [after[0]] * (400 - switch)
        assert 0 < switch < 400, "the update did not come while the rollout was in flight"
        tokens = result.tokens.tolist()
        checked = min(switch, 8)
        assert tokens[:checked] == before[1].greedy(prompts[index], checked)
        if subject.kv_on_update == "recompute":
            assert tokens[switch : switch + 8] == after[1].greedy([*prompts[index], *tokens[:switch]], 8)
        engine.release(f"r{index}")
    fresh = await engine.generate(turn("fresh", prompts[0], 8))
    engine.release("fresh")
    assert fresh.tokens.tolist() == after[1].greedy(prompts[0], 8)
    assert {PolicyVersion(*pair) for pair in fresh.policies.tolist()} == {after[0]}


async def check_an_update_with_many_in_flight(subject: Subject) -> None:
    """64 sampled rollouts, more tokens than one step recomputes, one aborted: the others end, under both policies."""
    results: dict[int, TurnResult] = {}
    published = PolicyVersion(FIRST_POLICY.epoch, FIRST_POLICY.version + 1)
    save_other_weights(subject, subject.model_path.parent / "many", seed=21)

    async def one(index: int) -> None:
        request = turn(f"r{index}", random_prompt(index, 200 + index % 8), 300, temperature=1.0, seed=index)
        results[index] = await engine.generate(request)

    async with subject.running(max_rollouts=64) as engine, trio.open_nursery() as nursery:
        aborted = trio.CancelScope()

        async def abortable() -> None:
            with aborted:
                await one(63)

        nursery.start_soon(abortable)
        for index in range(63):
            nursery.start_soon(one, index)
        await eventually(lambda: engine.figures.generated_tokens > 64 * 10, "tokens are generated", 60.0)
        aborted.cancel()
        await engine.load_weights(subject.model_path.parent / "many" / "model.safetensors", published)
    assert sorted(results) == list(range(63))
    for result in results.values():
        versions = result.policies[:, 1].tolist()
        assert versions == sorted(versions)
        assert set(versions) == {FIRST_POLICY.version, published.version}
        assert len(result.tokens) == len(result.logprobs) == 300
        assert np.isfinite(result.logprobs).all()


async def check_tokens_are_told_while_they_are_written(subject: Subject) -> None:
    """Listeners hear the result before it comes, beside other turns, with little KV cache, and over an update.

    A cancelled turn tells no more. An engine may tell nothing at all.
    """
    published = PolicyVersion(FIRST_POLICY.epoch, FIRST_POLICY.version + 1)
    save_other_weights(subject, subject.model_path.parent / "told", seed=51)
    told: list[list[tuple[NDArray[Any], ...]]] = [[] for _ in range(6)]
    versions: set[int] = set()
    cancelled = trio.CancelScope()

    async def one(index: int) -> None:
        request = turn(f"r{index}", random_prompt(index, 20 + index), 400 + index, temperature=1.0, seed=index)
        listener = None if index % 3 == 1 else lambda *written: told[index].append(written)
        result = await engine.generate(replace(request, wrote=listener))
        assert listener is None or len(told[index]) != 1, "a long turn is told in one piece"
        whole = (result.tokens, result.logprobs, result.policies)
        for parts, expected in zip(zip(*told[index], strict=True), whole, strict=False):
            assert all(len(part) for part in parts)
            assert parts[0].dtype == expected.dtype
            np.testing.assert_array_equal(np.concatenate(parts), expected)
        versions.update(result.policies[:, 1].tolist())

    async def cancel_one() -> None:
        with cancelled:
            await one(5)
        told[5].append(())

    async with subject.running(max_rollouts=6, kv_tokens=1024) as engine:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_one)
            for index in range(5):
                nursery.start_soon(one, index)
            await eventually(lambda: engine.figures.generated_tokens > 6 * 20, "tokens are generated", 60.0)
            cancelled.cancel()
            await engine.load_weights(subject.model_path.parent / "told" / "model.safetensors", published)
        assert versions == {FIRST_POLICY.version, published.version}
        assert told[5][-1] == (), "a cancelled turn was told"
        assert not told[1] + told[4]
        assert len({bool(told[index]) for index in (0, 2, 3)}) == 1, "some turns are told, and some are not"


async def check_weights_that_do_not_fit_are_refused(subject: Subject) -> None:
    """A missing, truncated, incomplete or misshapen file raises EngineError; the old weights and policy stay."""
    directory = subject.model_path.parent / "faulty"
    directory.mkdir()
    save_other_weights(subject, directory / "other", seed=5)
    weights = load_file(directory / "other" / "model.safetensors")
    name = max(weights)
    whole = (directory / "other" / "model.safetensors").read_bytes()
    (directory / "truncated").write_bytes(whole[: len(whole) * 2 // 3])
    save_file({key: tensor for key, tensor in weights.items() if key != name}, directory / "incomplete")
    save_file({**weights, name: torch.zeros(3, 5)}, directory / "misshapen")
    save_file({**weights, name: weights[name].to(torch.float64)}, directory / "mistyped")
    save_file({**weights, "unheard.of": torch.zeros(1)}, directory / "unknown")
    prompt = random_prompt(0, 12)
    async with subject.running() as engine:
        for file in ("missing", "truncated", "incomplete", "misshapen", "mistyped", "unknown"):
            with refused(f"the file of {file} weights", file):
                await engine.load_weights(directory / file, PolicyVersion(epoch=9, version=9))
            assert engine.policy == FIRST_POLICY
            result = await engine.generate(turn(file, prompt, 6))
            assert result.tokens.tolist() == subject.reference.greedy(prompt, 6)
            assert result.policies.tolist() == [[FIRST_POLICY.epoch, FIRST_POLICY.version]] * 6


CHECKS: tuple[Callable[[Subject], Awaitable[None]], ...] = (
    check_greedy_is_the_models_own,
    check_rewritten_history_is_computed_anew,
    check_logprobs_are_of_what_was_sampled_from,
    check_seed_decides_whatever_shares_the_batch,
    check_a_rollout_goes_on_at_another_engine,
    check_stop_tokens_end_a_turn,
    check_more_requests_than_slots,
    check_cancelling_frees,
    check_a_cut_turn_is_continued,
    check_what_can_never_fit_is_refused,
    check_weights_change_under_way,
    check_an_update_with_many_in_flight,
    check_tokens_are_told_while_they_are_written,
    check_weights_that_do_not_fit_are_refused,
)
"""All checks of the contract, for ``trio.run(check, subject)``."""


QUIET = 0.05
"""Seconds in which an engine that does not sleep writes tokens."""


@asynccontextmanager
async def sleeping(subject: Subject) -> AsyncIterator[SleepingEngine]:
    """A running engine, which can sleep."""
    async with subject.running() as engine:
        yield cast("SleepingEngine", engine)


async def check_asleep_nothing_is_written_and_nothing_is_lost(subject: Subject) -> None:
    """A sleep amid turns: they go on from their tokens, later ones wait, and what ends meanwhile is freed."""
    prompts = [random_prompt(i, 12 + 5 * i) for i in range(5)]
    results: dict[int, TurnResult] = {}

    async def one(index: int, max_tokens: int) -> None:
        results[index] = await engine.generate(turn(f"r{index}", prompts[index], max_tokens, seed=index))

    async with sleeping(subject) as engine:
        before = await engine.generate(turn("before", prompts[0], 6))
        async with trio.open_nursery() as nursery:
            dropped = trio.CancelScope()

            async def abandoned() -> None:
                with dropped:
                    await one(4, 400)

            for index in (0, 1):
                nursery.start_soon(one, index, 150)
            nursery.start_soon(abandoned)
            await eventually(lambda: engine.figures.generated_tokens > 30, "tokens are generated", 60.0)
            await engine.sleep()
            await engine.sleep()
            await trio.sleep(QUIET)  # what was written before may be counted late
            written = engine.figures.generated_tokens
            nursery.start_soon(one, 2, 9)
            dropped.cancel()
            engine.release("before")
            await trio.sleep(QUIET)
            assert engine.figures.generated_tokens == written, "tokens are written while the engine sleeps"
            assert not results
            await engine.wake()
            await engine.wake()
        for index, max_tokens in ((0, 150), (1, 150), (2, 9)):
            written_tokens = results[index].tokens.tolist()
            assert len(written_tokens) == max_tokens
            assert subject.reference.likelier(prompts[index], written_tokens, 0.0)[0] == 0, "not the likeliest tokens"
            expected = subject.reference.logprobs(prompts[index], written_tokens, 0.0)
            assert np.abs(results[index].logprobs - expected).max() < subject.tolerance
        extended = [*prompts[0], *before.tokens.tolist(), *random_prompt(9, 3)]
        again = await engine.generate(turn("before", extended, 6))  # a further turn, whose prefix was dropped
        assert again.tokens.tolist() == subject.reference.greedy(extended, 6)


async def check_weights_that_come_in_its_sleep_are_served_when_it_wakes(subject: Subject) -> None:
    """A load waits for the end of the sleep, and requests in flight go on with the new weights."""
    published = PolicyVersion(FIRST_POLICY.epoch, FIRST_POLICY.version + 1)
    reference = save_other_weights(subject, subject.model_path.parent / "asleep", seed=41)
    loaded = trio.Event()
    prompt = random_prompt(3, 40)
    result: list[TurnResult] = []

    async def load() -> None:
        await engine.load_weights(subject.model_path.parent / "asleep" / "model.safetensors", published)
        loaded.set()

    async def one() -> None:
        result.append(await engine.generate(turn("r", prompt, 150)))

    async with sleeping(subject) as engine:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one)
            await eventually(lambda: engine.figures.generated_tokens > 20, "tokens are generated", 60.0)
            await engine.sleep()
            nursery.start_soon(load)
            await trio.sleep(QUIET)
            assert not loaded.is_set()
            assert engine.policy == FIRST_POLICY
            await engine.wake()
            with trio.fail_after(60.0):
                await loaded.wait()
            assert engine.policy == published
        versions = result[0].policies[:, 1].tolist()
        switch = versions.count(FIRST_POLICY.version)
        assert versions == [FIRST_POLICY.version] * switch + [published.version] * (150 - switch)
        assert 0 < switch < 150
        tokens = result[0].tokens.tolist()
        assert tokens[switch : switch + 8] == reference.greedy([*prompt, *tokens[:switch]], 8) or (
            subject.kv_on_update == "keep"
        )
        fresh = await engine.generate(turn("fresh", prompt, 8))
        assert fresh.tokens.tolist() == reference.greedy(prompt, 8)


SLEEP_CHECKS: tuple[Callable[[Subject], Awaitable[None]], ...] = (
    check_asleep_nothing_is_written_and_nothing_is_lost,
    check_weights_that_come_in_its_sleep_are_served_when_it_wakes,
)
"""All checks, for ``trio.run(check, subject)``."""
