"""Continuous batching, synchronous: decides which sequence is computed in which step.

A prefix that several sequences have, such as the prompt of a group, is computed once while one of them is in the cache:
the others copy its keys and values when they join, whenever that is.

An admitted sequence gets a *slot* (its state, in arrays) and a *row* (its KV cache). It keeps both between its turns
until it is released, cancelled, or evicted for lack of room. The order of the rows is::

    [ decoding ........ | prefilled in this step .... | pending, parked between turns, free ....... ]
      0                   self._decoding

so that decoding reads a slice of the cache. Each step computes one token for every decoding sequence and, in the same
forward pass, all new tokens of the sequences that join.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from actors.engines.base import TELL_SECONDS, EngineError, TurnResult
from actors.engines.torch.kv_cache import ForwardStep
from actors.engines.torch.packing import pack, share_prompts
from actors.engines.torch.sampling import sample, uniforms
from actors.engines.torch.sequences import LEAST_SHARED, Sequences, SequenceTurn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray
    from torch import Tensor

    from actors.engines.torch.model import CausalModel
    from agent_rl.messages import Float32Vector, Int32Matrix, Int32Vector, PolicyVersion

News: TypeAlias = "tuple[SequenceTurn, tuple[Int32Vector, Float32Vector, Int32Matrix]]"
"""A turn, and what to tell its listener."""

PREFILL_TOKENS = 2048
"""The most new tokens to prefill in a step (a single sequence may have more). Bounds the time of a step."""
PREFILL_SHARE = 1 / 8
"""A step with a prefill has a fixed extra cost: sequences wait to join until they are this share of those decoding,"""
PREFILL_WAIT_STEPS = 8
"""or until the first one has waited this many steps."""
HEADROOM_STEPS = 16
"""A sequence is admitted when all running ones have room for this many tokens; else preemption would follow soon."""


class Decoder:
    """Holds the sequences of one model and computes them step by step. Not thread-safe: one thread owns it."""

    def __init__(
        self,
        model: CausalModel,
        *,
        max_rollouts: int,
        kv_tokens: int | None,
        kv_on_update: Literal["keep", "recompute"],
        policy: PolicyVersion,
    ) -> None:
        self.model = model
        self.policy = policy
        self.asleep = False
        """Whether no step is computed, and the device's memory is given back."""
        self.kv_tokens = max_rollouts * model.max_length if kv_tokens is None else kv_tokens
        self.longest = min(self.kv_tokens, model.max_length)
        self.preempted = 0
        self.steps = 0
        self.generated_tokens = 0
        self.prefilled_tokens = 0
        self.cached_tokens = 0
        self.context_tokens = 0
        """Tokens of the computed sequences, summed over steps."""
        self._kv_on_update = kv_on_update
        self._shares = kv_on_update == "recompute"
        """Whether sequences copy prefixes of others: all that is cached was computed with the present weights."""
        self._cache = model.new_cache(max_rollouts)
        self._sequences = Sequences(max_rollouts)
        self._slot_in_row = np.arange(max_rollouts)
        self._row_of_slot = np.arange(max_rollouts)
        self._decoding = 0
        self._waiting: deque[SequenceTurn] = deque()
        self._pending: list[int] = []
        self._pending_steps = 0
        self._free = list(range(max_rollouts))
        self._turns: dict[int, SequenceTurn] = {}
        self._slots: dict[str, int] = {}
        self._parked: dict[str, int] = {}
        self._tell_next = 0.0

    @property
    def has_work(self) -> bool:
        """Whether a step would compute anything."""
        return bool(self._turns or self._waiting) and not self.asleep

    @property
    def running(self) -> int:
        """Number of turns with a slot."""
        return len(self._turns)

    @property
    def waiting(self) -> int:
        """Number of turns that wait for room."""
        return len(self._waiting)

    @property
    def kv_tokens_used(self) -> int:
        """Number of cached tokens, those of parked sequences included."""
        return int(self._sequences.cached.sum())

    def submit(self, turn: SequenceTurn) -> None:
        """Add a turn; no other of its sequence may be live. The matching part of a parked sequence's cache is kept."""
        slot = self._parked.pop(turn.rollout, None)
        if slot is None:
            self._waiting.append(turn)
        else:
            self._sequences.resume(slot, turn)
            self.cached_tokens += int(self._sequences.cached[slot])
            self._turns[slot] = turn
            self._pending.append(slot)

    def cancel(self, turn: SequenceTurn) -> None:
        """Drop a turn, and its rollout's KV cache unless it keeps that, also when the turn has already ended."""
        if turn in self._waiting:
            self._waiting.remove(turn)
        elif not turn.request.keeps_cache:
            self.release(turn.rollout)
        elif turn in self._turns.values():
            self._park(self._slots[turn.rollout])

    def release(self, rollout: str) -> None:
        """Drop a rollout's KV cache, and its turn if one is live. Unknown names are ignored."""
        slot = self._slots.get(rollout)
        if slot is not None:
            self._drop(slot)

    def replace_weights(self, weights: Mapping[str, Tensor], policy: PolicyVersion) -> None:
        """Use new weights from the next token on."""
        self.model.replace_weights(weights)
        self.policy = policy
        if self._kv_on_update == "recompute":
            for slot in list(self._parked.values()):
                self._drop(slot)
            self._sequences.cached[:] = 0
            self._pending[:0] = self._slot_in_row[: self._decoding].tolist()
            self._decoding = 0

    def sleep(self) -> None:
        """Compute no step until `wake`, and give the device's memory back: turns wait, with their tokens."""
        if self.asleep:
            return
        self.asleep = True
        for slot in list(self._parked.values()):
            self._drop(slot)
        for slot in sorted(self._turns, key=lambda slot: self._turns[slot].number, reverse=True):
            self._put_back(slot)
        self._cache.free()
        self.model.leave_device()

    def wake(self) -> None:
        """Take the memory of the weights again. The KV cache takes its memory when tokens are computed."""
        if self.asleep:
            self.model.return_to_device()
            self.asleep = False

    def step(self) -> list[tuple[SequenceTurn, TurnResult]]:
        """Compute one forward pass. Returns the turns that ended."""
        self._admit()
        joining = self._choose_joining()
        self._make_room()
        joining = [slot for slot in joining if slot in self._turns]
        computed, shared = share_prompts(self._sequences, joining, cached=self._shares)
        slots = self._place(computed, shared)
        if not len(slots):
            return []
        sequences, row_of_slot = self._sequences, self._row_of_slot
        self._cache.reserve(int(sequences.total[slots].max()))
        shared_rows = [(int(row_of_slot[slot]), int(row_of_slot[leader])) for slot, leader in shared]
        packed = pack(sequences, slots, self._decoding, shared_rows, self._cache)
        step = ForwardStep(self._cache, packed.write, self._decoding, packed.bias, packed.spans, packed.prefills)
        logits = self.model.forward(packed.tokens, packed.positions, packed.ends, step)[: len(slots)]
        for row, leader in shared_rows:
            self._cache.copy(leader, row, int(sequences.total[slots[row]]))
            self.cached_tokens += int(sequences.total[slots[row]] - sequences.cached[slots[row]])
        draws = uniforms(sequences.seed[slots], sequences.total[slots])
        filters = sequences.top_p[slots], sequences.top_k[slots]
        tokens, logprobs = sample(logits, sequences.temperature[slots], draws, *filters)
        self.steps += 1
        self.prefilled_tokens += packed.count - self._decoding
        self.generated_tokens += len(slots)
        self.context_tokens += int(sequences.total[slots].sum())
        self._decoding = len(slots)
        ended = sequences.append(slots, tokens.cpu().numpy(), logprobs.cpu().numpy(), self.policy)
        return [self._finish(slot, finish) for slot, finish in ended]

    def news(self) -> list[News]:
        """What turns under way with a listener wrote since it was told last. The rest of a turn that ends is not told.

        Nothing before TELL_SECONDS have passed: to tell each token halves the speed of a small model.
        """
        news: list[News] = []
        if time.monotonic() < self._tell_next:
            return news
        for slot, turn in self._turns.items():
            if turn.request.wrote is not None:
                written = self._sequences.written(slot, turn.told)
                if len(written[0]):
                    turn.told += len(written[0])
                    news.append((turn, written))
        if news:
            self._tell_next = time.monotonic() + TELL_SECONDS
        return news

    def _admit(self) -> None:
        """Give waiting turns a slot, in order, while there is room. Evict the oldest parked sequences for them."""
        total = self._sequences.total
        while self._waiting:
            turn = self._waiting[0]
            needed = len(turn.tokens) + HEADROOM_STEPS * (len(self._turns) + 1)
            parked = list(self._parked.values())
            crowded = total.sum() - total[parked].sum() + needed > self.kv_tokens
            if not (self._free or parked) or (crowded and self._turns):
                return
            while self._parked and (not self._free or total.sum() + needed > self.kv_tokens):
                self._evict_parked()
            self._waiting.popleft()
            slot = self._free.pop()
            self._sequences.admit(slot, turn)
            self._turns[slot] = turn
            self._slots[turn.rollout] = slot
            self._pending.append(slot)

    def _choose_joining(self) -> list[int]:
        """The pending sequences to prefill in this step: none while few are pending and many are decoding."""
        if not self._pending:
            return []
        self._pending_steps += 1
        if self._pending_steps < PREFILL_WAIT_STEPS and len(self._pending) < PREFILL_SHARE * self._decoding:
            return []
        self._pending_steps = 0
        sequences, left = self._sequences, PREFILL_TOKENS
        chosen: list[int] = []
        for slot in self._pending:
            self._reuse(slot)
            ahead = np.array(chosen, np.int64)
            leader, common = sequences.common(slot, ahead, sequences.total[ahead]) if self._shares else (-1, 0)
            new = int(sequences.total[slot] - sequences.cached[slot])
            if leader >= 0 and common == sequences.total[slot] - 1 == sequences.total[leader] - 1:
                new = 0  # `share_prompts` computes equal sequences once
            elif common >= sequences.cached[slot] + LEAST_SHARED:
                self._pending_steps = PREFILL_WAIT_STEPS  # the next step copies what this one computes
                continue
            if chosen and new > left:
                break
            chosen.append(slot)
            left -= new
        return chosen

    def _reuse(self, slot: int) -> None:
        """Copy the longest prefix that another sequence has in the cache, where that is more than the slot has."""
        sequences = self._sequences
        others = np.flatnonzero(sequences.cached)
        source, common = sequences.common(slot, others, sequences.cached[others]) if self._shares else (-1, 0)
        own = int(sequences.cached[slot])
        if common >= own + LEAST_SHARED:
            self._cache.copy(int(self._row_of_slot[source]), int(self._row_of_slot[slot]), common)
            sequences.cached[slot] = common
            self.cached_tokens += common - own

    def _make_room(self) -> None:
        """Evict parked sequences, then preempt the newest turns, until all tokens fit. The oldest turn always fits."""
        total = self._sequences.total
        while total.sum() > self.kv_tokens:
            if self._parked:
                self._evict_parked()
                continue
            slot = max(self._turns, key=lambda slot: self._turns[slot].number)
            self._put_back(slot)
            self.preempted += 1

    def _put_back(self, slot: int) -> SequenceTurn:
        """Let the turn of a slot wait, before all others. It keeps its tokens."""
        turn = self._turns[slot]
        self._sequences.save(slot, turn)
        self._drop(slot)
        self._waiting.appendleft(turn)
        return turn

    def _evict_parked(self) -> None:
        self._drop(next(iter(self._parked.values())))
        self.preempted += 1

    def _place(self, computed: list[int], shared: list[tuple[int, int]]) -> NDArray[np.int64]:
        """Move joining sequences to the rows after the decoding ones, as ``pack`` needs. Returns the step's slots."""
        new_tokens = self._sequences.total - self._sequences.cached
        joining = sorted(computed, key=lambda slot: -new_tokens[slot]) + [slot for slot, _ in shared]
        for offset, slot in enumerate(joining):
            self._move(slot, self._decoding + offset)
        joined = set(joining)
        self._pending = [slot for slot in self._pending if slot not in joined]
        return self._slot_in_row[: self._decoding + len(joining)].copy()

    def _move(self, slot: int, row: int) -> None:
        """Move a sequence to ``row``, in exchange with the sequence there."""
        old = int(self._row_of_slot[slot])
        if old == row:
            return
        other = int(self._slot_in_row[row])
        cached = self._sequences.cached
        self._cache.swap(old, row, int(cached[slot]), int(cached[other]))
        self._slot_in_row[old], self._slot_in_row[row] = other, slot
        self._row_of_slot[slot], self._row_of_slot[other] = row, old

    def _stop_decoding(self, slot: int) -> None:
        """Remove a sequence from the decoding rows, if it is there. The last decoding row takes its place."""
        if self._row_of_slot[slot] < self._decoding:
            self._decoding -= 1
            self._move(slot, self._decoding)

    def _drop(self, slot: int) -> None:
        """Clear a slot."""
        rollout = self._sequences.rollouts[slot]
        self._sequences.clear(slot)
        self._stop_decoding(slot)
        self._turns.pop(slot, None)
        self._parked.pop(rollout, None)
        if slot in self._pending:
            self._pending.remove(slot)
        del self._slots[rollout]
        self._free.append(slot)

    def _finish(self, slot: int, finish: Literal["stop", "length"]) -> tuple[SequenceTurn, TurnResult]:
        result = self._sequences.result(slot, finish)
        if not np.isfinite(result.logprobs).all():
            raise EngineError(f"{self._turns[slot].rollout}: the model's output is not finite under {self.policy}")
        return self._park(slot), result

    def _park(self, slot: int) -> SequenceTurn:
        """The turn of a slot is over: what is cached stays for the next one."""
        turn = self._turns.pop(slot)
        self._sequences.park(slot)
        self._stop_decoding(slot)
        if slot in self._pending:
            self._pending.remove(slot)
        self._parked[turn.rollout] = slot
        return turn
