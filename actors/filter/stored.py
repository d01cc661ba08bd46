"""Messages as the journal stores them: what was received, as one blob."""

from __future__ import annotations

from typing import Any

from agent_rl.messages import GroupOpened, Trajectory
from agent_rl.records.journal import JournalError
from transport import DecodeError, Registry, decode, encode

STORED = Registry(GroupOpened, Trajectory)


def encode_stored(message: GroupOpened | Trajectory) -> bytes:
    """The message's frames, each with its length (4 bytes, big-endian) before it."""
    frames = [bytes(frame) for frame in encode(message)]
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


def decode_stored(payload: bytes) -> Any:
    """The message again. Raises JournalError for one that this version cannot read."""
    frames: list[memoryview] = []
    view = memoryview(payload)
    while view:
        size = int.from_bytes(view[:4], "big")
        frames.append(view[4 : 4 + size])
        view = view[4 + size :]
    try:
        return decode(frames, STORED)
    except DecodeError as error:
        raise JournalError(
            f"the journal holds a message of another version of agent_rl ({error}): go on with that version, or start "
            "again in another run.directory"
        ) from error
