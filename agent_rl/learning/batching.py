"""Micro-batches by token budget, and the batches of supervised training."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise
from typing import Generic, NamedTuple, TypeVar

from agent_rl.environments.base import TaskError
from agent_rl.learning.prefixes import Prefixes
from agent_rl.rollout.supervised import Masked

T = TypeVar("T")

TOO_MANY = 10_000
"""After so many sequences in a row that are too long, none is expected to fit."""

POOL = 16
"""Batches sorted by length together: enough for similar lengths in a batch, few enough to keep batches mixed."""


class SupervisedBatches(Generic[T]):
    """The endless batches of a supervised stage, each with the sequences of ``batch`` conversations of similar length.

    They are in random order within ``POOL`` batches.

    ``conversations`` is endless and may draw from ``rng`` too; ``encode`` makes the sequences of a conversation. Equal
    arguments give equal batches. `skip` goes to the position of an earlier process, and encodes only the pool of that
    position.
    """

    def __init__(
        self,
        conversations: Iterator[T],
        encode: Callable[[T], Sequence[Masked]],
        *,
        batch: int,
        longest: float,
        rng: random.Random,
    ) -> None:
        self.drawn: list[int] = []
        """The conversations that each pool took, too long ones included; `skip` needs these counts."""
        self._conversations = conversations
        self._encode = encode
        self._batch = batch
        self._longest = longest
        self._rng = rng
        self._pool: list[list[Masked]] = []

    def __iter__(self) -> Iterator[list[Masked]]:
        """The batches from here on."""
        return self

    def __next__(self) -> list[Masked]:
        """A batch. Raises TaskError when sequences are too long."""
        if not self._pool:
            self._fill()
        return self._pool.pop(0)

    def skip(self, batches: int, drawn: Sequence[int]) -> None:
        """Skip the first ``batches``; ``drawn`` is its value after they had been taken."""
        pools, rest = divmod(batches, POOL)
        for count in drawn[:pools]:
            for _ in islice(self._conversations, count):
                pass
            self._rng.shuffle([None] * POOL)  # draws as many random numbers as ordering the pool did
        self.drawn = list(drawn[:pools])
        for _ in range(rest):
            next(self)

    def _fill(self) -> None:
        count = 0

        def encoded() -> Iterator[Sequence[Masked]]:
            nonlocal count
            for conversation in self._conversations:
                count += 1
                yield self._encode(conversation)

        drawn = islice(fitting(encoded(), self._longest), POOL * self._batch)
        pool = sorted(drawn, key=_length)
        starts = range(0, len(pool), self._batch)
        self._pool = [list(chain.from_iterable(pool[start : start + self._batch])) for start in starts]
        self._rng.shuffle(self._pool)
        self.drawn.append(count)


def _length(conversation: Sequence[Masked]) -> int:
    return max((len(tokens) for tokens, _ in conversation), default=0)


def fitting(conversations: Iterable[Sequence[Masked]], longest: float) -> Iterator[Sequence[Masked]]:
    """Those whose sequences have at most ``longest`` tokens. Raises TaskError when ``TOO_MANY`` in a row are longer."""
    longer = 0
    for conversation in conversations:
        if _length(conversation) <= longest:
            longer = 0
            yield conversation
            continue
        longer += 1
        if longer == TOO_MANY:
            remedy = "train a longer model, or cut them with `agent-rl data sft --max-tokens`"
            raise TaskError(
                f"{longer:,} conversations in a row have more than the model's {longest:.0f} tokens: {remedy}"
            )


class Part(NamedTuple):
    """Sequences that are computed in one row, and the tokens of that row."""

    indices: list[int]
    tokens: int


def parts(lengths: Sequence[int], prefixes: Prefixes | None, *, most: int) -> list[Part]:
    """Put sequences with a shared prefix together, into rows of at most ``most`` tokens where one alone is no longer.

    Without ``prefixes`` each sequence is a part.
    """
    if prefixes is None:
        return [Part([index], length) for index, length in enumerate(lengths)]
    made: list[Part] = []
    for index, common in zip(*prefixes, strict=True):
        fresh = lengths[index] - common
        if common and made[-1].tokens + fresh <= most:
            made[-1].indices.append(index)
            made[-1] = made[-1]._replace(tokens=made[-1].tokens + fresh)
        else:
            made.append(Part([index], lengths[index]))
    return sorted(Part(sorted(part.indices), part.tokens) for part in made)


def packed(given: Sequence[Part], *, max_tokens: int) -> list[list[int]]:
    """Put parts into micro-batches of at most ``max_tokens`` tokens, to be packed without padding; returns indices.

    A part longer than the budget makes a batch of its own. Deterministic: longest first, ties by order, each into the
    first batch with room; indices within a batch ascend.
    """
    batches: list[list[int]] = []
    rooms = _Rooms(len(given))
    for part in sorted(given, key=lambda part: -part.tokens):
        place = rooms.first(part.tokens)
        if place is None or place >= len(batches):
            place = len(batches)
            batches.append([])
            rooms.set(place, max_tokens)
        batches[place] += part.indices
        rooms.set(place, rooms.of(place) - part.tokens)
    return [sorted(batch) for batch in batches]


class _Rooms:
    """The room left in each batch, as a tree of greatest rooms: finding the first with enough takes O(log n)."""

    def __init__(self, most: int) -> None:
        self._leaves = 1 << max(0, most - 1).bit_length()
        self._greatest = [-1] * (2 * self._leaves)

    def of(self, place: int) -> int:
        return self._greatest[self._leaves + place]

    def set(self, place: int, room: int) -> None:
        node = self._leaves + place
        self._greatest[node] = room
        while node > 1:
            node //= 2
            self._greatest[node] = max(self._greatest[2 * node], self._greatest[2 * node + 1])

    def first(self, least: int) -> int | None:
        """The first batch with so much room; None when there is none."""
        if self._greatest[1] < least:
            return None
        node = 1
        while node < self._leaves:
            node *= 2
            node += self._greatest[node] < least
        return node - self._leaves


def shares(lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Deal indices of ``lengths`` to ranks so that the ranks have nearly equal tokens; some ranks may get none.

    Deterministic, in O(n log n): longest first, ties by index, each to the rank that has the fewest tokens so far.
    Indices of a rank ascend.
    """
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    loads = [(0, rank) for rank in range(ranks)]  # a heap
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        load, rank = loads[0]
        dealt[rank].append(index)
        heapq.heapreplace(loads, (load + lengths[index], rank))
    return [sorted(indices) for indices in dealt]


def microbatches(
    lengths: Sequence[int], *, max_tokens: int, ranks: int = 1, prefixes: Prefixes | None = None
) -> list[list[list[int]]]:
    """The micro-batches of each rank: every rank has as many as the others, some of them perhaps empty.

    Sharded ranks compute each layer at the same time, so a rank without sequences computes with the others. Sequences
    that share ``prefixes`` stand in one micro-batch, as far as the budget and equal work of the ranks permit.
    """
    halvings = max_tokens.bit_length() if prefixes is not None and ranks > 1 else 1
    dealt = []
    for halving in range(halvings):
        made = parts(lengths, prefixes, most=max_tokens >> halving)
        dealt.append([[made[place] for place in share] for share in shares([part.tokens for part in made], ranks)])
    best = min(dealt, key=lambda ranked: max(sum(part.tokens for part in share) for share in ranked))
    batches = [packed(share, max_tokens=max_tokens) for share in best]
    most = max(map(len, batches), default=0)
    return [each + [[] for _ in range(most - len(each))] for each in batches]


def split_evenly(indices: Sequence[int], parts: int) -> list[list[int]]:
    """Cut a sequence into at most ``parts`` runs of nearly equal length, none of them empty."""
    parts = min(parts, len(indices))
    bounds = [round(part * len(indices) / parts) for part in range(parts + 1)] if parts else []
    return [list(indices[start:end]) for start, end in pairwise(bounds)]
