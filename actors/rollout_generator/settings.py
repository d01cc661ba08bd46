"""The settings of the rollout generator."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from actors.base import Settings


class RolloutGeneratorSettings(Settings):
    """The engine and the agent loop's limits."""

    engine: str = "torch"
    """A short name, or ``module:Class`` (``actors.engines.base.Engine``)."""
    chat_format: str = ""
    """The format of episodes: a short name or ``module:Class`` (`agent_rl.rollout.prompts.ChatFormat`). Empty: that of
    the actor's class."""
    engine_settings: dict[str, Any] = Field(default={})
    """Settings of the engine; those of the built-in engines are listed below."""
    max_rollouts: PositiveInt = 64
    """The most rollouts at once: rows of the torch engine's KV cache."""
    kv_tokens: PositiveInt | None = None
    """Capacity of the KV cache in tokens. None: enough for max_rollouts sequences of the model's maximum length."""
    threads: PositiveInt = 1
    """Number of torch's threads."""
    device: str = "cpu"
    """As torch names it: ``cpu``, ``cuda``, ``cuda:1``."""
    tool_timeout_seconds: PositiveFloat = 300.0
    """Deadline from sending a call to its result, with its wait at the executor. The executor's own limits are shorter,
    and a silent executor is noticed within seconds."""
    loop_seconds: PositiveFloat = 60.0
    """Limit of a rollout for the own time of a user's loop, without waiting for model and tools."""
    tool_attempts: PositiveInt = 3
    """Attempts at a call whose executor was lost or could not run it, at another executor if there is one. Then the
    rollout fails."""
    tool_calls_outstanding: PositiveInt = 256
    """Calls at once per executor. Further calls wait in the generator without a limit; the rollouts take turns."""
    tool_calls_per_turn: PositiveInt | None = None
    """The most calls of one turn that are run; one error answers the others. None: no limit."""
    tool_calls_at_once: PositiveInt = 16
    """Calls of one turn that run or wait at once. Further calls start when these end."""
    tool_response_chars: PositiveInt = 4096
    """A longer tool response is cut in the middle."""
    error_detail: Literal["traceback", "last_line"] = "traceback"
    """The part of an error that the model reads. The last line suits models without room for tracebacks."""
    keep_turns: bool = True
    """Whether completed turns are sent to the scheduler. A rollout whose generator is lost then goes on from its last
    completed turn at another one; otherwise it starts again from its beginning."""
    load_interval_seconds: PositiveFloat = 0.25
    """Interval at which the engine's load is announced."""
    finish_seconds: PositiveFloat = 10.0
    """When the generator is stopped while the run goes on: how long it finishes rollouts. The others then move."""
    trajectory_window: PositiveInt = 256
    """The most trajectories that the filter has not acknowledged."""
