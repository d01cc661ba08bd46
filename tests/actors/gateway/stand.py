"""A gateway and a generator with a scripted engine, in one process, behind a real port."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import trio

from actors.gateway import Gateway
from actors.rollout_generator import RolloutGenerator
from actors.weights.files import model_directory
from agent_rl.config.load import load_topology
from agent_rl.messages import PolicyVersion, Sampling
from agent_rl.rollout.episode import Episode
from agent_rl.rollout.prompts import ChatFormat
from agent_rl_contract import builders
from agent_rl_contract.scripted import ScriptedEngine
from agent_rl_contract.stage import Stage, running, stand_ins
from tests.end_to_end.topologies import write_micro


def free_port() -> int:
    """A port below those that the kernel hands out, so that no other socket takes it before its user does."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as found, contextlib.suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port


class Stand:
    """Where the gateway is, its generator, and the rollouts that it serves."""

    def __init__(self, url: str, generator: RolloutGenerator, engine: Any, stage: Stage) -> None:
        self.url, self.generator, self.engine, self.stage = url, generator, engine, stage

    @asynccontextmanager
    async def rollout(
        self, *, tokens: int = 100_000, turns: int = 1000, tools: str = "[]"
    ) -> AsyncIterator[tuple[str, Episode]]:
        """Within the block a rollout is served. Gives its key and its episode."""
        request = builders.request(sampling=Sampling(1.0, tokens, turns))
        episode = Episode(request, self.generator._chat, self.generator._engine.longest, begun=False)
        served = self.generator._served_rollouts
        async with served.serving(self.generator._loop, episode, tools=tools) as (key, _):
            yield key, episode

    async def post(
        self, key: str, body: Any, path: str = "/v1/chat/completions", headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Status and JSON of a reply; of a stream, its text."""
        return await trio.to_thread.run_sync(partial(self._post, key, body, path, headers or {}))

    def status(self, method: str, path: str) -> int:
        """That of a request without a body; called in a thread."""
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=30)
        connection.request(method, path)
        reply = connection.getresponse()
        reply.read()
        connection.close()
        return reply.status

    def _post(self, key: str, body: Any, path: str, headers: dict[str, str]) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=30)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", path, data, {"Authorization": f"Bearer {key}", **headers})
        reply = connection.getresponse()
        text = reply.read().decode()
        connection.close()
        return reply.status, text if reply.headers.get_content_type() != "application/json" else json.loads(text)


@asynccontextmanager
async def stand(
    folder: Path,
    script: Any,
    *,
    longest: int = 100_000,
    chat: ChatFormat | None = None,
    engine: Callable[..., ScriptedEngine] | None = ScriptedEngine,
    **settings: Any,
) -> AsyncIterator[Stand]:
    """The two actors. ``script`` as of `ScriptedEngine`; ``settings`` of the gateway; ``chat``: the chat format.

    Without an ``engine`` the generator has its own one, with the model in ``folder / "model"``.
    """
    port = free_port()
    path, _ = write_micro(folder)
    given = {"port": port, **settings}
    topology = load_topology(path, [f"actors.gateway.settings.{name}={value}" for name, value in given.items()])
    model = model_directory(topology, folder) if engine is not None else folder / "model"
    engines: list[ScriptedEngine] = []

    class Scripted(RolloutGenerator):
        def _make_format(self, directory: Path) -> ChatFormat:
            return chat or super()._make_format(directory)

        def _make_engine(self, directory: Path, settings: Any) -> Any:
            if engine is None:
                return super()._make_engine(model, settings)
            return engine(
                model, initial_policy=PolicyVersion(0, 0), script=script, longest=longest, made=engines.append
            )

    async with stand_ins(topology, "rollout_generator", "gateway") as stage:
        # An engine of its own has the weights that it begins with.
        present = builders.published(3) if engine is not None else builders.published(0, epoch=0)
        stage["learner"].announce("policy", "rollout_generator.0").set(present)
        generating = running(Scripted, topology, "rollout_generator", folder, stage)
        serving = running(Gateway, topology, "gateway", folder, stage)
        async with generating as generator, serving:
            assert isinstance(generator, RolloutGenerator)
            for name in ("rollout_generator.0", "gateway.0"):
                await stage.started(name)
            yield Stand(f"http://127.0.0.1:{port}", generator, engines[0] if engines else None, stage)
