"""What sequences have in common: their order by tokens, and the tree of their prefixes in a packed row.

Sequences in the order of their tokens stand beside those with which they share most. A row holds of each only what it
does not share with the one before it, and so each shared prefix once::

    a b c d        shares 0   a b c d
    a b c e f      shares 3         e f       the row: a b c d e f x
    a b x          shares 2     x

A segment of the row ends where sequences part. What continues a segment stands directly behind it: the descendants of
``a b`` are ``c d e f x``, and those of ``c`` are ``d e f``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Tokens: TypeAlias = NDArray[np.int64]


class Prefixes(NamedTuple):
    """``order``: indices of sequences by their tokens; ``common``: how many tokens each shares with the one before."""

    order: list[int]
    common: list[int]

    @classmethod
    def of(cls, sequences: Sequence[Tokens], block: int) -> Prefixes:
        """Order sequences of tokens [length] int64 from 0 to 2**32 - 1, which share prefixes in blocks of tokens."""
        keys = [sequence.astype(">u4").tobytes() for sequence in sequences]
        order = sorted(range(len(keys)), key=keys.__getitem__)
        shared = [_common(sequences[one], sequences[other]) // block * block for one, other in pairwise(order)]
        return cls(order, [0, *shared][: len(order)])


def _common(one: Tokens, other: Tokens) -> int:
    length = min(len(one), len(other))
    differing = np.flatnonzero(one[:length] != other[:length])
    return int(differing[0]) if len(differing) else length


class Shared(NamedTuple):
    """A segment that several sequences share: its bounds in the row, and the end of its descendants behind it."""

    start: int
    end: int
    last: int


class Tree(NamedTuple):
    """Where n sequences stand in a row in which shared prefixes stand once."""

    places: list[Tokens]
    """Of each sequence [length], in the order given: where its tokens stand in the row."""
    lengths: tuple[int, ...]
    """Tokens of each segment, in order; their sum is the row's."""
    shared: tuple[Shared, ...]


def tree(lengths: Sequence[int], prefixes: Prefixes) -> Tree:
    """The row of sequences of these lengths, in O(tokens)."""
    order, common = prefixes
    places: list[Tokens] = [np.zeros(0, np.int64)] * len(lengths)
    ends: dict[int, int] = {}
    starts, before = [0], np.zeros(0, np.int64)
    for place, (index, shared) in enumerate(zip(order, common, strict=True)):
        if shared:
            ends.setdefault(int(before[shared - 1]) + 1, place)
        starts.append(starts[-1] + lengths[index] - shared)
        before = places[index] = np.concatenate([before[:shared], np.arange(starts[-2], starts[-1])])
    bounds = sorted({*starts, *ends})
    inner = []
    for start, end in pairwise(bounds):
        if (first := ends.get(end)) is not None:
            after = (place for place in range(first, len(order)) if common[place] < common[first])
            last = starts[next(after, len(order))]
            if last > end:  # else the sequences are equal
                inner.append(Shared(start, end, last))
    return Tree(
        places=places,
        lengths=tuple(end - start for start, end in pairwise(bounds)),
        shared=tuple(inner),
    )
