"""The sandbox: runs model code in isolated, forked children of warm interpreters."""

from __future__ import annotations

import itertools
import math
import re
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import trio
from pydantic import BaseModel, Field, ValidationError

from actors.fair_queue import FairQueue
from actors.sandbox.owner.interpreter import (
    Ended,
    Ending,
    ExecutionLimits,
    Interpreter,
    NotStartedError,
    ending_of,
    text_of,
)
from actors.sandbox.owner.pool import ATTEMPTS, GRACE_SECONDS, UNAVAILABLE, Pool, PoolSettings
from actors.sandbox.wire import CPU_TIMEOUT, NO_VERDICT, TIMEOUT
from agent_rl.environments.base import ToolOutput
from agent_rl.tool_protocols.base import Program, Run

REMEMBERED = 4096
"""The most sessions that are remembered, alive or not."""
REPLAYS = 10
"""A rollout's cells are run again for the time limits of so many cells, in all; then its notebook is lost."""
REPLAY_SHARE = 4
"""One place in so many is for cells that are run again. They take no place of other calls."""
RESULT_CHARACTERS = 1 << 26
"""Characters of results, over all sessions, that are kept for repeated requests."""
FAILED = 1
"""The exit status of a Python program that ends with an exception."""


@dataclass(eq=False, slots=True)
class Session:
    """A rollout's session. ``cells`` have taken effect in its live process; ``lost`` says why there is none.

    ``took`` has the seconds of its cells when they first ran, ``replayed`` those of all cells that were run again.
    """

    name: str
    number: int = 0
    interpreter: Interpreter | None = None
    cells: list[str] = field(default_factory=list)
    took: dict[int, float] = field(default_factory=dict)
    replayed: float = 0.0
    lost: str = ""
    results: dict[Hashable, ToolOutput] = field(default_factory=dict)
    characters: int = 0
    lock: trio.Lock = field(default_factory=trio.Lock)

    @property
    def alive(self) -> bool:
        """Whether its process can take a cell."""
        return self.interpreter is not None and self.interpreter.ready

    def holds(self, cells: list[str]) -> bool:
        """Whether these cells, and no others, have taken effect in its live process."""
        return self.alive and self.cells == cells

    @property
    def why(self) -> str:
        """Why its last process ended, in brackets; empty if unknown."""
        return f" ({self.lost})" if self.lost else ""

    def lose(self, why: str) -> None:
        """Record that the process has ended."""
        if self.interpreter is not None:
            self.interpreter.end_session(self.number)
            self.interpreter = None
            self.lost = why


class SessionTable:
    """At most ``most`` live sessions. The one idle for longest is evicted first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._numbers = itertools.count(1)
        self._sessions: OrderedDict[str, Session] = OrderedDict()  # least recently used first
        self._characters = 0
        self.evicted = 0

    def get(self, name: str) -> Session:
        """The session of that name, or a new one. It becomes the most recently used."""
        session = self._sessions.setdefault(name, Session(name))
        self._sessions.move_to_end(name)
        if len(self._sessions) > REMEMBERED:
            oldest = next((old for old in self._sessions.values() if not old.lock.locked()), None)
            if oldest is not None:
                oldest.lose("evicted")
                self._forget_results(oldest)
                del self._sessions[oldest.name]
        return session

    def begin(self, session: Session, interpreter: Interpreter) -> None:
        """The session's process starts in ``interpreter``: evict others to make room."""
        alive = [other for other in self._sessions.values() if other.alive and other is not session]
        for other in alive:
            if len(alive) < self._most:
                break
            if not other.lock.locked():
                other.lose("too many sessions were open, and it was idle longest")
                alive = [rest for rest in alive if rest is not other]
                self.evicted += 1
        session.number, session.interpreter, session.cells = next(self._numbers), interpreter, []

    def end(self, name: str) -> None:
        """The rollout has ended: forget its session."""
        session = self._sessions.pop(name, None)
        if session is not None:
            session.lose("ended")
            self._forget_results(session)

    def keep(self, session: Session, request: Hashable, result: ToolOutput) -> None:
        """Keep a result for repeated requests. Beyond the bound, drop results of the session idle for longest."""
        if self._sessions.get(session.name) is not session:  # the session has ended
            return
        session.results[request] = result
        size = len(result.stdout) + len(result.stderr) + len(result.value)
        session.characters += size
        self._characters += size
        if self._characters > RESULT_CHARACTERS:
            for old in self._sessions.values():
                if old is not session and self._characters > RESULT_CHARACTERS:
                    self._forget_results(old)

    def _forget_results(self, session: Session) -> None:
        self._characters -= session.characters
        session.characters = 0
        session.results.clear()

    @property
    def alive(self) -> int:
        """Number of live sessions."""
        return sum(session.alive for session in self._sessions.values())

    @property
    def idle(self) -> int:
        """Number of live sessions that wait for their next cell."""
        return sum(session.alive and not session.lock.locked() for session in self._sessions.values())


REPORT_BYTES = 1024
"""Of a program's report, besides fetched files."""

__all__ = ["ExecutionLimits", "Sandbox"]

IMPLIED = {"lambdify": "numpy"}
"""Names in code that load a module without naming it: sympy's ``lambdify`` imports numpy when it is installed."""
GONE = "its process was gone"
ENDS_BETWEEN = replace(
    UNAVAILABLE, outcome="error", stderr="The session's process ends between its cells, also when they are run again.\n"
)
"""The same for a live interpreter whose session process ends between cells: the cells end the process."""


class Weights:
    """The module sets of interpreters: none, each module alone, the first two, the first three, and so on.

    Interpreters for all subsets would cost more than they save.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        alone = [(module,) for module in modules]
        first = [tuple(modules[:count]) for count in range(len(modules) + 1)]
        self.sets: list[tuple[str, ...]] = sorted({*alone, *first}, key=lambda loaded: (len(loaded), loaded))
        """The lightest first; the last one has all modules."""
        names = [*modules, *(name for name, module in IMPLIED.items() if module in modules)]
        self._names = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b") if names else None

    def lightest(self, code: str) -> int:
        """Index in ``sets`` of the first set with every module that the code names."""
        if self._names is None:
            return 0
        named = {IMPLIED.get(name, name) for name in self._names.findall(code)}
        return next(place for place, loaded in enumerate(self.sets) if named.issubset(loaded))


class Sandbox(Pool):
    """A pool whose interpreters run code. The code sees nothing of this project, and never an answer.

    There are interpreters of several weights: bare, with one of the ``warm_modules``, with the first two, and so on. A
    call goes to the lightest one with every warm module that its code names, because loaded modules make a fork more
    expensive. ``sessions``: the most live notebooks; ``options``: fields of `PoolSettings`.

    Use::

        async with trio.open_nursery() as nursery:
            await nursery.start(sandbox.run)
            result = await sandbox.execute("print(6 * 7)")
    """

    def __init__(self, *, warm_modules: Sequence[str] = (), sessions: int = 64, **options: Any) -> None:
        self._weights = Weights(warm_modules)
        self._sessions = SessionTable(sessions)
        settings = PoolSettings(**options)
        replays = max(1, settings.interpreters * settings.children // REPLAY_SHARE)
        self._replays = FairQueue(replays)
        super().__init__(settings, self._weights.sets, more=sessions + replays)

    async def execute(
        self, code: str, stdin: str = "", *, limits: ExecutionLimits | None = None, name: str = ""
    ) -> ToolOutput:
        """Run ``code`` with ``stdin`` as its standard input. The code's errors are results and never raise.

        When calls queue, calls of different ``name`` take turns.
        """
        bounds = limits or self.settings.limits
        asked = trio.current_time()
        ending, seconds = await self._call({"code": code}, stdin, bounds, name, self._weights.lightest(code))
        return self._result(ending, asked, seconds)

    async def run_program(self, program: Program, limits: ExecutionLimits) -> Run:
        """Run Python code as a program of its own: with files, an exit status and exit handlers, without a value.

        The program's errors are results and never raise.
        """
        asked = trio.current_time()
        parts = [dict(program.files), list(program.fetch), limits.output_bytes - REPORT_BYTES, limits.wall_seconds]
        request, weight = {"code": program.code, "program": parts}, self._weights.lightest(program.names)
        ending, seconds = await self._call(request, program.stdin, limits, "", weight)
        self._result(ending, asked, seconds)
        return run_of(ending, limits)

    async def run_cell(
        self,
        session: str,
        key: str | int,
        code: str,
        earlier: Sequence[str] = (),
        *,
        limits: ExecutionLimits | None = None,
    ) -> ToolOutput:
        """Run ``code`` as the next cell of a session, once: repeated with the same ``key``, returns the first result.

        A rollout that goes on elsewhere may write another cell in the turn that was under way: the same ``key`` with
        other code, or after other cells, is another request.

        ``earlier`` are the cells that make up the session's state: those whose result said ``kept``. They run again
        when the session's process is not alive here: ended by its last cell, evicted, or lost with another executor. A
        note in the result then tells the model.
        """
        state = self._sessions.get(session)
        asked = trio.current_time()
        request = (key, hash((code, *earlier)))
        async with state.lock:
            stored = state.results.get(request)
            if stored is None:
                stored = await self._run_cell(state, code, list(earlier), limits or self.settings.limits, asked)
                self._sessions.keep(state, request, stored)
            return stored

    def end_session(self, session: str) -> None:
        """The session is no longer needed."""
        self._sessions.end(session)

    @property
    def figures(self) -> dict[str, float]:
        """Figures of the pool, with the number of live sessions and of evictions."""
        figures = super().figures
        alive, evicted = float(self._sessions.alive), float(self._sessions.evicted)
        children = figures["children"] + self._sessions.idle
        return {**figures, "children": children, "sessions": alive, "sessions_evicted": evicted}

    async def _run_cell(
        self, session: Session, code: str, earlier: list[str], limits: ExecutionLimits, asked: float
    ) -> ToolOutput:
        """Run a cell in the session's live process, or in a new process that first runs the earlier cells."""
        note, ending, seconds, ended = "", UNAVAILABLE, 0.0, None
        for _ in range(ATTEMPTS):
            if earlier and not session.holds(earlier):
                async with self._replays.place(session.name):
                    note, again = await self._replay(session, code, earlier, limits)
                    if again is None:
                        continue
                    if not again.goes_on:
                        ending = again
                        break
                    ended = await self._next_cell(session, code, earlier, limits)
            else:
                ended = await self._next_cell(session, code, earlier, limits)
            if ended is not None:
                ending, seconds = ending_of(ended, limits.output_bytes), ended.seconds
                break
            if session.interpreter is None and not session.lost:  # there was none to take
                break
        if ending is UNAVAILABLE and session.lost == GONE:
            ending = ENDS_BETWEEN
        if ending.goes_on:
            session.cells = [*earlier, code]
            session.took[hash(code)] = max(seconds, session.took.get(hash(code), 0.0))
        else:
            session.lose(f"its last cell ended as {ending.outcome}")
            note += "[The session's process has ended; its state is that before this cell.]\n"
        self._counts["cells"] += 1
        return replace(self._result(ending, asked, seconds), kept=ending.goes_on, note=note)

    async def _next_cell(
        self, session: Session, code: str, earlier: list[str], limits: ExecutionLimits
    ) -> Ended | None:
        """Run a cell in a place: in the live process, or the first one in a new process; None when there is neither."""
        async with self._queue.place(session.name):
            fresh = not session.holds(earlier)
            if fresh and (earlier or not await self._begin(session, code)):  # it was lost while it waited
                return None
            return await self._in_session(session, {"code": code, "cell": len(session.cells)}, limits, fresh=fresh)

    async def _begin(self, session: Session, code: str) -> bool:
        """Give the session an interpreter that suits the code, where one gets ready. Called in a place, so that no
        more sessions begin than there are places.
        """
        session.lose("the result of a cell was lost" if session.alive else "its interpreter died")
        interpreter = await self._pick(self._weights.lightest(code))
        if interpreter is None:
            session.lost = ""
            return False
        self._sessions.begin(session, interpreter)
        return True

    async def _replay(
        self, session: Session, code: str, earlier: list[str], limits: ExecutionLimits
    ) -> tuple[str, Ending | None]:
        """Run the earlier cells again: a note for the model, and how they ended; None when the process is gone.

        They may take twice as long as at first, where they first ran here, within what is left to the rollout.
        """
        if not await self._begin(session, "\n".join([*earlier, code])):
            return "", UNAVAILABLE
        note = f"[The session was lost{session.why}: its {len(earlier)} earlier cells were run again.]\n"
        self._counts["sessions_rebuilt"] += 1
        first = sum(min(limits.wall_seconds, 2 * session.took.get(hash(cell), math.inf) + 1) for cell in earlier)
        left, again = REPLAYS * limits.wall_seconds - session.replayed, UNAVAILABLE
        if left > 0:
            began, patient = trio.current_time(), replace(limits, wall_seconds=min(first, left))
            ended = await self._in_session(session, {"code": "", "earlier": earlier}, patient, fresh=True)
            session.replayed += trio.current_time() - began
            if ended is None:
                return note, None
            again = ending_of(ended, limits.output_bytes)
        if again.goes_on:
            session.cells = earlier
            return note, again
        why = again.outcome if left > 0 else "this was done too often, and they took too long"
        said = f"The earlier cells could not be run again: {why}.\n"
        return note, replace(again, outcome="error", stdout="", stderr=said, value="")

    async def _in_session(
        self, session: Session, request: dict[str, Any], limits: ExecutionLimits, *, fresh: bool
    ) -> Ended | None:
        """Run a request in a new session process or in the live one; None when the live one is gone."""
        if session.interpreter is None:  # its rollout has ended meanwhile
            return None
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


class Report(BaseModel):
    """What a program's child says of its end (``inside/child.py``)."""

    status: int = Field(default=0, ge=0, le=255)
    files: dict[str, str] = {}
    fault: str = ""


def run_of(ending: Ending, limits: ExecutionLimits) -> Run:
    """How a program ended, by: the server's verdict, the exit status, and the child's report. Output is cut.

    A program that ended after its time, before it could be killed, counts as one at its time limit. The
    child's report can be forged, and a program that ends with ``os._exit`` leaves none.
    """
    ended = ending.ended
    if ended is None:
        return Run(None, fault=ending.stderr.strip())
    stdout, stderr = (text_of(data, limits.output_bytes) for data in (ended.stdout, ended.stderr))
    if ended.verdict in (TIMEOUT, CPU_TIMEOUT) or ended.seconds >= limits.wall_seconds:
        return Run(None, stdout, stderr, ended.seconds)
    status, report = ended.status, Report()
    if ended.verdict == NO_VERDICT and not status:
        said, _, text = ended.report.partition(b"\n")
        if said in (b"error", b"memory_limit"):
            status = FAILED
        elif said == b"success":
            try:
                report = Report.model_validate_json(text)
                status = report.status
            except ValidationError:
                status = FAILED
    elif ended.out_of_memory:
        stderr += "The memory of all calls together was used up, and this one was ended.\n"
    cut = len(ended.stdout) > limits.output_bytes
    return Run(status, stdout, stderr, ended.seconds, report.files, report.fault, cut)
