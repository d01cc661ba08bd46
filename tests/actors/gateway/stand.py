"""A gateway and a generator with a scripted engine, in one process, behind a real port."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from actors.engines.scripted import ScriptedEngine
from actors.gateway import Gateway
from actors.rollout_generator import RolloutGenerator
from actors.testing import running, stand_ins
from actors.weights.files import model_directory
from agent_rl.config.load import load_topology
from agent_rl.messages import PolicyVersion, Sampling
from agent_rl.rollout.episode import Episode
from tests import builders
from tests.end_to_end.topologies import write_micro


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Stand:
    """Where the gateway is, its generator, and the rollouts that it serves."""

    def __init__(self, url: str, generator: RolloutGenerator, engine: ScriptedEngine) -> None:
        self.url, self.generator, self.engine = url, generator, engine

    @asynccontextmanager
    async def rollout(self, *, tokens: int = 100_000, turns: int = 1000) -> AsyncIterator[tuple[str, Episode]]:
        """Within the block a rollout is served. Gives its key and its episode."""
        episode = Episode(
            builders.request(sampling=Sampling(1.0, tokens, turns)),
            self.generator._chat,
            self.generator._engine.longest,
            begun=False,
        )
        async with self.generator._served_rollouts.serving(self.generator._loop, episode) as (key, _):
            yield key, episode


@asynccontextmanager
async def stand(folder: Path, script: Any, *, longest: int = 100_000, **settings: Any) -> AsyncIterator[Stand]:
    """The two actors. ``script`` as of `ScriptedEngine`; ``settings`` of the gateway."""
    port = free_port()
    path, _ = write_micro(folder)
    given = {"port": port, **settings}
    topology = load_topology(path, [f"actors.gateway.settings.{name}={value}" for name, value in given.items()])
    model = model_directory(topology, folder)
    engines: list[ScriptedEngine] = []

    class Scripted(RolloutGenerator):
        def _make_engine(self, directory: Path, settings: Any) -> Any:
            made = ScriptedEngine(
                model, initial_policy=PolicyVersion(0, 0), script=script, longest=longest, made=engines.append
            )
            return made

    async with stand_ins(topology, "rollout_generator", "gateway") as stage:
        stage["learner"].announce("policy", "rollout_generator.0").set(builders.published(3))
        generating = running(Scripted, topology, "rollout_generator", folder, stage)
        serving = running(Gateway, topology, "gateway", folder, stage)
        async with generating as generator, serving:
            assert isinstance(generator, RolloutGenerator)
            for name in ("rollout_generator.0", "gateway.0"):
                await stage.started(name)
            yield Stand(f"http://127.0.0.1:{port}", generator, engines[0])
