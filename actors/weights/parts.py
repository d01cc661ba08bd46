"""Parts of a policy's file, as they travel over links: their size, their checksums, and how one is read."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from agent_rl.messages import WeightsPart

PART_BYTES = 1 << 20
"""Small, since a part is passed on when it has come whole: 16 hosts in a chain lag by 16 parts."""


def part_checksums(path: Path) -> list[int]:
    """The CRC-32 of each part of a file, in order."""
    with path.open("rb") as file:
        return [zlib.crc32(data) for data in iter(lambda: file.read(PART_BYTES), b"")]


def whole_checksum(checksums: Iterable[int]) -> int:
    """The checksum of a file by those of its parts, so that nobody reads the bytes twice."""
    return zlib.crc32(np.array(list(checksums), dtype="<u4").tobytes())


def nothing(offset: int, *, source: str = "", later: bool = False) -> WeightsPart:
    """An answer without data."""
    return WeightsPart(offset, 0, np.zeros(0, np.uint8), source, later)


def read_part(path: Path, offset: int, checksums: Sequence[int]) -> WeightsPart:
    """A part of a file with these checksums. Raises FileNotFoundError."""
    number, misplaced = divmod(offset, PART_BYTES)
    if misplaced or number >= len(checksums):
        return nothing(offset)
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        return WeightsPart(offset, checksums[number], np.frombuffer(file.read(PART_BYTES), np.uint8))


def fault_of(part: WeightsPart, offset: int, length: int) -> str:
    """Why a received part is not the one of ``length`` bytes from ``offset`` on; empty when it is."""
    if len(part.data) != length:
        return f"{len(part.data)} of {length} bytes came"
    if part.offset != offset or zlib.crc32(part.data.data) != part.checksum:
        return "a part arrived with a wrong offset or checksum"
    return ""
