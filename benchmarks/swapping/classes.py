"""The classes that take turns in a run whose actors are swapped. The generators record when a turn was written."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from actors.learner import Learner
from actors.rollout_generator import RolloutGenerator
from actors.rollout_generator.settings import RolloutGeneratorSettings
from actors.tool_executor import ToolExecutor
from benchmarks.chaos.recording import Record, RecordingSettings
from benchmarks.chaos.scripted import Scripted, ScriptedLearner

if TYPE_CHECKING:
    from actors.engines.base import Engine, TurnRequest, TurnResult

WRITTEN = "written"


class TimedEngine:
    """An engine that records when a turn was written; all else is the engine's own."""

    def __init__(self, engine: Engine, record: Record, generator: str) -> None:
        self._engine = engine
        self._record = record
        self._generator = generator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, request: TurnRequest) -> TurnResult:
        """Write one turn."""
        turn = await self._engine.generate(request)
        self._record.add(WRITTEN, self._generator, f"{time.monotonic():.3f}", len(turn.tokens))
        return turn


class TimedGenerator(RolloutGenerator):
    """Records its turns."""

    Settings: ClassVar[type[RolloutGeneratorSettings]] = RecordingSettings

    def _make_engine(self, directory: Path, settings: RolloutGeneratorSettings) -> Engine:
        assert isinstance(settings, RecordingSettings)
        engine: Any = TimedEngine(super()._make_engine(directory, settings), Record(settings.record), self.context.name)
        return engine  # type: ignore[no-any-return]


class OtherGenerator(TimedGenerator):
    """Another class."""


class ScriptedGenerator(TimedGenerator, Scripted):
    """Records turns that are scripted."""


class OtherScriptedGenerator(ScriptedGenerator):
    """Another class."""


class OtherExecutor(ToolExecutor):
    """Another class."""


class OtherLearner(Learner):
    """Another class."""


class OtherScriptedLearner(ScriptedLearner):
    """Another class."""


def written(lines: list[str]) -> list[float]:
    """When turns were written, in monotonic seconds, from the lines of a record."""
    return sorted(float(line.split()[2]) for line in lines if line.startswith(f"{WRITTEN} "))
