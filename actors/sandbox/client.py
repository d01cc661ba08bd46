"""The sandbox: runs model code, or judges answers, in forked children of warm interpreters."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import trio

from actors.sandbox.interpreter import Interpreter, WarmUpError
from agent_rl.messages import ToolOutcome

GRACE_SECONDS = 10.0
"""How much longer than a call's own limit its interpreter may be silent before it is held to hang, and replaced."""
ATTEMPTS = 2
"""An interpreter that dies takes calls with it that did nothing wrong: they are tried once more."""
WARM_UP_ATTEMPTS = 3
"""Warm-ups that may fail in a row before the sandbox gives up."""

UNAVAILABLE = {
    "outcome": "unavailable",
    "stdout": "",
    "stderr": "No interpreter was there to run the call, or each that ran it died.\n",
    "value": "",
    "run_seconds": 0.0,
    "signal": 0,
}
"""What takes the place of a server's reply when there is none."""


@dataclass(frozen=True, slots=True)
class ExecutionLimits:
    """What one call may use. Beyond a limit it ends as ``timeout`` (wall, CPU), ``memory_limit`` or ``output_limit``.

    ``cpu_seconds`` is rounded up to whole seconds. ``memory_bytes`` is address space on top of the warm interpreter's.
    ``output_bytes`` holds for stdout, stderr and the value each. ``processes`` does not bind where the user is root.
    """

    wall_seconds: float = 4.0
    cpu_seconds: float = 4.0
    memory_bytes: int = 512 << 20
    output_bytes: int = 256 << 10
    file_bytes: int = 16 << 20
    open_files: int = 64
    processes: int = 32


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """How a call ended. ``value`` is the representation of the last expression's value, empty for None.

    A traceback stands at the end of ``stderr``. ``run_seconds`` is the wall time of the child, ``queue_seconds`` all
    else between asking and getting the result.
    """

    outcome: ToolOutcome
    stdout: str = ""
    stderr: str = ""
    value: str = ""
    queue_seconds: float = 0.0
    run_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A judgement. ``failure`` names a fault of the checker itself; then ``equal`` says nothing.

    ``method`` is ``exact`` or ``symbolic``, or why the answer could not be judged within its limits and so counts as
    not equal: ``timeout``, ``memory_limit``, ``output_limit`` or ``crashed``.
    """

    equal: bool
    method: str
    failure: str
    seconds: float


class Sandbox:
    """A pool of warm interpreters. Each call runs in a child of its own, forked, limited, and killed at its deadline.

    ``interpreters`` processes run up to ``children`` calls each at a time; further calls wait in order of arrival.
    ``warm_modules`` are imported before the first call, so that calls need not. Interpreters of a ``checker`` judge
    answers and never run model code; others never see an answer.

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
        limits: ExecutionLimits = ExecutionLimits(),
        checker: bool = False,
        warm_seconds: float = 60.0,
    ) -> None:
        self._interpreters = interpreters
        self._modules = tuple(warm_modules)
        self._limits = limits
        self._checker = checker
        self._warm_seconds = warm_seconds
        self._slots = trio.Semaphore(interpreters * children)
        self._children = children
        self._ready: list[Interpreter] = []
        self._became_ready = trio.Event()
        self._counts: Counter[str] = Counter()
        self._seconds: Counter[str] = Counter()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the interpreters until cancelled; started once all are warm.

        A dead one is replaced. Raises WarmUpError (in groups) when that fails several times in a row.
        """
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as starting:
                for _ in range(self._interpreters):
                    starting.start_soon(nursery.start, self._keep_one)
            task_status.started()

    async def execute(self, code: str, stdin: str = "", *, limits: ExecutionLimits | None = None) -> ExecutionResult:
        """Run ``code`` with ``stdin`` as its standard input. Never raises for what the code does."""
        if self._checker:
            raise TypeError("a checker runs no model code")
        reply, queue_seconds = await self._call({"code": code, "stdin": stdin}, limits or self._limits)
        return ExecutionResult(
            outcome=reply["outcome"],
            stdout=reply["stdout"],
            stderr=reply["stderr"],
            value=reply["value"],
            queue_seconds=queue_seconds,
            run_seconds=reply["run_seconds"],
        )

    async def check(self, gold: str, prediction: str) -> CheckResult:
        """Judge ``prediction`` against ``gold``. An answer that takes too long to judge, or too much, is not equal."""
        if not self._checker:
            raise TypeError("only a checker judges answers")
        reply, queue_seconds = await self._call({"gold": gold, "prediction": prediction}, self._limits)
        outcome, failure = reply["outcome"], ""
        if outcome == "unavailable" or (outcome == "killed" and reply["signal"] == signal.SIGKILL):
            failure = f"{outcome}: {reply['stderr']}"  # nothing the answer could have done
        method, _, verdict = reply["value"].partition(" ") if outcome == "success" else (outcome, "", "")
        if outcome in ("killed", "error"):
            method = "crashed"
        return CheckResult(verdict == "equal", method, failure, queue_seconds + reply["run_seconds"])

    @property
    def figures(self) -> dict[str, float]:
        """By name: totals of calls, outcomes, seconds, restarts, retries; what is ready, in flight, waiting now."""
        now = {
            "interpreters": len(self._ready),
            "in_flight": sum(interpreter.in_flight for interpreter in self._ready),
            "waiting": self._slots.statistics().tasks_waiting,
        }
        return {name: float(value) for name, value in {**self._counts, **self._seconds, **now}.items()}

    def cpu_seconds(self) -> float:
        """Processor time of the interpreters that live now and of all children they have reaped."""
        return sum(interpreter.cpu_seconds() for interpreter in self._ready)

    async def _keep_one(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        failures, started = 0, False
        while True:
            interpreter = Interpreter(modules=self._modules, checker=self._checker, warm_seconds=self._warm_seconds)
            try:
                async with trio.open_nursery() as nursery:
                    await nursery.start(interpreter.run)
                    failures = 0
                    self._ready.append(interpreter)
                    self._became_ready.set()
                    self._became_ready = trio.Event()
                    if not started:
                        started = True
                        task_status.started()
            except* WarmUpError:
                failures += 1
                if failures == WARM_UP_ATTEMPTS:
                    raise
            finally:
                if interpreter in self._ready:
                    self._ready.remove(interpreter)
            self._counts["restarts"] += 1

    async def _call(self, request: dict[str, Any], limits: ExecutionLimits) -> tuple[dict[str, Any], float]:
        """The server's reply, or one that says unavailable, and the seconds that were not the child's."""
        asked = trio.current_time()
        message = {**request, "limits": asdict(limits)}
        reply = None
        async with self._slots:
            for attempt in range(ATTEMPTS):
                interpreter = await self._pick()
                if interpreter is None:
                    break
                self._counts["retries"] += attempt
                reply = await interpreter.call(message, limits.wall_seconds + GRACE_SECONDS)
                if reply is not None:
                    break
        if reply is None:
            reply = dict(UNAVAILABLE)
        queue_seconds = max(0.0, trio.current_time() - asked - reply["run_seconds"])
        self._counts["calls"] += 1
        self._counts[reply["outcome"]] += 1
        self._seconds["run_seconds"] += reply["run_seconds"]
        self._seconds["queue_seconds"] += queue_seconds
        return reply, queue_seconds

    async def _pick(self) -> Interpreter | None:
        """The least busy interpreter; None when none becomes ready within the time a warm-up may take."""
        with trio.move_on_after(self._warm_seconds):
            while True:
                ready = [interpreter for interpreter in self._ready if interpreter.ready]
                if ready:
                    return min(ready, key=lambda interpreter: interpreter.in_flight)
                await self._became_ready.wait()
        return None
