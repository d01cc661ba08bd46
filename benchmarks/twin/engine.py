"""An engine of the twin: `benchmarks.twin.modelled_engine.ModelledEngine` behind the engine interface, in virtual time.

::

    generate --> arrived --> run: put, settle --> the model's next event --> ended --> TurnResult
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import NoReturn

import trio

from actors.engines.base import EngineError, EngineFigures, TurnRequest, TurnResult
from agent_rl.messages import PolicyVersion, TransferOffer
from agent_rl.messages.rollouts import NEWS_STEPS
from benchmarks.twin.clock import Alarm, sleep
from benchmarks.twin.modelled_engine import ModelledEngine, Rollout
from benchmarks.twin.tokens import written
from benchmarks.twin.trace import LearnerModel, Shape

TINY_S = 1e-9
ASLEEP_S = 1e9
"""So far behind the present are the steps of an engine that sleeps."""


@dataclass(slots=True, eq=False)
class _Turn:
    """A turn under way. ``marks``: the tokens that were written when a policy was replaced."""

    rollout: Rollout
    marks: list[tuple[PolicyVersion, int]] = field(default_factory=list)
    result: TurnResult | None = None
    ended: trio.Event = field(default_factory=trio.Event)


class TwinEngine:
    """The engine interface over a modelled engine. It knows the shape of each rollout; nobody else does."""

    def __init__(
        self,
        model: ModelledEngine,
        learner: LearnerModel,
        shape: Callable[[str], tuple[int, int, Shape]],
        flag: Callable[[str, int], int],
        *,
        longest: int,
    ) -> None:
        """``shape``: group, sample and lengths of a rollout; ``flag``: what its turn of this number (from 0) is."""
        self.model = model
        self._learner = learner
        self._shape, self._flag = shape, flag
        self._longest = longest
        self._policy = PolicyVersion(0, 0)
        self._rollouts: dict[str, Rollout] = {}
        self._turns: dict[Rollout, _Turn] = {}
        self._arrived: list[Rollout] = []
        self._changed = Alarm()
        self._news = Alarm()
        self._asleep_since: float | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> NoReturn:
        """Serve until cancelled."""
        task_status.started()
        while True:
            self._go_on()
            await self._changed.wait(self.model.next_event())

    async def news(self) -> None:
        """Wait until the load has news (`EngineLoad.news`)."""
        total = self.model.model.kv_total
        step = NEWS_STEPS * self.model.used // total + 1
        await self._news.wait(self.model.when_used(-(-step * total // NEWS_STEPS)))

    def _go_on(self) -> None:
        """Take out the turns that have ended, and let those that arrived join."""
        self._news.ring()
        self._advance()
        for rollout in self._arrived:
            self.model.put(rollout)
        self._arrived.clear()
        self.model.settle()

    def _advance(self) -> None:
        now = trio.current_time()
        self.model.advance(now)
        if self.model.clock > now + TINY_S:
            return  # turns that end with the step under way end with it
        for rollout in self.model.ended():
            turn = self._turns.pop(rollout)
            turn.result = self._result(turn)
            turn.ended.set()

    def _result(self, turn: _Turn) -> TurnResult:
        rollout, before = turn.rollout, 0
        runs: list[tuple[PolicyVersion, int]] = []
        for policy, count in [*turn.marks, (self._policy, rollout.shape.written[rollout.turn])]:
            runs.append((policy, count - before))
            before = count
        return written(runs, self._flag(rollout.name, rollout.turn))

    async def generate(self, request: TurnRequest) -> TurnResult:
        """Write one turn."""
        turn = _Turn(self._begun(request))
        self._turns[turn.rollout] = turn
        self._arrived.append(turn.rollout)
        self._changed.ring()
        try:
            await turn.ended.wait()
        finally:
            if turn.result is None:
                self._abort(turn)
        assert turn.result is not None, "a turn ends with its result"
        return turn.result

    def _begun(self, request: TurnRequest) -> Rollout:
        """The rollout of the request, at the beginning of the turn that follows its tokens."""
        name, context = request.rollout, len(request.tokens)
        group, sample, shape = self._shape(name)
        rollout = self._rollouts.get(name)
        if rollout is None:
            rollout = self._rollouts[name] = Rollout(name, group * (1 << 20) + sample, group, shape)
        ends = list(accumulate((w + t for w, t in zip(shape.written, shape.tool_tokens, strict=False)), initial=0))
        rollout.turn = bisect_left(ends, context - shape.prompt)
        if rollout.turn >= len(ends) or ends[rollout.turn] != context - shape.prompt:
            raise EngineError(f"{name}: no turn of the trace begins after {context} tokens")
        rollout.context, rollout.left = context, shape.written[rollout.turn]
        return rollout

    def _abort(self, turn: _Turn) -> None:
        if turn.rollout in self._arrived:
            self._arrived.remove(turn.rollout)
        else:
            self.model.advance(trio.current_time())
            self.model.take_back(turn.rollout)
        del self._turns[turn.rollout]
        self._changed.ring()

    def release(self, rollout: str) -> None:
        """The rollout has ended: drop its KV cache. Unknown names are ignored."""
        if (known := self._rollouts.pop(rollout, None)) is not None:
            self.model.advance(trio.current_time())
            self.model.drop(known)

    async def load_weights(self, source: Path | TransferOffer, policy: PolicyVersion) -> None:
        """Pause, then go on with the policy."""
        del source
        self._advance()
        for rollout, turn in self._turns.items():
            since = self.model.rows_since(rollout) if rollout in self.model.rows else 0
            turn.marks.append((self._policy, rollout.shape.written[rollout.turn] - rollout.left + since))
        self.model.pause(self._learner.pause_s, kept=self._learner.kv_kept)
        self._policy = policy
        self._changed.ring()
        await sleep(self._learner.pause_s)

    async def sleep(self) -> None:
        """Write nothing until `wake`. What runs is computed again then."""
        if self._asleep_since is None:
            self._advance()
            self._asleep_since = trio.current_time()
            self.model.pause(ASLEEP_S, kept=False)
            self._changed.ring()
        await trio.lowlevel.checkpoint()

    async def wake(self) -> None:
        """Go on."""
        if self._asleep_since is not None:
            ahead = self.model.clock - ASLEEP_S - self._asleep_since
            self.model.clock = trio.current_time() + max(0.0, ahead)
            self._asleep_since = None
            self._changed.ring()
        await trio.lowlevel.checkpoint()

    @property
    def ranks(self) -> int:
        """One."""
        return 1

    @property
    def policy(self) -> PolicyVersion:
        """The policy that is served now."""
        return self._policy

    @property
    def longest(self) -> int:
        """The most tokens of a sequence with its prompt."""
        return self._longest

    @property
    def figures(self) -> EngineFigures:
        """The present load."""
        model = self.model
        model.advance(trio.current_time())
        return EngineFigures(
            kv_tokens_total=model.model.kv_total,
            kv_tokens_used=model.used,
            max_rollouts=model.model.max_rollouts,
            running=len(model.rows),
            waiting=len(model.queue) + len(self._arrived),
            preempted=model.preempted,
            generated_tokens=model.written,
            prefilled_tokens=model.prefilled,
            cached_tokens=model.hit,
            busy_seconds=model.busy,
        )
