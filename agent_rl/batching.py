"""Micro-batches by token budget, and the batches of supervised training."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import TypeAlias

from agent_rl.tasks import TaskError

Masked: TypeAlias = tuple[list[int], list[int]]
"""A sequence's tokens and its loss mask."""

TOO_MANY = 10_000
"""Sequences in a row that do not fit: none ever will."""

POOL = 16
"""Batches sorted by length together: so many that lengths within one differ little, few enough to keep batches mixed."""


def bucketed(sequences: Iterator[Masked], batch: int, rng: random.Random) -> Iterator[list[Masked]]:
    """Batches of sequences of like length, in random order within each pool of ``POOL`` batches; without end if they are."""
    while pool := sorted(islice(sequences, POOL * batch), key=lambda sequence: len(sequence[0])):
        batches = [pool[start : start + batch] for start in range(0, len(pool), batch)]
        rng.shuffle(batches)
        yield from batches


def fitting(sequences: Iterable[Masked], longest: int) -> Iterator[Masked]:
    """Those of at most ``longest`` tokens. Raises TaskError when ``TOO_MANY`` in a row are longer."""
    longer = 0
    for sequence in sequences:
        if len(sequence[0]) <= longest:
            longer = 0
            yield sequence
            continue
        longer += 1
        if longer == TOO_MANY:
            remedy = "train a longer model, or cut them with `agent-rl data sft --max-tokens`"
            raise TaskError(f"{longer:,} conversations in a row have more than the model's {longest} tokens: {remedy}")


def microbatches(lengths: Sequence[int], *, max_tokens: int) -> list[list[int]]:
    """Split indices of ``lengths`` into batches of at most ``max_tokens`` tokens, to be packed without padding.

    A sequence longer than the budget makes a batch of its own. Deterministic: longest first, ties by index, each into the first
    batch with room; indices within a batch ascend.
    """
    batches: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        found = next((batch for batch, left in enumerate(room) if left >= lengths[index]), None)
        if found is None:
            batches.append([index])
            room.append(max_tokens - lengths[index])
        else:
            batches[found].append(index)
            room[found] -= lengths[index]
    return [sorted(batch) for batch in batches]


def split_evenly(indices: Sequence[int], parts: int) -> list[list[int]]:
    """Cut a sequence into at most ``parts`` runs of nearly equal length, none of them empty."""
    parts = min(parts, len(indices))
    bounds = [round(part * len(indices) / parts) for part in range(parts + 1)] if parts else []
    return [list(indices[start:end]) for start, end in pairwise(bounds)]
