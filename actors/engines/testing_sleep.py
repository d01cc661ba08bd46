"""The contract of engines that sleep, as further checks for `actors.engines.testing.Subject`."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import numpy as np
import trio

from actors.engines.testing import (
    FIRST_POLICY,
    Subject,
    eventually,
    random_prompt,
    save_other_weights,
    turn,
)
from agent_rl.messages import Policy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from actors.engines.base import SleepingEngine, TurnResult

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
    published = Policy(FIRST_POLICY.epoch, FIRST_POLICY.version + 1)
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
