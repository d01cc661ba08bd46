"""Messages as the journal stores them: what was received, packed into one blob."""

from __future__ import annotations

from typing import Any

from agent_rl.messages import GroupOpened, Trajectory
from agent_rl.records.journal import JournalError
from agent_rl.records.payloads import pack, unpack
from transport import DecodeError, Registry, decode, encode

STORED = Registry(GroupOpened, Trajectory)


def encode_stored(message: GroupOpened | Trajectory) -> bytes:
    """The message's frames, packed."""
    return pack(encode(message))


def decode_stored(payload: bytes) -> Any:
    """The message again. Raises JournalError for one that this version cannot read."""
    try:
        return decode(unpack(payload), STORED)
    except DecodeError as error:
        raise JournalError(
            f"the journal holds a message of another version of agent_rl ({error}): go on with that version, or start "
            "again in another run.directory"
        ) from error
