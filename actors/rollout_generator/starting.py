"""The start of a generator, before it serves: its engine, its chat template, prompts that are too long."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from actors.base import Settings
from actors.engines.base import Engine, EngineRefusedError
from actors.weights import transfer
from agent_rl.config.placement import threads_of
from agent_rl.config.plugins import PluginError, resolve
from agent_rl.config.topology import Topology
from agent_rl.environments.base import TaskError
from agent_rl.environments.load import Environments
from agent_rl.environments.tasks import ListedTasks
from agent_rl.messages import PolicyVersion
from agent_rl.models.model_files import weight_count
from agent_rl.rollout.prompts import ChatFormat


class RolloutGeneratorSettings(Settings):
    """The engine and the agent loop's limits."""

    engine: str = "torch"
    """A short name, or ``module:Class`` (``actors.engines.base.Engine``)."""
    chat_format: str = ""
    """Format of episodes: a short name or ``module:Class``. Empty: that of the actor's class."""
    engine_settings: dict[str, Any] = Field(default={})
    """Settings of the engine; those of built-in engines are below."""
    max_rollouts: PositiveInt = 64
    """Most rollouts at once: rows of the torch engine's KV cache."""
    kv_tokens: PositiveInt | None = None
    """Capacity of the KV cache in tokens. None: ``max_rollouts`` sequences of the model's maximum length."""
    threads: PositiveInt | Literal["auto"] = "auto"
    """Threads of torch. ``auto``: this process's share of the host's cores, and those that are idle; 1 for models below
    20M weights."""
    device: str = "cpu"
    """As torch names it: ``cpu``, ``cuda``, ``cuda:1``."""
    tool_timeout_seconds: PositiveFloat = 300.0
    """From sending a call to its result, queueing included."""
    loop_seconds: PositiveFloat = 60.0
    """Limit of a rollout for a user's loop itself, without waiting for model and tools."""
    tool_attempts: PositiveInt = 3
    """Attempts at a call whose executor was lost or could not run it. Then the rollout fails."""
    tool_calls_outstanding: PositiveInt = 256
    """Calls under way per executor. Others wait in the generator, and rollouts take turns."""
    tool_calls_per_turn: PositiveInt | None = None
    """Most calls of one turn that are run; one error answers the others. None: no limit."""
    tool_calls_at_once: PositiveInt = 16
    """Calls of one turn that run or wait at once."""
    tool_response_chars: PositiveInt = 4096
    """A longer tool response is cut in the middle."""
    error_detail: Literal["traceback", "last_line"] = "traceback"
    """What the model reads of an error. The last line suits models without room for tracebacks."""
    keep_turns: bool = True
    """Whether the scheduler keeps completed turns, so that a rollout whose generator is lost goes on from the last one.
    Else it begins again."""
    load_interval_seconds: PositiveFloat = 0.25
    """How often the engine's load is announced."""
    finish_seconds: PositiveFloat = 20.0
    """How long a generator that is stopped while the run goes on finishes turns. Their rollouts then go on elsewhere;
    what is left of longer turns is lost."""
    trajectory_window: PositiveInt = 256
    """Most trajectories that the filter has not acknowledged."""


NAMED_PROBLEMS = 5
"""The most problems that a message about long prompts names."""


def make_engine(
    directory: Path, settings: RolloutGeneratorSettings, topology: Topology, actor: str, *, sleeps: bool = False
) -> Engine:
    """The engine that an actor's settings name, with the model in ``directory``. Raises EngineRefusedError.

    ``sleeps``: the engine shares its device in time, so that it must be able to sleep.
    """
    try:
        engine_class = resolve("engine", settings.engine)
    except PluginError as error:
        raise EngineRefusedError(f"engine: {error}") from error
    if way := transfer.way_of(topology):
        files_alone = "" if hasattr(engine_class, "ranks") else f"{settings.engine} only takes weights from files"
        if fault := files_alone or transfer.unavailable(way):
            raise EngineRefusedError(f'weights_in = "{way}": {fault}; remove the cause, or choose another value')
    if sleeps and not (hasattr(engine_class, "sleep") and hasattr(engine_class, "wake")):
        raise EngineRefusedError(
            f'share = "time": {settings.engine} cannot sleep, as it has no methods sleep and wake; add them '
            "(actors/engines/base.py), or give the engine a device of its own"
        )
    compute, dtype = topology.model.compute, topology.model.dtype
    chosen: dict[str, Any] = {"compute": compute} if "compute" in signature(engine_class).parameters else {}
    if not chosen and compute not in {"auto", dtype}:
        raise EngineRefusedError(
            f'[model] compute = "{compute}": {settings.engine} computes in dtype, which is "{dtype}"; write "auto"'
        )
    threads, most = settings.threads, 0
    if threads == "auto":
        cores = len(os.sched_getaffinity(0))
        threads, most = threads_of(topology, actor, weights=weight_count(directory) or 0, cores=cores)
    if "most_threads" in signature(engine_class).parameters:
        chosen["most_threads"] = most
    to_sleep = (
        engine_class.sleep_settings(settings.device) if sleeps and hasattr(engine_class, "sleep_settings") else {}
    )
    try:
        engine: Engine = engine_class(
            directory,
            max_rollouts=settings.max_rollouts,
            kv_tokens=settings.kv_tokens,
            threads=threads,
            device=settings.device,
            dtype=dtype,
            initial_policy=PolicyVersion(0, 0),
            **{**to_sleep, **chosen, **settings.engine_settings},
        )
    except (TypeError, ValueError) as error:
        raise EngineRefusedError(
            f"engine_settings: {settings.engine} does not take them: {error}; change them"
        ) from error
    return engine


def require_append_only(environments: Environments, chat: ChatFormat) -> None:
    """Raises EngineRefusedError when messages answer turns, and the chat template then changes earlier turns."""
    answering = [name for name, each in environments.items() if each.observes or each.rollout is not None]
    if answering and (changed := chat.rewriting()):
        raise EngineRefusedError(
            f"environment {answering[0]!r} answers turns, and the chat template then changes earlier turns: "
            f"{changed}; name a template that repeats turns unchanged: "
            'chat_template = "chatml" in [model], or a file'
        )


def long_prompts(environments: Environments, chat: ChatFormat, longest: int) -> Iterator[str]:
    """Name the listed problems whose prompts leave no room in ``longest`` tokens.

    Raises TaskError when no problem of an environment fits.
    """
    for name, source in environments.tasks().sources.items():
        if not isinstance(source, ListedTasks):
            continue
        for kind, listed in (("training", source.trained), ("held-out", source.held_out)):
            problems = [replace(problem, environment=name) for problem in listed]
            found = chat.too_long(problems, longest)
            if not found:
                continue
            named = ", ".join(f"{problem.id} ({tokens} tokens)" for problem, tokens in found[:NAMED_PROBLEMS])
            limit = f"a sequence of {longest} tokens has no room for the prompts of"
            if len(found) == len(problems):
                remedy = "serve a longer model or more kv_tokens, or shorten the problems"
                raise TaskError(
                    f"environment {name!r}: {limit} all {len(found)} {kind} problems, {named} ...; {remedy}"
                )
            yield f"{limit} {len(found)} of {len(problems)} {kind} problems: {named}"
