"""Sessions: where they are alive, which cells they have run, and which is evicted. Pure bookkeeping."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

import trio

from actors.sandbox.owner.interpreter import Interpreter
from agent_rl.environments.base import ToolOutput

REMEMBERED = 4096
"""The most sessions that are remembered, alive or not."""
RESULT_CHARACTERS = 1 << 26
"""Characters of results, over all sessions, that are kept for repeated requests."""


@dataclass(eq=False, slots=True)
class Session:
    """A rollout's session. ``cells`` have taken effect in its live process; ``lost`` says why there is none."""

    name: str
    number: int = 0
    interpreter: Interpreter | None = None
    cells: list[str] = field(default_factory=list)
    lost: str = ""
    results: dict[Hashable, ToolOutput] = field(default_factory=dict)
    characters: int = 0
    lock: trio.Lock = field(default_factory=trio.Lock)

    @property
    def alive(self) -> bool:
        """Whether its process can take a cell."""
        return self.interpreter is not None and self.interpreter.ready

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
