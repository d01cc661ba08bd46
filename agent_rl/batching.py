"""Micro-batches by token budget: sequences of like length together, so that little is padding."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from typing import TypeAlias

Masked: TypeAlias = tuple[list[int], list[int]]
"""A sequence's tokens and its loss mask."""

POOL = 16
"""Batches sorted by length together: enough to leave little padding, few enough to keep batches mixed."""


def bucketed(sequences: Iterator[Masked], batch: int, rng: random.Random) -> Iterator[list[Masked]]:
    """Batches of sequences of like length, in random order within each pool of ``POOL`` batches; without end if they are."""
    while pool := sorted(islice(sequences, POOL * batch), key=lambda sequence: len(sequence[0])):
        batches = [pool[start : start + batch] for start in range(0, len(pool), batch)]
        rng.shuffle(batches)
        yield from batches


def microbatches(lengths: Sequence[int], *, max_tokens: int) -> list[list[int]]:
    """Split indices of ``lengths`` into batches whose padded size (longest times count) is at most ``max_tokens``.

    A sequence longer than the budget makes a batch of its own. Deterministic: longest first, ties by index.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    batches: list[list[int]] = []
    widest = 0
    for index in order:
        if batches and (len(batches[-1]) + 1) * widest <= max_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
            widest = lengths[index]
    return batches


def split_evenly(indices: Sequence[int], parts: int) -> list[list[int]]:
    """Cut a sequence into at most ``parts`` runs of nearly equal length, none of them empty."""
    parts = min(parts, len(indices))
    bounds = [round(part * len(indices) / parts) for part in range(parts + 1)] if parts else []
    return [list(indices[start:end]) for start, end in pairwise(bounds)]
