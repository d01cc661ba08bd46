"""A generator that records every turn its engine begins, and what such records say of turns that were written twice."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from actors.rollout_generator import RolloutGenerator
from actors.rollout_generator.settings import RolloutGeneratorSettings
from agent_rl.messages import RolloutRequest

if TYPE_CHECKING:
    from actors.engines.base import Engine, TurnRequest, TurnResult

BEGUN, ACKNOWLEDGED, FAULT = "begun", "acknowledged", "fault"


class Record:
    """Lines that several processes append to one file. What a killed process has written stays."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def add(self, *words: object) -> None:
        """Append a line."""
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


class RecordingSettings(RolloutGeneratorSettings):
    """Settings of a generator, and the file of its record."""

    record: Path


class RecordingEngine:
    """An engine that records the turns it begins; all else is the engine's own."""

    def __init__(self, engine: Engine, record: Record, process: str) -> None:
        self._engine = engine
        self._record = record
        self._process = process

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, request: TurnRequest) -> TurnResult:
        """Write one turn."""
        self._record.add(BEGUN, self._process, request.rollout, len(request.tokens))
        return await self._engine.generate(request)


class RecordingGenerator(RolloutGenerator):
    """Records the turns that its engine begins, and the rollouts whose trajectory is acknowledged."""

    Settings: ClassVar[type[RolloutGeneratorSettings]] = RecordingSettings

    def _make_engine(self, directory: Path, settings: RolloutGeneratorSettings) -> Engine:
        assert isinstance(settings, RecordingSettings)
        self._record = Record(settings.record)
        self._process = f"{self.context.name}#{self.context.incarnation}"
        engine: Any = RecordingEngine(super()._make_engine(directory, settings), self._record, self._process)
        return engine  # type: ignore[no-any-return]

    async def handle(self, message: Any) -> Any:
        """Remember whose request is being taken in: `defer_ack` is called before anything is awaited."""
        self._taken_in = message.rollout if isinstance(message, RolloutRequest) else ""
        return await super().handle(message)

    def defer_ack(self) -> Callable[[], None]:
        """Record the rollout when its request is acknowledged, which is when its trajectory is."""
        acknowledge, rollout = super().defer_ack(), self._taken_in

        def record() -> None:
            self._record.add(ACKNOWLEDGED, self._process, rollout)
            acknowledge()

        return record


@dataclass
class Turns:
    """By kind of fault: turns that were begun again, and turns under way at processes that the fault ended."""

    again: Counter[str] = field(default_factory=Counter)
    in_flight: Counter[str] = field(default_factory=Counter)


def read_turns(lines: Iterable[str]) -> Turns:
    """What the lines of a record say.

    A rollout that begins a turn with n tokens before it loses its earlier turns that began with n or more tokens:
    these are generated again. Each rollout that a process has begun and that was not acknowledged when the process
    ended has one turn under way, be it at the engine, at a tool, or on its way to the filter.
    """
    turns = Turns()
    kind = "none"
    begun: dict[str, list[int]] = {}
    under_way: dict[str, dict[str, set[str]]] = {}
    """By actor and process: rollouts."""
    for line in lines:
        word, name, *rest = line.split()
        if word == FAULT:
            kind = name
            continue
        actor, rollout = name.partition("#")[0], rest[0]
        processes = under_way.setdefault(actor, {})
        if name not in processes and processes:
            turns.in_flight[kind] += sum(map(len, processes.values()))
            processes.clear()
        if word == ACKNOWLEDGED:
            processes.setdefault(name, set()).discard(rollout)
            continue
        processes.setdefault(name, set()).add(rollout)
        tokens, known = int(rest[1]), begun.setdefault(rollout, [])
        while known and known[-1] >= tokens:
            known.pop()
            turns.again[kind] += 1
        known.append(tokens)
    return turns
