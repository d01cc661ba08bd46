"""Find where the checksums of SQLite's write-ahead log are wrong. SQLite itself does not report it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

LOG_HEADER, FRAME_HEADER = 32, 24
LOG_MAGIC = 0x377F0682
"""The last bit gives the byte order of the checksum. Format: SQLite, "The WAL File Format"."""


def log_faults(path: Path) -> Iterator[str]:
    """The first frame with a wrong checksum, when frames of the same log follow it."""
    content = path.read_bytes()
    if len(content) < LOG_HEADER:
        return
    magic, _, page_size, _, *salts, first, second = struct.unpack_from(">8I", content)
    order = ">" if magic & 1 else "<"
    sums = _checksum(content[: LOG_HEADER - 8], (0, 0), order)
    if magic & ~1 != LOG_MAGIC or sums != (first, second):
        yield f"{path}: its header is not what was written, and SQLite ignores all of it"
        return
    size = FRAME_HEADER + page_size
    broken: int | None = None
    for frame, start in enumerate(range(LOG_HEADER, len(content) - size + 1, size)):
        *_, salt1, salt2, first, second = struct.unpack_from(">6I", content, start)
        ours = [salt1, salt2] == salts
        if broken is None and ours:
            sums = _checksum(content[start : start + 8], sums, order)
            sums = _checksum(content[start + FRAME_HEADER : start + size], sums, order)
            ours = sums == (first, second)
            if not ours:
                yield f"{path}: frame {frame} is not what was written; SQLite ignores it and all behind it"
                return
        elif broken is None:
            broken = frame  # the rest of an older log, if nothing of this one follows
        elif ours:
            yield f"{path}: frame {broken} is not what was written; SQLite ignores it and all behind it"
            return


def _checksum(content: bytes, sums: tuple[int, int], order: str) -> tuple[int, int]:
    one, other = sums
    words = struct.unpack(f"{order}{len(content) // 4}I", content)
    for index in range(0, len(words), 2):
        one = (one + words[index] + other) & 0xFFFFFFFF
        other = (other + words[index + 1] + one) & 0xFFFFFFFF
    return one, other
