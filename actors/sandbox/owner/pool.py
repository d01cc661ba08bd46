"""A pool of warm interpreters and the calls in their children: the base for running code and calling functions."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import trio

from actors.fair_queue import FairQueue
from actors.sandbox.isolation.control_groups import WEIGHT, ControlGroups, Wanted, control_groups
from actors.sandbox.isolation.levels import Isolation, Level, levels_to_try, unavailable
from actors.sandbox.owner.interpreter import (
    Ending,
    ExecutionLimits,
    Importable,
    Interpreter,
    InterpreterConfig,
    NoIsolationError,
    NotStartedError,
    Scratch,
    WarmUpError,
    ending_of,
)
from agent_rl.environments.base import ToolOutput

GRACE_SECONDS = 10.0
"""Seconds beyond a call's own limit. A silent interpreter is then considered hung and is replaced."""
ATTEMPTS = 2
"""Attempts for a call: an interpreter that dies takes other calls with it, and these are tried once more."""
WARM_UP_ATTEMPTS = 3
"""Failed warm-ups in a row after which the pool gives up."""

TASKS_OF_AN_INTERPRETER = 16
"""Server, forker, maker of slots, waiting children with their slots, and processes that remove leftover files."""

UNAVAILABLE = Ending(
    "unavailable", "", "No interpreter was there to run the call, or each that ran it died.\n", "", 0, goes_on=False
)
"""The result of a call that no interpreter could run."""


DEFAULT_LIMITS, DEFAULT_SCRATCH = ExecutionLimits(), Scratch()


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Up to ``interpreters * children`` calls run at once. ``limits`` hold for calls without limits of their own.

    ``memory_bytes`` (default: half of the memory) and ``weight`` hold for all calls together, on hosts with control
    groups. Calls do not see the ``hidden`` files and folders, unless at the level ``limits``.
    """

    interpreters: int = 1
    children: int = 8
    limits: ExecutionLimits = DEFAULT_LIMITS
    warm_seconds: float = 60.0
    isolation: Isolation = "host"
    scratch: Scratch = DEFAULT_SCRATCH
    control_groups: Wanted = "host"
    memory_bytes: int | None = None
    weight: int = WEIGHT
    hidden: tuple[str, ...] = ()


class Pool:
    """Warm interpreters. Each call runs in its own forked, isolated child, which is killed at its deadline.

    Calls beyond the limit wait, and calls of different names take turns. There are ``interpreters`` for each of several
    sets of loaded modules. Those of the first set start at once, the others when they are first needed. On hosts with
    control groups, all of them together have a limit of memory, and of processes according to the limits of calls.
    """

    def __init__(
        self,
        settings: PoolSettings,
        module_sets: Sequence[tuple[str, ...]],
        imports: Importable | None = None,
        more: int = 0,
    ) -> None:
        """``imports``: what called functions may import; None for running code.

        ``more``: children beyond the places, such as live sessions.
        """
        self.settings = settings
        self._sets = module_sets
        self._imports = imports
        self._queue = FairQueue(settings.interpreters * settings.children)
        self._most_children = settings.interpreters * settings.children + more
        self._ready: list[Interpreter] = []
        self._became_ready = trio.Event()
        self._needed = [trio.Event() for _ in module_sets]
        self._counts = Counter(dict.fromkeys(("calls", "cells", "restarts", "retries", "sessions_rebuilt"), 0))
        self._seconds = {"run_seconds": 0.0, "queue_seconds": 0.0}
        self.level: Level | None = None
        self.groups = ControlGroups()
        self.reasons: list[str] = []
        """Why each stronger level of isolation is not available."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the interpreters until cancelled. Started once the bare ones are warm. A dead interpreter is replaced.

        Raises (in groups) IsolationError and ControlGroupsError when a configured or required part is not available,
        and WarmUpError when a module does not exist or several warm-ups in a row fail.
        """
        for module in self._sets[-1]:
            if importlib.util.find_spec(module.partition(".")[0]) is None:
                raise WarmUpError(f"No module named {module!r}: it is among the warm modules")
        settings = self.settings
        self._needed[0].set()
        async with (
            control_groups(
                settings.control_groups, settings.memory_bytes, self._most_tasks(), settings.weight
            ) as self.groups,
            trio.open_nursery() as nursery,
        ):
            await nursery.start(self._keep_one, 0)  # the first one finds the level
            async with trio.open_nursery() as starting:
                for _ in range(1, self.settings.interpreters):
                    starting.start_soon(nursery.start, self._keep_one, 0)
            for weight in range(1, len(self._sets)):
                nursery.start_soon(self._keep_when_needed, weight)
            task_status.started()

    @property
    def figures(self) -> dict[str, float]:
        """By name: totals of calls, outcomes, seconds, restarts, retries; numbers ready, in flight, waiting, alive."""
        now = {
            "interpreters": len(self._ready),
            "in_flight": sum(interpreter.in_flight for interpreter in self._ready),
            "waiting": self._queue.waiting,
            "children": sum(interpreter.in_flight for interpreter in self._ready),
        }
        return {name: float(value) for name, value in {**self._counts, **self._seconds, **now}.items()}

    def cpu_seconds(self) -> float:
        """Processor seconds of live interpreters and of all children they have reaped."""
        return sum(interpreter.cpu_seconds() for interpreter in self._ready)

    def _most_tasks(self) -> int:
        """The most processes and threads within all limits: more belong to calls that no limit binds."""
        per_interpreter = TASKS_OF_AN_INTERPRETER + 2 * self._most_children  # the inits of slots, and their middlemen
        return (
            self.settings.interpreters * len(self._sets) * per_interpreter
            + self._most_children * self.settings.limits.processes
        )

    async def _keep_when_needed(self, weight: int) -> None:
        await self._needed[weight].wait()
        async with trio.open_nursery() as nursery:
            for _ in range(self.settings.interpreters):
                nursery.start_soon(self._keep_one, weight)

    async def _keep_one(self, weight: int, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        failures, started = 0, False
        levels = list(levels_to_try(self.settings.isolation)) if self.level is None else [self.level]
        while True:
            interpreter = Interpreter(
                InterpreterConfig(
                    self._sets[weight],
                    self._imports,
                    self._most_children,
                    levels[0],
                    self.settings.warm_seconds,
                    self.groups,
                    self.settings.scratch,
                    self.settings.hidden,
                )
            )
            refused: list[NoIsolationError] = []
            try:
                async with trio.open_nursery() as nursery:
                    await nursery.start(interpreter.run)
                    failures, self.level = 0, levels[0]
                    self._ready.append(interpreter)
                    self._became_ready.set()
                    self._became_ready = trio.Event()
                    if not started:
                        started = True
                        task_status.started()
            except* NoIsolationError as errors:
                refused = _leaves(errors)
            except* WarmUpError:
                failures += 1
                if failures == WARM_UP_ATTEMPTS:
                    raise
            finally:
                if interpreter in self._ready:
                    self._ready.remove(interpreter)
            if refused:
                self.reasons.append(f"{levels[0]}: {refused[0]}")
                refusal = unavailable(levels.pop(0), str(refused[0]))
                if not levels:
                    raise refusal
            else:
                self._counts["restarts"] += 1

    async def _call(
        self,
        request: dict[str, Any],
        stdin: str,
        limits: ExecutionLimits,
        name: str,
        weight: int,
        queue: FairQueue | None = None,
    ) -> tuple[Ending, float]:
        """How the call ended, or that no interpreter could run it, and the seconds of the child.

        ``queue``: where it waits for a place; None: with all others.
        """
        ending, seconds = UNAVAILABLE, 0.0
        async with (queue or self._queue).place(name):
            for attempt in range(ATTEMPTS):
                interpreter = await self._pick(weight)
                if interpreter is None:
                    break
                self._counts["retries"] += attempt
                try:
                    ended = await interpreter.call(request, stdin, limits, limits.wall_seconds + GRACE_SECONDS)
                except NotStartedError as error:
                    ending = replace(UNAVAILABLE, stderr=f"The call could not be started: {error}\n")
                    continue
                if ended is not None:
                    ending, seconds = ending_of(ended, limits.output_bytes), ended.seconds
                    break
        return ending, seconds

    def _result(self, ending: Ending, asked: float, seconds: float) -> ToolOutput:
        """The result, counted in the figures, with the time spent outside the child."""
        queue_seconds = max(0.0, trio.current_time() - asked - seconds)
        self._counts["calls"] += 1
        self._counts[ending.outcome] += 1
        self._seconds["run_seconds"] += seconds
        self._seconds["queue_seconds"] += queue_seconds
        return ToolOutput(
            ending.outcome, ending.stdout, ending.stderr, ending.value, run_seconds=seconds, queue_seconds=queue_seconds
        )

    async def _pick(self, weight: int) -> Interpreter | None:
        """The least busy interpreter; None when none becomes ready within the time of a warm-up."""
        self._needed[weight].set()
        modules = self._sets[weight]
        with trio.move_on_after(self.settings.warm_seconds):
            while True:
                ready = [one for one in self._ready if one.ready and one.config.modules == modules]
                if ready:
                    return min(ready, key=lambda interpreter: interpreter.in_flight)
                await self._became_ready.wait()
        return None


def _leaves(group: BaseExceptionGroup[Any]) -> list[Any]:
    """The exceptions in a group of groups."""
    return [
        leaf
        for part in group.exceptions
        for leaf in (_leaves(part) if isinstance(part, BaseExceptionGroup) else [part])
    ]
