"""Which rank of a learner sends which part of which tensor to which process of an engine, and in which order.

::

    learner's ranks     0 holds rows 0 to 3      1 holds rows 4 to 7      any boxes that tile each tensor
                        |                        |
    round 1             bucket --> worker 0      bucket --> worker 1      then each worker passes on what it got
    round 2             bucket --> worker 0      bucket --> worker 1

All workers end with all whole tensors, and every element leaves the learner once. A box that several ranks hold is sent
by the one that has the least to send. All processes of a transfer make the same plan from what the ranks hold. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile, zip_longest
from typing import NamedTuple, TypeAlias

Box: TypeAlias = tuple[tuple[int, int], ...]
"""A part of a tensor: where it starts and where it ends in each dimension."""
ALIGNED = 16
"""Pieces begin in a bucket at multiples of so many bytes, so that they can be read as values of any type."""


class Whole(NamedTuple):
    """A tensor that is sent."""

    name: str
    shape: tuple[int, ...]
    itemsize: int
    """Bytes of one value."""


class Piece(NamedTuple):
    """A part of a tensor in a bucket."""

    name: str
    box: Box
    start: int
    end: int
    """Its place in the bucket, in bytes."""


class Bucket(NamedTuple):
    """The tensors that a rank of the learner sends at once to a worker of the engine (both count from 0)."""

    sender: int
    worker: int
    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return self.pieces[-1].end


Round: TypeAlias = tuple[Bucket, ...]
"""The buckets that are sent at the same time: at most one of each rank."""


def plan(tensors: Sequence[Whole], held: Sequence[Sequence[Box]], workers: int, bucket_bytes: int) -> list[Round]:
    """The rounds of a transfer. ``held``: of each rank, its box of each tensor.

    A bucket has at most ``bucket_bytes``, or one value. Raises ValueError when the boxes of a tensor do not tile it.
    """
    boxes: list[list[tuple[Whole, Box]]] = [[] for _ in held]
    load = [0] * len(held)
    for number, tensor in enumerate(tensors):
        holders: dict[Box, list[int]] = {}
        for rank, own in enumerate(held):
            if volume(own[number]):
                holders.setdefault(own[number], []).append(rank)
        _refuse_gaps(tensor, list(holders))
        for box, ranks in holders.items():
            sender = min(ranks, key=lambda rank: load[rank])
            load[sender] += volume(box) * tensor.itemsize
            boxes[sender].append((tensor, box))
    sent = [_buckets(rank, rank % workers, own, bucket_bytes) for rank, own in enumerate(boxes)]
    return [tuple(bucket for bucket in each if bucket is not None) for each in zip_longest(*sent)]


def volume(box: Box) -> int:
    """Number of values in a box."""
    return math.prod(end - start for start, end in box)


def _refuse_gaps(tensor: Whole, boxes: list[Box]) -> None:
    """Raise ValueError unless every value of a tensor is in exactly one of the boxes."""
    boxes.sort()
    outside = any(end > size for box in boxes for (_, end), size in zip(box, tensor.shape, strict=True))
    overlap = any(_common(one, other) for number, one in enumerate(boxes) for other in _near(one, boxes, number))
    if outside or overlap or sum(map(volume, boxes)) != math.prod(tensor.shape):
        raise ValueError(f"the learner's ranks do not hold {tensor.name} {list(tensor.shape)} once: {boxes[:4]}")


def _near(box: Box, boxes: list[Box], number: int) -> Iterator[Box]:
    """The boxes after ``box``, which has this number, that begin before its rows end."""
    following = islice(boxes, number + 1, None)
    return takewhile(lambda other: not box or other[0][0] < box[0][1], following)


def _common(one: Box, other: Box) -> bool:
    pairs = zip(one, other, strict=True)
    return all(max(first[0], second[0]) < min(first[1], second[1]) for first, second in pairs)


def _buckets(sender: int, worker: int, boxes: Sequence[tuple[Whole, Box]], most: int) -> Iterator[Bucket]:
    pieces: list[Piece] = []
    for tensor, whole_box in boxes:
        for box in _cut(whole_box, max(1, most // tensor.itemsize)):
            size = volume(box) * tensor.itemsize
            start = -(-pieces[-1].end // ALIGNED) * ALIGNED if pieces else 0
            if pieces and start + size > most:
                yield Bucket(sender, worker, tuple(pieces))
                pieces, start = [], 0
            pieces.append(Piece(tensor.name, box, start, start + size))
    if pieces:
        yield Bucket(sender, worker, tuple(pieces))


def _cut(box: Box, most: int) -> Iterator[Box]:
    """Boxes of at most so many values, which tile a box, in the order of its rows."""
    if (count := volume(box)) <= most:
        yield box
        return
    dimension = next(number for number, (start, end) in enumerate(box) if end - start > 1)
    first, last = box[dimension]
    rows = max(1, most * (last - first) // count)
    for start in range(first, last, rows):
        yield from _cut((*box[:dimension], (start, min(last, start + rows)), *box[dimension + 1 :]), most)
