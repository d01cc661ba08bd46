"""An engine as a model: paged KV cache, prefill, decode by batch and context, prefix cache, preemption.

All running rollouts write one token in a decode step, so an engine is described by counters: steps made, rollouts,
tokens of context. The time of n steps is a closed formula, and the next event (a turn ends, or the KV cache is full) is
found without a loop over rollouts or steps: O(log rollouts) an event.

Three simplifications, which favour no policy: decode steps wait while a prefill is computed (chunked prefill shares the
steps instead, for about the same work); each rollout is charged the page that it fills at last; rollouts of a group
share the computation of their prompt, but not its KV cache.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, OrderedDict, deque

from benchmarks.twin.trace import EngineModel, Shape


class SimulationError(AssertionError):
    """The simulator broke a rule of its own."""


class Rollout:
    """A rollout: what it is, how far it is, and where. Compared and hashed by identity."""

    __slots__ = ("context", "ends_at", "group", "joined_at", "left", "name", "number", "shape", "turn")

    def __init__(self, name: str, number: int, group: int, shape: Shape) -> None:
        """``number`` orders rollouts that are otherwise alike; ``group`` is the group's number."""
        self.name = name
        self.number = number
        self.group = group
        self.shape = shape
        self.turn = 0
        self.context = shape.prompt
        """Tokens that the engine must hold before it goes on with the turn."""
        self.left = shape.written[0]
        """Tokens that the turn still writes; hidden from policies."""
        self.joined_at = -1
        self.ends_at = -1
        """Of the engine's step counter; -1 while it does not run."""


class ModelledEngine:
    """An engine. ``clock`` is the boundary of steps up to which it is computed: at or shortly after the present."""

    def __init__(self, name: str, model: EngineModel) -> None:
        self.name = name
        self.model = model
        self.clock = 0.0
        self.queue: deque[Rollout] = deque()
        self.rows: dict[Rollout, int] = {}
        """The running rollouts, oldest first, each with the steps that were made when it joined."""
        self.cached: OrderedDict[Rollout, int] = OrderedDict()
        """Tokens of prefixes that may be evicted, the least recently used first."""
        self.cached_tokens = 0
        self.context = 0
        self.steps = 0
        self.written = 0
        self.preempted = 0
        self.preempted_tokens = 0
        self.prefilled = 0
        self.asked = 0
        self.hit = 0
        self.busy = 0.0
        self._joined = 0
        """The step at which the queue was last admitted, or its first turn came."""
        self._ends: list[tuple[int, int, int, Rollout]] = []
        self._admitted = 0
        self._groups: Counter[int] = Counter()
        self._room = int(model.kv_total * (1 - model.watermark))

    # Questions

    @property
    def used(self) -> int:
        """KV tokens of running rollouts, the unfilled parts of their pages included."""
        return self.context + (self.model.page - 1) * len(self.rows)

    def next_event(self) -> float:
        """When a turn ends or the cache is full; infinite when nothing runs."""
        if not self.rows:
            return math.inf
        return self.clock + self._seconds(self._stop())

    def when_used(self, tokens: int) -> float:
        """When the running rollouts hold so many KV tokens, if nothing else happens; infinite when nothing runs."""
        if not self.rows:
            return math.inf
        return self.clock + self._seconds(max(0, -(-(tokens - self.used) // len(self.rows))))

    def _seconds(self, steps: int) -> float:
        model, rows = self.model, len(self.rows)
        first = model.step_s + model.row_s * rows + model.context_s * self.context
        return steps * first + model.context_s * rows * steps * (steps - 1) / 2

    def _next_end(self) -> int:
        """The step after which the next turn ends."""
        ends = self._ends
        while ends[0][3].ends_at != ends[0][0] or ends[0][3] not in self.rows:
            heapq.heappop(ends)  # preempted or lost since
        return ends[0][0]

    def _stop(self) -> int:
        """Steps until a turn ends or the cache is full."""
        free = self.model.kv_total - self.used
        stop = min(self._next_end() - self.steps, free // len(self.rows))
        if self.queue and self.model.join_steps and self._has_room():
            return min(stop, max(1, self._joined + self.model.join_steps - self.steps))
        return stop

    def _has_room(self) -> bool:
        """Whether the first turn in the queue can be admitted."""
        return len(self.rows) < self.model.max_rollouts and self._fits(self.queue[0])

    def _joins(self) -> bool:
        """Whether the turns in the queue have waited for each other long enough."""
        model = self.model
        return (
            not self.rows
            or self.steps - self._joined >= model.join_steps
            or len(self.queue) >= model.join_share * len(self.rows)
        )

    # Time

    def advance(self, now: float) -> None:
        """Make the steps that begin before ``now``."""
        if not self.rows:
            self.clock = max(self.clock, now)
            return
        behind = now - self.clock
        if behind <= 0:
            return
        model, rows = self.model, len(self.rows)
        growth = model.context_s * rows
        first = model.step_s + model.row_s * rows + model.context_s * self.context
        if growth > 0:
            half = first - growth / 2
            steps = math.ceil((math.sqrt(half * half + 2 * growth * behind) - half) / growth)
        else:
            steps = math.ceil(behind / first)
        steps = min(max(steps, 1), self._stop())
        seconds = steps * first + growth * steps * (steps - 1) / 2
        self.clock += seconds
        self.busy += seconds
        self.steps += steps
        self.context += steps * rows
        self.written += steps * rows
        self._evict()

    def _evict(self) -> None:
        """Cached prefixes leave, the least recently used first, until the rest fits beside what runs."""
        excess = self.cached_tokens + self.used - self.model.kv_total
        if excess <= 0:
            return
        while excess > 0 and self.cached:
            rollout, tokens = next(iter(self.cached.items()))
            gone = min(excess, tokens)
            excess -= gone
            self.cached_tokens -= gone
            if gone == tokens:
                self.forget(rollout)
            else:
                self.cached[rollout] = tokens - gone
        if excess > 0:
            raise SimulationError(f"{self.name} holds {excess} KV tokens more than it has")

    # Rollouts come and go. `advance` to the present first, `settle` afterwards.

    def put(self, rollout: Rollout) -> None:
        """A turn was placed here: it is queued."""
        if not self.queue:
            self._joined = self.steps
        self.queue.append(rollout)

    def settle(self) -> None:
        """Preempt what has no room, the newest first, or admit what has. Who is preempted is first in the queue."""
        if self.rows and self._next_end() <= self.steps:
            return  # first the turn that has ended makes room, at the boundary
        before = self.preempted
        while self.rows and self._stop() < 1:
            rollout, _ = self.rows.popitem()
            self._leave(rollout, self.rows_since(rollout))
            self.preempted += 1
            self.preempted_tokens += rollout.context
            self.queue.appendleft(rollout)
        if self.preempted == before and self.queue and self._joins():
            self._joined = self.steps
            while self.queue and self._has_room():
                self._admit(self.queue.popleft())

    def rows_since(self, rollout: Rollout) -> int:
        """Tokens that the rollout wrote since it was admitted."""
        return self.steps - rollout.joined_at

    def _fits(self, rollout: Rollout) -> bool:
        return rollout.context + self.used + self.model.page <= self._room or not self.rows

    def _admit(self, rollout: Rollout) -> None:
        model, context = self.model, rollout.context
        kept = self.cached.pop(rollout, 0)
        self.cached_tokens -= kept
        if not kept and self._groups[rollout.group] > 0:
            kept = min(rollout.shape.prompt, context)
        elif kept:
            self._groups[rollout.group] -= 1
        kept = min(kept, context)
        missing = context - kept
        seconds = missing * (model.prefill_s + model.prefill_context_s * (kept + context) / 2)
        self.clock += seconds
        self.busy += seconds
        self.prefilled += missing
        self.asked += context
        self.hit += kept
        self._groups[rollout.group] += 1
        rollout.joined_at = self.steps
        rollout.ends_at = self.steps + rollout.left
        self.rows[rollout] = self.steps
        self.context += context
        self._admitted += 1
        heapq.heappush(self._ends, (rollout.ends_at, rollout.number, self._admitted, rollout))
        self._evict()

    def ended(self) -> list[Rollout]:
        """Take out the rollouts whose turn has ended. Their prefixes stay cached."""
        ends, rows, found = self._ends, self.rows, []
        while ends and ends[0][0] <= self.steps:
            at, _, _, rollout = heapq.heappop(ends)
            if rollout.ends_at == at and rollout in rows:
                del rows[rollout]
                self._leave(rollout, rollout.left)
                found.append(rollout)
        return found

    def take_back(self, rollout: Rollout) -> None:
        """The rollout's turn stops, running or queued. Its prefix stays cached."""
        if rollout in self.rows:
            del self.rows[rollout]
            self._leave(rollout, self.rows_since(rollout))
        else:
            self.queue.remove(rollout)

    def _leave(self, rollout: Rollout, wrote: int) -> None:
        """A row that was taken out of ``rows`` wrote so many tokens; its prefix becomes the most recently used."""
        rollout.context += wrote
        rollout.left -= wrote
        self.context -= rollout.context
        rollout.ends_at = -1
        self.cached[rollout] = rollout.context
        self.cached_tokens += rollout.context

    def forget(self, rollout: Rollout) -> None:
        """Free what is cached of the rollout."""
        tokens = self.cached.pop(rollout, None)
        if tokens is not None:
            self._groups[rollout.group] -= 1
            if not self._groups[rollout.group]:
                del self._groups[rollout.group]

    def drop(self, rollout: Rollout) -> None:
        """Free what is cached of the rollout, and count it as free."""
        self.cached_tokens -= self.cached.get(rollout, 0)
        self.forget(rollout)

    def pause(self, seconds: float, *, kept: bool) -> None:
        """New weights are loaded. Unless the KV cache is ``kept``, running rollouts are computed again."""
        self.clock += seconds
        if not kept:
            for rollout in list(self.cached):
                self.drop(rollout)
            model = self.model
            for rollout in self.rows:
                context = rollout.context + self.rows_since(rollout)
                spent = context * (model.prefill_s + model.prefill_context_s * context / 2)
                self.clock += spent
                self.busy += spent
                self.prefilled += context
