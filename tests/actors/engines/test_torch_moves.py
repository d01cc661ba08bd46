"""A rollout of a real model changes its engine between two turns: the trajectory is the same, token for token."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trio

from actors.engines.base import Engine, TurnRequest
from actors.engines.torch.engine import TorchEngine
from actors.weights.files import model_directory
from agent_rl.learning.tiny import build_tokenizer
from agent_rl.messages import EnvironmentMessage, Sampling, TurnObserved
from agent_rl.rollout.episode import Episode
from agent_rl.rollout.prompts import ChatFormat
from tests import builders
from tests.actors.topologies import micro

TURNS = 4
REQUEST = builders.request(sampling=Sampling(1.0, 200, TURNS), seed=5)


async def write(engine: Engine, episode: Episode, chat: ChatFormat) -> None:
    """One turn; the environment's answer follows."""
    seed, stops = episode.request.seed, frozenset(range(64))  # soon, by chance
    result = await engine.generate(
        TurnRequest(
            rollout=episode.request.rollout,
            tokens=episode.tokens,
            max_tokens=episode.budget,
            temperature=1.0,
            stop_tokens=stops | chat.stop_tokens,
            seed=seed,
        )
    )
    assert result.finish == "stop", "the random model never stopped: choose another seed"
    episode.wrote(result.tokens, result.logprobs, result.policies, stopped=True)
    if episode.ended is None:
        episode.observed(TurnObserved((EnvironmentMessage(episode.turns, "user", "+4"),)), engine.policy)


@pytest.mark.real_time
async def test_a_rollout_that_changes_its_engine_at_each_turn_has_the_trajectory_of_one_that_stays(
    tmp_path: Path,
) -> None:
    chat = ChatFormat(build_tokenizer(), builders.environments())
    model = model_directory(micro(tmp_path), tmp_path)

    @asynccontextmanager
    async def running(rows: int) -> AsyncIterator[Engine]:
        engine = TorchEngine(
            model, max_rollouts=rows, kv_tokens=None, dtype="float32", initial_policy=builders.published().policy
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(engine.run)
            yield engine
            nursery.cancel_scope.cancel()

    stays = Episode(REQUEST, chat, observes=True)
    async with running(4) as first, running(3) as second:
        while stays.ended is None:
            await write(first, stays, chat)
            if stays.ended is None:
                stays.complete(0.0)
        first.release(REQUEST.rollout)
        moving = Episode(REQUEST, chat, observes=True)
        for engine in (second, first, second, first):
            await write(engine, moving, chat)
            if moving.ended is None:
                moving.complete(0.0)
                engine.release(REQUEST.rollout)
                turns, moving = (
                    tuple(moving.completed),
                    Episode(replace(REQUEST, turns=tuple(moving.completed)), chat, observes=True),
                )
                assert not moving.resume(turns)
    one, other = (each.trajectory(generator="g", seconds=0.0) for each in (stays, moving))
    assert one.turns == other.turns == TURNS
    first, second = one.unpack(), other.unpack()
    for field in ("prompt_tokens", "tokens", "loss_mask", "policies"):
        assert np.array_equal(getattr(first, field), getattr(second, field)), f"another {field}"
    assert np.abs(first.logprobs - second.logprobs).max() < 1e-4
