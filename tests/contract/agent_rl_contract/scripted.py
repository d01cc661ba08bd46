"""An engine without a model, for tests and benches: scripted text at a given pace, and a record of what was asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import trio

from actors.engines.base import EngineError, EngineFigures, TurnRequest, TurnResult
from agent_rl.messages import PolicyVersion

LOGPROB = -0.25
"""The log-probability of every token."""


class ScriptedEngine:
    """``script(turn number, request)`` returns a turn's text or an exception to raise.

    A turn takes ``pace(request)`` seconds, or without ``pace`` a millisecond for each token. Paths below ``/weights``
    are accepted as weights; other paths are refused, as an engine refuses a broken file. ``made`` gets the engine when
    a generator makes it, so that a test can look at the requests.
    """

    def __init__(
        self,
        model_path: Path,
        *,
        initial_policy: PolicyVersion,
        script: Callable[[int, TurnRequest], Any],
        pace: Callable[[TurnRequest], float] | None = None,
        made: Callable[[ScriptedEngine], None] | None = None,
        longest: int = 10_000,
        rows: int = 8,
        cache_tokens: int = 1000,
        **_: Any,
    ) -> None:
        from transformers import AutoTokenizer  # here, since it loads torch where that can be loaded

        self._tokenizer = AutoTokenizer.from_pretrained(model_path, trust_remote_code=False)
        self._script = script
        self._pace = pace
        self._rows = rows
        self._cache_tokens = cache_tokens
        self._policy = initial_policy
        self._longest = longest
        self._turns: dict[str, int] = {}
        self.released: list[str] = []
        self.loaded: list[Path] = []
        self.swapped = trio.Event()
        self.requests: list[TurnRequest] = []
        self.written: dict[str, list[list[int]]] = {}
        """The tokens of each turn, by rollout."""
        self._generated = self._running = 0
        self._busy = 0.0
        self._awake = trio.Event()
        self._awake.set()
        self.slept = trio.Event()
        """Set when the engine falls asleep for the first time."""
        if made is not None:
            made(self)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        task_status.started()
        await trio.sleep_forever()

    async def generate(self, request: TurnRequest) -> TurnResult:
        """Write the script's text, each token under the policy of the moment."""
        self.requests.append(request)
        number = self._turns[request.rollout] = self._turns.get(request.rollout, 0) + 1
        text = self._script(number, request)
        if isinstance(text, Exception):
            raise text
        tokens = [*self._tokenizer.encode(text, add_special_tokens=False), min(request.stop_tokens)]
        policies = []
        self._running += 1
        try:
            if self._pace is not None:
                seconds = self._pace(request)
                await trio.sleep(seconds)
                self._busy += seconds / self._rows
            for number, token in enumerate(tokens):
                if self._pace is None:
                    await trio.sleep(0.001)
                await self._awake.wait()
                policies.append([self._policy.epoch, self._policy.version])
                if request.wrote is not None and number < request.max_tokens:
                    logprobs, policy = np.full(1, LOGPROB, np.float32), np.array(policies[-1:], np.int32)
                    request.wrote(np.array([token], np.int32), logprobs, policy)
        finally:
            self._running -= 1
            count = min(len(policies), request.max_tokens)
            self._generated += count
            self.written.setdefault(request.rollout, []).append(tokens[:count])
        stopped = len(tokens) <= request.max_tokens
        return TurnResult(
            tokens=np.array(tokens[:count], dtype=np.int32),
            logprobs=np.full(count, LOGPROB, dtype=np.float32),
            policies=np.array(policies[:count], dtype=np.int32),
            finish="stop" if stopped else "length",
        )

    def decode(self, tokens: list[int]) -> str:
        """The text of tokens."""
        return str(self._tokenizer.decode(tokens))

    def release(self, rollout: str) -> None:
        """Record that the rollout was released."""
        self.released.append(rollout)

    async def sleep(self) -> None:
        """Write nothing until `wake`."""
        await trio.lowlevel.checkpoint()
        if self._awake.is_set():
            self._awake = trio.Event()
            self.slept.set()

    async def wake(self) -> None:
        """Go on."""
        await trio.lowlevel.checkpoint()
        self._awake.set()

    @property
    def asleep(self) -> bool:
        """Whether the engine sleeps."""
        return not self._awake.is_set()

    async def load_weights(self, path: Path, policy: PolicyVersion) -> None:
        """Serve the policy from now on; in a sleep, from its end on."""
        await self._awake.wait()
        if not str(path).startswith("/weights"):
            raise EngineError(f"no such file {path}")
        self.loaded.append(path)
        self._policy = policy
        if len(self.loaded) > 1:
            self.swapped.set()

    @property
    def policy(self) -> PolicyVersion:
        """The policy served now."""
        return self._policy

    @property
    def longest(self) -> int:
        """The length from the constructor."""
        return self._longest

    @property
    def figures(self) -> EngineFigures:
        """The figures of an engine that is never full."""
        return EngineFigures(
            kv_tokens_total=self._cache_tokens,
            max_rollouts=self._rows,
            running=self._running,
            generated_tokens=self._generated,
            busy_seconds=self._busy,
        )
