"""The layout of one step: the tokens of all its sequences in one packed row, and the index arrays for attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from actors.engines.torch.kv_cache import KVCache, Prefill

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from actors.engines.torch.sequences import Sequences

SPAN_ELEMENTS = 1 << 15
"""128 KiB in float32: a CPU reads them in about 10 us, about the cost of a few more torch calls."""
_SPAN_ROWS = 4
_WASTE = 2
"""Sequences are padded together while the longest has at most this many times the new tokens of the shortest."""
_PADDED_TOKENS = 4096
"""On a GPU, where a call of a kernel costs more than padding: while they have at most so many tokens with padding."""

_WHOLE = 1.5
"""Whole rows of the cache are read in place of parts that are not shorter by more than this factor."""


@dataclass(frozen=True, slots=True)
class PackedStep:
    """A step of n tokens and w sequences: ``tokens`` [n], ``positions`` [n], ``ends`` [w] (the last token of each
    sequence), all int64 and padded at the end to ``rounded`` lengths; ``write`` [n * kv_heads] int64; ``bias``,
    ``spans`` and ``prefills`` as in ForwardStep. ``count`` is n.
    """

    count: int
    tokens: Tensor
    positions: Tensor
    ends: Tensor
    write: Tensor
    bias: Tensor | None
    spans: tuple[tuple[int, int, int], ...]
    prefills: tuple[Prefill, ...]


def rounded(count: int) -> int:
    """The next number with five significant bits: at most a sixteenth more.

    oneDNN makes a kernel for each new number of rows, which takes longer than to use it. With arbitrary numbers of
    tokens, a step of some hundred tokens on CPU took half as long again.
    """
    unit = 1 << max(0, (count - 1).bit_length() - 5)
    return -(-count // unit) * unit


def share_prompts(sequences: Sequences, joining: list[int], *, cached: bool) -> tuple[list[int], list[tuple[int, int]]]:
    """Split joining slots into slots to compute, and (slot, computed slot) pairs for slots with the same tokens.

    The rollouts of a group share their prompt. A sequence with cached tokens is computed, unless ``cached``: what is
    cached is what would be computed.
    """
    computed: list[int] = []
    shared: list[tuple[int, int]] = []
    first: dict[bytes, int] = {}
    for slot in joining:
        known = sequences.tokens[slot, : sequences.total[slot]]
        leader = slot if sequences.cached[slot] and not cached else first.setdefault(known.tobytes(), slot)
        if leader == slot:
            computed.append(slot)
        else:
            shared.append((slot, leader))
    return computed, shared


def pack(
    sequences: Sequences, slots: NDArray[np.int64], decoding: int, shared_rows: list[tuple[int, int]], cache: KVCache
) -> PackedStep:
    """Lay out the sequences of rows 0, 1, ... (``slots``, in row order).

    The first ``decoding`` sequences have one new token each. Those to prefill follow, with the most new tokens first.
    The last are ``shared_rows``: (row, row that computes the same).
    """
    cached, total = sequences.cached[slots], sequences.total[slots]
    rows = np.arange(len(slots))
    ends = rows
    tokens = sequences.tokens[slots[:decoding], cached[:decoding]]
    positions = cached[:decoding]
    token_rows = rows[:decoding]
    prefills: list[Prefill] = []
    if len(slots) > decoding:
        ends = rows.copy()
        packed_tokens, packed_positions, packed_rows = [tokens], [positions], [token_rows]
        at = decoding
        new_tokens = (total - cached)[: len(slots) - len(shared_rows)]
        for first, last in prefill_parts(new_tokens, decoding, on_cpu=cache.device.type == "cpu"):
            part, lengths = _prefill(first, cached[first:last], total[first:last], at, cache)
            prefills.append(part)
            ends[first:last] = at + lengths.cumsum() - 1
            at += int(lengths.sum())
            for row in range(first, last):
                span = np.arange(cached[row], total[row])
                packed_tokens.append(sequences.tokens[slots[row], cached[row] : total[row]])
                packed_positions.append(span)
                packed_rows.append(np.full(len(span), row))
        for row, leader in shared_rows:
            ends[row] = ends[leader]
        tokens = np.concatenate(packed_tokens)
        positions = np.concatenate(packed_positions)
        token_rows = np.concatenate(packed_rows)
    heads = np.arange(cache.kv_heads)
    parts = spans(cached[:decoding] + 1, cache.row_elements if cache.device.type == "cpu" else 0)
    if cache.device.type == "cpu" and cache.dtype != torch.float32:  # oneDNN copies parts of rows, but not whole ones
        whole = cache.length
        parts = tuple((first, last, whole if whole <= _WHOLE * length else length) for first, last, length in parts)
    write = (token_rows[:, None] * cache.kv_heads + heads) * cache.length + positions[:, None]
    return PackedStep(
        count=len(tokens),
        tokens=_tensor(_padded(tokens), cache),
        positions=_tensor(_padded(positions), cache),
        ends=_tensor(_padded(ends), cache),
        write=_tensor(write.reshape(-1), cache),
        bias=_decode_bias(cached[:decoding], max(length for _, _, length in parts), cache) if decoding else None,
        spans=parts,
        prefills=tuple(prefills),
    )


def prefill_parts(new_tokens: NDArray[np.int64], first: int, *, on_cpu: bool) -> list[tuple[int, int]]:
    """Split the rows from ``first`` on, those with the most new tokens first, into runs (first, last) to pad together.

    On a processor their numbers of new tokens are similar; on a GPU a run has at most ``_PADDED_TOKENS``.
    """
    parts = []
    for row in range(first + 1, len(new_tokens) + 1):
        longest = new_tokens[first]
        if (
            row == len(new_tokens)
            or (on_cpu and longest > _WASTE * new_tokens[row])
            or (not on_cpu and longest * (row + 1 - first) > _PADDED_TOKENS)
        ):
            parts.append((first, row))
            first = row
    return parts


def _prefill(
    first_row: int, cached: NDArray[np.int64], total: NDArray[np.int64], at: int, cache: KVCache
) -> tuple[Prefill, NDArray[np.int64]]:
    lengths = total - cached
    longest, length = int(lengths.max()), int(total.max())
    columns = np.arange(longest)
    real = columns < lengths[:, None]
    starts = at + lengths.cumsum() - lengths
    gather = starts[:, None] + np.minimum(columns, lengths[:, None] - 1)
    bias = None
    if cached.any():
        visible = np.arange(length) <= (cached[:, None] + columns)[:, :, None]
        bias = _tensor(np.where(visible, np.float32(0.0), np.float32(-np.inf))[:, None], cache).to(cache.dtype)
    part = Prefill(
        first_row=first_row,
        sequences=len(cached),
        new_tokens=longest,
        length=length,
        gather=_tensor(gather.reshape(-1), cache),
        scatter=_tensor(np.flatnonzero(real.reshape(-1)), cache),
        bias=bias,
    )
    return part, lengths


def spans(lengths: NDArray[np.int64], elements: int) -> tuple[tuple[int, int, int], ...]:
    """Split decoding rows, by the tokens they attend to, into runs (first, behind the last, longest), in order.

    A run's padding costs less than reading ``SPAN_ELEMENTS`` of keys and values, the cost of a further run.
    ``elements``: size of a token in a layer; 0 makes all rows one run, as suits a GPU. Rows that joined together are in
    order of length.
    """
    if not elements or not len(lengths):
        return ((0, len(lengths), int(lengths.max())),) if len(lengths) else ()
    worth = SPAN_ELEMENTS // elements
    longest = np.maximum.reduceat(lengths, np.arange(0, len(lengths), _SPAN_ROWS)).tolist()
    found = []
    first, length, read = 0, longest[0], 0
    for number, here in enumerate(longest):
        at, both = number * _SPAN_ROWS, max(length, here)
        if (at + _SPAN_ROWS - first) * both - (read + _SPAN_ROWS * here) > worth:
            found.append((first, at, length))
            first, both, read = at, here, 0
        length, read = both, read + _SPAN_ROWS * here
    return (*found, (first, len(lengths), length))


def _decode_bias(cached: NDArray[np.int64], length: int, cache: KVCache) -> Tensor:
    """[rows * kv_heads, 1, length]: each row's new token attends to the ``cached`` tokens before it and to itself."""
    visible = np.arange(length) <= cached[:, None]
    bias = np.where(visible, np.float32(0.0), np.float32(-np.inf)).repeat(cache.kv_heads, axis=0)
    return _tensor(bias[:, None], cache).to(cache.dtype)


def _padded(array: NDArray[np.int64]) -> NDArray[np.int64]:
    padded = np.zeros(rounded(len(array)), np.int64)
    padded[: len(array)] = array
    return padded


def _tensor(array: NDArray[np.generic], cache: KVCache) -> Tensor:
    return torch.from_numpy(array).to(cache.device)
