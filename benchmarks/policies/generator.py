"""The generator of bench_policies: the production actor and engine, with turns of given lengths, and a record.

A line a fifth of a second says what the engine has done so far. The last token of each turn is the end of a turn; the
other tokens are those that the engine has written.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import trio

from actors.engines.base import Engine, EngineFigures, TurnRequest, TurnResult
from actors.rollout_generator import RolloutGenerator
from agent_rl.messages import PolicyVersion, Problem, RolloutRequest, TransferOffer
from agent_rl.rollout.episode import Episode
from agent_rl.rollout.parsing import AnyCall
from agent_rl.rollout.prompts import ChatFormat
from agent_rl.simulation.trace import Shape
from benchmarks.policies.workload import shape_in, turn_after

STOP = 1
"""The token that ends a turn."""
VOCABULARY = (10, 100)
"""Tokens of prompts and tool results are drawn from these."""
RECORD_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What an engine has done until ``at``, in seconds of the host's monotonic clock. All but the load are totals.

    ``gap_s``: seconds from the end of a turn to the request for the next one, beyond those that its tools sleep, of
    ``gaps`` turns.
    """

    at: float
    running: int
    waiting: int
    kv_used: int
    kv_total: int
    preempted: int
    generated: int
    prefilled: int
    cached: int
    busy_s: float
    turns: int
    gaps: int
    gap_s: float


def record_of(directory: Path, replica: int) -> Path:
    """The record of a generator."""
    return directory / f"engine-{replica}.jsonl"


def read_rows(path: Path) -> list[Row]:
    """The lines of a record. The last one counts when it is whole."""
    return [Row(**json.loads(line)) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


class LengthsFormat(ChatFormat):
    """Prompts and tool results of given lengths. No text is read."""

    def __init__(self, environments: Any) -> None:
        self.environments = environments
        self.stop_tokens = frozenset({STOP})

    def prompt_tokens(self, problem: Problem) -> list[int]:
        """So many tokens as the problem says."""
        return self._drawn(int(problem.payload["prompt"]), *problem.payload["draw"])

    def message_tokens(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """So many tokens as the messages say."""
        return self._drawn(sum(int(content) for _, content in messages))

    @staticmethod
    def _drawn(count: int, *seed: int) -> list[int]:
        drawn: list[int] = np.random.default_rng(seed).integers(*VOCABULARY, count).tolist()
        return drawn

    def turn_text(self, tokens: Sequence[int]) -> str:
        """Nothing."""
        del tokens
        return ""

    @classmethod
    def calls(cls, text: str) -> tuple[AnyCall, ...]:
        """None: the environment answers."""
        del text
        return ()

    def decode(self, tokens: Sequence[int]) -> str:
        """Nothing."""
        del tokens
        return ""

    def differences(self) -> list[str]:
        """None: there is no template."""
        return []

    def rewriting(self) -> str:
        """Nothing: there is no template."""
        return ""


class ShapedEngine:
    """An engine whose turns have given lengths."""

    def __init__(self, engine: Engine, shape: Callable[[str], Shape]) -> None:
        """``shape``: the lengths of a rollout."""
        self._engine = engine
        self._shape = shape
        self._ended: dict[str, tuple[int, float]] = {}
        """Of rollouts whose tools run: the turn that ended, and when."""
        self.turns = self.gaps = 0
        self.gap_s = 0.0

    async def generate(self, request: TurnRequest) -> TurnResult:
        """Write a turn of as many tokens as it shall have."""
        shape = self._shape(request.rollout)
        turn = turn_after(shape, len(request.tokens))
        before, ended = self._ended.pop(request.rollout, (-1, 0.0))
        if before == turn - 1 >= 0:
            self.gaps += 1
            self.gap_s += time.monotonic() - ended - shape.tool_s[before]
        wanted = replace(request, max_tokens=shape.written[turn], stop_tokens=frozenset())
        result = await self._engine.generate(wanted)
        self.turns += 1
        if turn + 1 < len(shape.written):
            self._ended[request.rollout] = turn, time.monotonic()
        tokens = result.tokens.copy()
        tokens[-1] = STOP
        return replace(result, tokens=tokens, finish="stop")

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        await self._engine.run(task_status=task_status)

    def release(self, rollout: str) -> None:
        """The rollout has ended."""
        self._engine.release(rollout)

    def set_aside(self, rollout: str) -> None:
        """The rollout's KV cache is wanted."""
        self._engine.set_aside(rollout)

    async def load_weights(self, source: Path | TransferOffer, policy: PolicyVersion) -> None:
        """Load weights. With them a round begins."""
        self._ended.clear()
        await self._engine.load_weights(source, policy)

    @property
    def ranks(self) -> int:
        """Of the engine."""
        return self._engine.ranks

    @property
    def policy(self) -> PolicyVersion:
        """The policy that is served now."""
        return self._engine.policy

    @property
    def longest(self) -> int:
        """The most tokens of a sequence."""
        return self._engine.longest

    @property
    def figures(self) -> EngineFigures:
        """The present load."""
        return self._engine.figures

    def row(self) -> Row:
        """The engine's totals now."""
        figures = self._engine.figures
        return Row(
            at=time.monotonic(),
            running=figures.running,
            waiting=figures.waiting,
            kv_used=figures.kv_tokens_used,
            kv_total=figures.kv_tokens_total,
            preempted=figures.preempted,
            generated=figures.generated_tokens,
            prefilled=figures.prefilled_tokens,
            cached=figures.cached_tokens,
            busy_s=figures.busy_seconds,
            turns=self.turns,
            gaps=self.gaps,
            gap_s=self.gap_s,
        )


class ShapedGenerator(RolloutGenerator):
    """Its rollouts have the lengths that their problems say."""

    _engine: ShapedEngine

    async def start(self) -> None:
        """Begin to serve, and to record."""
        await super().start()
        self.context.nursery.start_soon(self._record)

    async def _record(self) -> None:
        with record_of(self.context.directory, self.context.replica).open("a", encoding="utf-8") as file:
            while True:
                file.write(json.dumps(asdict(self._engine.row())) + "\n")
                file.flush()
                await trio.sleep(RECORD_SECONDS)

    def make_episode(self, request: RolloutRequest) -> Episode:
        """Keep the lengths for the engine."""
        self._shapes[request.rollout] = shape_in(request.problem, request.sample)
        return super().make_episode(request)

    def _make_format(self, directory: Path) -> ChatFormat:
        del directory
        return LengthsFormat(self._environments)

    def _make_engine(self, directory: Path, settings: Any) -> ShapedEngine:
        self._shapes: dict[str, Shape] = {}
        return ShapedEngine(super()._make_engine(directory, settings), self._shapes.__getitem__)
