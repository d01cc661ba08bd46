"""Environments of OpenEnv, as users write them: ``tallies:app`` takes texts, ``tallies:tools`` calls of tools.

An episode asks for the number that its seed gives. The text "die" ends the server, "hang" blocks it.
"""

import os
import time
from typing import Any

from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State


class Said(Action):
    text: str


class Shown(Observation):
    text: str = ""


class Tally(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    state = State()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Shown:
        self.wanted = (seed or 0) + more.get("plus", 0)
        return Shown(text=f"Say {self.wanted}.")

    def step(self, action: Said) -> Shown:
        if action.text == "die":
            os.closerange(3, 1024)  # as a server does on a busy machine: its connections close, and then it ends
            time.sleep(0.3)
            os._exit(7)
        if action.text == "raise":
            raise ValueError("no number")
        if action.text == "random":
            return Shown(text=f"at {time.time_ns()}")
        right = action.text == str(self.wanted)
        return Shown(text="Right." if right else "Wrong.", reward=1.0 if right else -0.25, done=right)

    async def step_async(self, action: Said, timeout_s: float | None = None, **more: Any) -> Shown:
        if action.text == "hang":
            time.sleep(600)  # noqa: ASYNC251  it is meant to block
        return self.step(action)


class Counter(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    state = State()

    def __init__(self) -> None:
        server = FastMCP("counter")
        self.count = 0

        @server.tool
        def add(number: int) -> str:
            """Add to the count."""
            self.count += number
            return f"count {self.count}"

        super().__init__(server)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Observation:
        self.count = seed or 0
        return Observation()

    async def step_async(self, action: Any, timeout_s: float | None = None, **more: Any) -> Any:
        observation = await super().step_async(action, timeout_s)
        observation.reward, observation.done = float(self.count == 7), self.count >= 7
        return observation

    def _step_impl(self, action: Any, timeout_s: float | None = None, **more: Any) -> Observation:
        raise NotImplementedError


app = create_app(Tally, Said, Shown, max_concurrent_envs=2)
tools = create_app(Counter, CallToolAction, CallToolObservation, max_concurrent_envs=2)
