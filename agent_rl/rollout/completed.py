"""Completed turns: what lets another generator go on with a rollout, and the checksums that chain them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np

from agent_rl.messages import CompletedTurn, Int32Matrix


def prompt_check(prompt: Sequence[int]) -> int:
    """The checksum that the first turn continues."""
    return crc32(np.array(prompt, dtype=np.int32).data)


def checksum(
    before: int, arrays: Sequence[np.ndarray[Any, Any]], state: bytes, tool_states: Mapping[str, bytes]
) -> int:
    """The checksum of a rollout after a turn, from that before it."""
    check = before
    for array in arrays:
        check = crc32(np.ascontiguousarray(array).data, check)
    check = crc32(state, check)
    for name in sorted(tool_states):
        check = crc32(tool_states[name], crc32(name.encode(), check))
    return check


def turn_check(turn: CompletedTurn) -> int:
    """The checksum that the turn ought to have."""
    arrays = (turn.written, turn.logprobs, turn.policies, turn.answer)
    return checksum(turn.before, arrays, turn.state, turn.tool_states)


def runs_of(policies: Int32Matrix) -> Int32Matrix:
    """Policies token by token [n, 2] as runs of equal ones [r, 3]: epoch, version, length."""
    count = len(policies)
    if policies.tobytes() == policies[:1].tobytes() * count:  # most turns: one policy
        return np.array([[*policies[0].tolist(), count]], dtype=np.int32)
    changes = np.flatnonzero((policies[1:] != policies[:-1]).any(axis=1)) + 1
    starts = np.concatenate([[0], changes])
    lengths = np.diff(np.append(starts, count))
    return np.column_stack([policies[starts], lengths]).astype(np.int32)


def token_by_token(runs: Int32Matrix) -> Int32Matrix:
    """The inverse of `runs_of`: [r, 3] -> [n, 2]."""
    policies: Int32Matrix = np.repeat(runs[:, :2], runs[:, 2], axis=0)
    return policies


def chain_fault(before: int, turns: Sequence[CompletedTurn]) -> str:
    """Why the turns do not continue each other from the checksum ``before``; empty if they do."""
    for number, turn in enumerate(turns, 1):
        if turn.number != number:
            return f"turn {number} is missing"
        if turn.before != before:
            return "they continue another prompt" if number == 1 else f"turn {number} continues another turn"
        if turn_check(turn) != turn.after or not _sound(turn):
            return f"turn {number} is damaged"
        before = turn.after
    return ""


def _sound(turn: CompletedTurn) -> bool:
    runs, count = turn.policies, len(turn.written)
    fits = len(turn.logprobs) == count > 0 and runs.shape[1:] == (3,)
    return fits and bool((runs[:, 2] > 0).all()) and int(runs[:, 2].sum()) == count
