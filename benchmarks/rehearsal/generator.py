"""A generator whose engine writes turns of a given length without a model. Nothing in its process loads torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import trio
from pydantic import PositiveFloat, PositiveInt

from actors.engines.base import EngineError, EngineFigures, TurnRequest, TurnResult
from actors.rollout_generator.settings import RolloutGeneratorSettings
from agent_rl.environments.arithmetic import CALL_HEAD, CALL_TAIL
from agent_rl.messages import Int32Vector, Policy
from agent_rl.models.model_files import ModelFiles
from benchmarks.chaos.scripted import Scripted, ScriptedTurns, share

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPREAD = 0.2
"""By how much of the mean a turn may be longer or shorter, and faster or slower."""


class LongSettings(RolloutGeneratorSettings):
    """Settings of a generator, and the lengths and the pace of its rollouts."""

    response_tokens: PositiveInt
    """The mean length of a response, all turns and tools together."""
    turns: PositiveInt
    """Turns of a rollout; all but the last call the tool."""
    tokens_per_s: PositiveFloat
    """Of each rollout."""


class LongTurns(ScriptedTurns):
    """Thinks in random letters, then calls the tool or answers. Half of the rollouts, by their names, are right."""

    def __init__(self, directory: Path, answers: Mapping[str, str], settings: LongSettings) -> None:
        super().__init__(directory, answers, settings.max_rollouts)
        self.longest = ModelFiles.read(directory).length or 0
        self._settings = settings
        self._letters = np.array(self._tokenizer.encode(LETTERS, add_special_tokens=False), dtype=np.int32)
        self._tool_response = self._tokenizer.convert_tokens_to_ids("<tool_response>")

    def _written(self, request: TurnRequest) -> Int32Vector:
        """The tokens of a turn: a function of the rollout and of the number of the turn."""
        settings, answer = self._settings, self._answers[request.rollout]
        number = int(np.count_nonzero(np.asarray(request.tokens) == self._tool_response))
        answer = answer if share(request.rollout) < 0.5 else f"{answer}0"
        text = f"<tool_call>{CALL_HEAD}print({answer}){CALL_TAIL}</tool_call>"
        if number + 1 >= settings.turns:
            text = f"<answer>\\boxed{{{answer}}}</answer>"
        end = [*self._tokenizer.encode(text, add_special_tokens=False), min(request.stop_tokens)]
        length = settings.response_tokens / settings.turns * (1 + SPREAD * (2 * share(request.rollout, number) - 1))
        rng = np.random.default_rng([request.seed & 0xFFFFFFFF, number])
        thought = rng.choice(self._letters, max(0, round(length) - len(end)))
        return np.concatenate([thought, np.array(end, dtype=np.int32)])

    async def generate(self, request: TurnRequest) -> TurnResult:
        """Write a turn, under the policy at its end."""
        tokens = self._written(request)
        count = min(len(tokens), request.max_tokens)
        pace = 1 + SPREAD * (2 * share(request.rollout, "pace") - 1)
        seconds = count * pace / self._settings.tokens_per_s
        self._running += 1
        try:
            await trio.sleep(seconds)
        finally:
            self._running -= 1
        self._busy += seconds / self._rows
        self._generated += count
        return TurnResult(
            tokens=tokens[:count],
            logprobs=np.full(count, -3.0, dtype=np.float32),
            policies=np.tile(np.array([self.policy.epoch, self.policy.version], dtype=np.int32), (count, 1)),
            finish="stop" if count == len(tokens) else "length",
        )

    async def load_weights(self, path: Path, policy: Policy) -> None:
        """Serve the policy from now on. Raises EngineError for a file that is no whole safetensors file."""
        try:
            content = await trio.Path(path).read_bytes()
            begin = 8 + int.from_bytes(content[:8], "little")
            header = json.loads(content[8:begin])
            end = begin + max(of["data_offsets"][1] for name, of in header.items() if name != "__metadata__")
        except (OSError, ValueError, KeyError) as error:
            raise EngineError(f"{path} is no policy: {error}") from error
        if end != len(content):
            raise EngineError(f"{path} has {len(content)} bytes instead of {end}")
        self.policy = policy

    @property
    def figures(self) -> EngineFigures:
        """Those of an engine with room for all its rows at their longest."""
        return EngineFigures(
            kv_tokens_total=self._rows * self.longest,
            max_rollouts=self._rows,
            running=self._running,
            generated_tokens=self._generated,
            busy_seconds=self._busy,
        )


class LongGenerator(Scripted):
    """Long turns of no model."""

    Settings: ClassVar[type[RolloutGeneratorSettings]] = LongSettings

    def _make_engine(self, directory: Path, settings: Any) -> Any:
        return LongTurns(directory, self._answers, settings)
