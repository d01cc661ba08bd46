"""Messages as the journal stores them: a head as the wire encodes it, then the body of a trajectory as it came.

Nothing is packed here: the generator has packed the body, and packing the texts of a head as well would take the filter
longer than all else.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

from agent_rl.messages import GroupOpened, Trajectory
from agent_rl.records.journal import JournalError
from transport import DecodeError, Registry, decode, encode

STORED = Registry(GroupOpened, Trajectory)
HEAD = struct.Struct(">I")
"""The number of bytes of the head."""


def encode_stored(message: GroupOpened | Trajectory) -> bytes:
    """The message as stored. A trajectory's judgement is left out: its row has it."""
    body = b""
    if isinstance(message, Trajectory):
        message, body = replace(message, judgement=None, body=b""), message.body
    (head,) = encode(message)  # one frame: there is no array
    return b"".join([HEAD.pack(len(head)), head, body])


def decode_stored(payload: bytes) -> Any:
    """The message again, a trajectory with its packed body. Raises JournalError for one of another version."""
    try:
        (size,) = HEAD.unpack_from(payload)
        message = decode([payload[HEAD.size : HEAD.size + size]], STORED)
    except (DecodeError, struct.error) as error:
        raise JournalError(
            f"the journal holds a message of another version of agent_rl ({error}): go on with that version, or start "
            "again in another run.directory"
        ) from error
    return replace(message, body=payload[HEAD.size + size :]) if isinstance(message, Trajectory) else message
