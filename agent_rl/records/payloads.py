"""Pack the frames of a message into one blob, without loss. Each frame gets the packing that suits it.

In a trajectory, policies and loss mask are runs of equal values. Tokens and texts deflate to less than half.
Log-probabilities do not, and stay float32. `docs/decisions/studies.md` has the bytes per token before and after.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np

RAW, RUNS, DEFLATED = range(3)
HEADER = struct.Struct(">BI")
"""The header of each frame: its packing, and its number of bytes."""
SMALL, LONG = 2048, 8192
"""Frames below ``SMALL`` bytes are left as they are, and only frames from ``LONG`` bytes on are deflated.

A whole trajectory of a few hundred tokens is one short frame; deflating it would take the filter longer than all else.
"""
UNIT = 8
"""Runs consist of units of 8 bytes: one policy, or 8 tokens of a loss mask."""
WORTH = 0.75
"""A frame is deflated when its samples shrink to less than this share."""
SAMPLE = 2048


def pack(frames: Sequence[bytes | memoryview]) -> bytes:
    """Pack all frames into one blob."""
    parts: list[bytes] = []
    for frame in frames:
        content = bytes(frame)
        way, packed = (RAW, content) if len(content) < SMALL else _packed(content)
        parts += [HEADER.pack(way, len(packed)), packed]
    return b"".join(parts)


def unpack(blob: bytes) -> list[bytes]:
    """The frames of a blob."""
    frames, at = [], 0
    while at < len(blob):
        way, size = HEADER.unpack_from(blob, at)
        at += HEADER.size
        content = blob[at : at + size]
        frames.append(_spread(content) if way == RUNS else zlib.decompress(content) if way == DEFLATED else content)
        at += size
    return frames


def _packed(content: bytes) -> tuple[int, bytes]:
    units = np.frombuffer(content, dtype=np.uint64, count=len(content) // UNIT)
    ends = np.append(np.flatnonzero(units[1:] != units[:-1]), len(units) - 1)
    if 2 * len(ends) < len(units) // 8:
        rest = content[len(units) * UNIT :]
        return RUNS, b"".join([bytes([len(rest)]), rest, ends.astype(np.uint32).tobytes(), units[ends].tobytes()])
    if len(content) < LONG:
        return RAW, content
    middle = (len(content) - SAMPLE) // 2
    sample = content[:SAMPLE] + content[middle : middle + SAMPLE] + content[-SAMPLE:]
    if len(zlib.compress(sample, 1)) < WORTH * len(sample):
        return DEFLATED, zlib.compress(content, 1)
    return RAW, content


def _spread(packed: bytes) -> bytes:
    extra = packed[0]
    runs = (len(packed) - 1 - extra) // (4 + UNIT)
    ends = np.frombuffer(packed, dtype=np.uint32, count=runs, offset=1 + extra).astype(np.int64)
    units = np.frombuffer(packed, dtype=np.uint64, count=runs, offset=1 + extra + 4 * runs)
    return np.repeat(units, np.diff(ends, prepend=-1)).tobytes() + packed[1 : 1 + extra]
