"""The sandbox: runs model code, or judges answers, in isolated, forked children of warm interpreters."""

from __future__ import annotations

import importlib.util
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import trio

from actors.fair_queue import FairQueue
from actors.sandbox.isolation.control_groups import WEIGHT, ControlGroups, Wanted, control_groups
from actors.sandbox.isolation.levels import Isolation, Level, levels_to_try, unavailable
from actors.sandbox.limits import CheckResult, ExecutionLimits, ExecutionResult
from actors.sandbox.owner.choice import Weights
from actors.sandbox.owner.interpreter import (
    Ended,
    Interpreter,
    InterpreterConfig,
    NoIsolationError,
    NotStartedError,
    Scratch,
    WarmUpError,
)
from actors.sandbox.owner.judging import Judgement, judge
from actors.sandbox.owner.sessions import Session, SessionTable

__all__ = ["CheckResult", "ExecutionLimits", "ExecutionResult", "Sandbox"]

GRACE_SECONDS = 10.0
"""How much longer than a call's own limit its interpreter may be silent before it is held to hang, and replaced."""
ATTEMPTS = 2
"""An interpreter that dies takes calls with it that did nothing wrong: they are tried once more."""
WARM_UP_ATTEMPTS = 3
"""Warm-ups that may fail in a row before the sandbox gives up."""

TASKS_OF_AN_INTERPRETER = 16
"""Server, forker, the maker of its slots, its children that wait, with their slots, and those that remove what calls leave."""

DEFAULT_LIMITS, DEFAULT_SCRATCH = ExecutionLimits(), Scratch()
UNAVAILABLE = Judgement(
    "unavailable", "", "No interpreter was there to run the call, or each that ran it died.\n", "", 0, goes_on=False
)
"""What takes the place of a call's end when there is none."""
GONE = "its process was gone"
ENDS_BETWEEN = replace(
    UNAVAILABLE, outcome="error", stderr="The session's process ends between its cells, also when they are run again.\n"
)
"""The same when the interpreter lives and the session's process does not: then the cells end it."""


class Sandbox:
    """A pool of warm interpreters. Each call runs in a child of its own, forked, isolated, and killed at its deadline.

    Up to ``interpreters * children`` calls run at once; further ones wait, those of different sessions in turn. There are
    ``interpreters`` of each weight: bare, with one of the ``warm_modules``, with the first two, and so on. A call goes to the
    lightest that has every warm module its code names, since the cost of a fork grows with what is loaded; the heavier ones
    are started when they are first needed. Where the host has control groups, all of them together are limited to ``memory_bytes``
    (half of the memory there is) and to the processes that the limits of calls allow. Interpreters of a ``checker`` judge answers and never run model
    code; others never see an answer.

    Use::

        async with trio.open_nursery() as nursery:
            await nursery.start(sandbox.run)
            result = await sandbox.execute("print(6 * 7)")
    """

    def __init__(
        self,
        *,
        interpreters: int = 1,
        children: int = 8,
        warm_modules: Sequence[str] = (),
        limits: ExecutionLimits = DEFAULT_LIMITS,
        checker: bool = False,
        warm_seconds: float = 60.0,
        isolation: Isolation = "host",
        sessions: int = 64,
        scratch: Scratch = DEFAULT_SCRATCH,
        control_groups: Wanted = "host",
        memory_bytes: int | None = None,
        weight: int = WEIGHT,
    ) -> None:
        self._interpreters = interpreters
        self._weights = Weights(warm_modules)
        self._limits = limits
        self._checker = checker
        self._warm_seconds = warm_seconds
        self._isolation = isolation
        self._scratch = scratch
        self._wanted_groups, self._memory_bytes, self._weight = control_groups, memory_bytes, weight
        self._queue = FairQueue(interpreters * children)
        self._most_children = interpreters * children + (0 if checker else sessions)
        self._sessions = SessionTable(sessions)
        self._ready: list[Interpreter] = []
        self._became_ready = trio.Event()
        self._needed = [trio.Event() for _ in self._weights.sets]
        self._counts = Counter(dict.fromkeys(("calls", "cells", "restarts", "retries", "sessions_rebuilt"), 0))
        self._seconds = {"run_seconds": 0.0, "queue_seconds": 0.0}
        self.level: Level | None = None
        self.groups = ControlGroups()
        self.reasons: list[str] = []
        """Why levels of isolation stronger than the one in force can't be had."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the interpreters until cancelled; started once the bare ones are warm.

        A dead one is replaced. Raises (in groups) IsolationError where the configured isolation can't be had,
        ControlGroupsError where required control groups can't, and WarmUpError when modules don't exist or warming up fails several times in a row.
        """
        for module in self._weights.sets[-1]:
            if importlib.util.find_spec(module.partition(".")[0]) is None:
                raise WarmUpError(f"No module named {module!r}: it is among the warm modules")
        self._needed[0].set()
        async with (
            control_groups(self._wanted_groups, self._memory_bytes, self._most_tasks(), self._weight) as self.groups,
            trio.open_nursery() as nursery,
        ):
            await nursery.start(self._keep_one, 0)  # it finds the level
            async with trio.open_nursery() as starting:
                for _ in range(1, self._interpreters):
                    starting.start_soon(nursery.start, self._keep_one, 0)
            for weight in range(1, len(self._weights.sets)):
                nursery.start_soon(self._keep_when_needed, weight)
            task_status.started()

    async def execute(
        self, code: str, stdin: str = "", *, limits: ExecutionLimits | None = None, name: str = ""
    ) -> ExecutionResult:
        """Run ``code`` with ``stdin`` as its standard input. Never raises for what the code does.

        Where there is a queue, calls of different ``name`` take turns.
        """
        if self._checker:
            raise TypeError("a checker runs no model code")
        bounds = limits or self._limits
        asked = trio.current_time()
        judgement, seconds = await self._call({"code": code}, stdin, bounds, name, self._weights.lightest(code))
        return self._result(judgement, asked, seconds)

    async def run_cell(
        self,
        session: str,
        cell: int,
        code: str,
        earlier: Sequence[str] = (),
        *,
        limits: ExecutionLimits | None = None,
    ) -> ExecutionResult:
        """Run ``code`` as cell number ``cell`` of a session, once: asked again, the first result is returned.

        ``earlier`` are the cells that the session's state consists of, those whose result said ``kept``. They are run again
        if its process is not alive here: ended by its last cell, evicted, or lost with another executor. The result's
        note tells the model so.
        """
        if self._checker:
            raise TypeError("a checker runs no model code")
        held = self._sessions.get(session)
        asked = trio.current_time()
        async with held.lock:
            stored = held.results.get(cell)
            if stored is None:
                stored = await self._run_cell(held, code, list(earlier), limits or self._limits, asked)
                self._sessions.keep(held, cell, stored)
            return stored

    def end_session(self, session: str) -> None:
        """The session is not wanted any more."""
        self._sessions.end(session)

    async def check(self, gold: str, prediction: str, *, name: str = "") -> CheckResult:
        """Judge ``prediction`` against ``gold``. An answer that takes too long to judge, or too much, is not equal.

        Where there is a queue, checks of different ``name`` take turns.
        """
        if not self._checker:
            raise TypeError("only a checker judges answers")
        asked = trio.current_time()
        judgement, _ = await self._call({"gold": gold, "prediction": prediction}, "", self._limits, name, 0)
        outcome, failure = judgement.outcome, ""
        killed = outcome in ("killed", "memory_limit") and judgement.signal == signal.SIGKILL
        if outcome == "unavailable" or killed:
            failure = f"{outcome}: {judgement.stderr}"  # nothing the answer could have done
        method, _, verdict = judgement.value.partition(" ") if outcome == "success" else (outcome, "", "")
        if outcome in ("killed", "error"):
            method = "crashed"
        return CheckResult(verdict == "equal", method, failure, trio.current_time() - asked)

    @property
    def figures(self) -> dict[str, float]:
        """By name: totals of calls, outcomes, seconds, restarts, retries; what is ready, in flight, waiting, alive now."""
        now = {
            "interpreters": len(self._ready),
            "in_flight": sum(interpreter.in_flight for interpreter in self._ready),
            "waiting": self._queue.waiting,
            "children": sum(interpreter.in_flight for interpreter in self._ready) + self._sessions.idle,
            "sessions": self._sessions.alive,
            "sessions_evicted": self._sessions.evicted,
        }
        return {name: float(value) for name, value in {**self._counts, **self._seconds, **now}.items()}

    def cpu_seconds(self) -> float:
        """Processor time of the interpreters that live now and of all children they have reaped."""
        return sum(interpreter.cpu_seconds() for interpreter in self._ready)

    def _most_tasks(self) -> int:
        """Processes and threads that there can be while every limit is kept: more are for those that no limit binds."""
        per_interpreter = TASKS_OF_AN_INTERPRETER + 2 * self._most_children  # inits of slots, and those who make them
        return (
            self._interpreters * len(self._weights.sets) * per_interpreter
            + self._most_children * self._limits.processes
        )

    async def _keep_when_needed(self, weight: int) -> None:
        await self._needed[weight].wait()
        async with trio.open_nursery() as nursery:
            for _ in range(self._interpreters):
                nursery.start_soon(self._keep_one, weight)

    async def _keep_one(self, weight: int, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        failures, started = 0, False
        levels = list(levels_to_try(self._isolation)) if self.level is None else [self.level]
        while True:
            interpreter = Interpreter(
                InterpreterConfig(
                    self._weights.sets[weight],
                    self._checker,
                    self._most_children,
                    levels[0],
                    self._warm_seconds,
                    self.groups,
                    self._scratch,
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
        self, request: dict[str, Any], stdin: str, limits: ExecutionLimits, name: str, weight: int
    ) -> tuple[Judgement, float]:
        """How the call ended, or that there was nobody to run it, and the seconds that the child took."""
        judgement, seconds = UNAVAILABLE, 0.0
        async with self._queue.place(name):
            for attempt in range(ATTEMPTS):
                interpreter = await self._pick(weight)
                if interpreter is None:
                    break
                self._counts["retries"] += attempt
                try:
                    ended = await interpreter.call(request, stdin, limits, limits.wall_seconds + GRACE_SECONDS)
                except NotStartedError as error:
                    judgement = replace(UNAVAILABLE, stderr=f"The call could not be started: {error}\n")
                    continue
                if ended is not None:
                    judgement, seconds = judge(ended, limits.output_bytes), ended.seconds
                    break
        return judgement, seconds

    async def _run_cell(
        self, session: Session, code: str, earlier: list[str], limits: ExecutionLimits, asked: float
    ) -> ExecutionResult:
        """Run a cell in the session's live process, or in a new one that first runs the earlier cells."""
        note, judgement, seconds = "", UNAVAILABLE, 0.0
        async with self._queue.place(session.name):
            for _ in range(ATTEMPTS):
                fresh = not session.alive or session.cells != len(earlier)
                if fresh:
                    session.lose("the result of a cell was lost" if session.alive else "its interpreter died")
                    interpreter = await self._pick(self._weights.lightest("\n".join([*earlier, code])))
                    if interpreter is None:
                        session.lost = ""
                        break
                    self._sessions.begin(session, interpreter)
                if fresh and earlier:
                    note = f"[The session was lost{session.why}: its {len(earlier)} earlier cells were run again.]\n"
                    self._counts["sessions_rebuilt"] += 1
                    patient = replace(limits, wall_seconds=limits.wall_seconds * len(earlier))
                    ended = await self._in_session(session, {"code": "", "earlier": earlier}, patient, fresh=True)
                    if ended is None:
                        continue
                    again = judge(ended, limits.output_bytes)
                    if not again.goes_on:
                        said = f"The earlier cells could not be run again: {again.outcome}.\n"
                        judgement = replace(again, outcome="error", stdout="", stderr=said, value="")
                        break
                    session.cells, fresh = len(earlier), False
                ended = await self._in_session(session, {"code": code, "cell": session.cells}, limits, fresh=fresh)
                if ended is not None:
                    judgement, seconds = judge(ended, limits.output_bytes), ended.seconds
                    break
            if judgement is UNAVAILABLE and session.lost == GONE:
                judgement = ENDS_BETWEEN
        if judgement.goes_on:
            session.cells = len(earlier) + 1
        else:
            session.lose(f"its last cell ended as {judgement.outcome}")
            note += "[The session's process has ended; its state is that before this cell.]\n"
        self._counts["cells"] += 1
        return replace(self._result(judgement, asked, seconds), kept=judgement.goes_on, note=note)

    async def _in_session(
        self, session: Session, request: dict[str, Any], limits: ExecutionLimits, *, fresh: bool
    ) -> Ended | None:
        """Run a request in the session's process, a fresh one or the one there is; None when that is gone."""
        assert session.interpreter is not None
        try:
            ended = await session.interpreter.call(
                {**request, "session": True},
                "",
                limits,
                limits.wall_seconds + GRACE_SECONDS,
                session.number,
                goes_on=not fresh,
            )
        except NotStartedError as error:
            session.lose(f"it could not be started: {error}")
            return None
        except trio.Cancelled:
            session.lose("its last cell was given up")
            raise
        if ended is None:
            session.lose(GONE if session.alive else "its interpreter died")
        return ended

    def _result(self, judgement: Judgement, asked: float, seconds: float) -> ExecutionResult:
        """Counted, and with the time that was not the child's."""
        queue_seconds = max(0.0, trio.current_time() - asked - seconds)
        self._counts["calls"] += 1
        self._counts[judgement.outcome] += 1
        self._seconds["run_seconds"] += seconds
        self._seconds["queue_seconds"] += queue_seconds
        return ExecutionResult(
            judgement.outcome, judgement.stdout, judgement.stderr, judgement.value, queue_seconds, seconds
        )

    async def _pick(self, weight: int) -> Interpreter | None:
        """The least busy interpreter; None when none becomes ready within the time a warm-up may take."""
        self._needed[weight].set()
        modules = self._weights.sets[weight]
        with trio.move_on_after(self._warm_seconds):
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
