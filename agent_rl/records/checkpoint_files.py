"""What the files of a checkpoint say: how far it is, and whether each file is what was written. Read without torch."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STATE_FILE = "training/state.json"
OLD_STATE_FILE = "trainer.json"
_BLOCK = 1 << 22


@dataclass(frozen=True, slots=True)
class Position:
    """Where a run stands: the stage, the version it began at, the version (RL steps) reached; in a supervised stage its steps so far."""

    stage: int
    stage_version: int
    version: int
    step: int = 0


class CheckpointError(Exception):
    """A checkpoint cannot be gone on from; the message names the file and what is wrong with it."""


def read_position(directory: Path) -> Position | None:
    """The position of a checkpoint; None when the folder is not a whole one."""
    found = read_state(directory)
    return None if found is None else found[0]


def read_state(directory: Path) -> tuple[Position, dict[str, Any]] | None:
    """The position of a checkpoint and what is kept beside it; None when the folder is not a whole one."""
    try:
        state = _read_state(state_file(directory))
        return position_of(state), dict(state.get("extra", {}))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _read_state(path: Path) -> dict[str, Any]:
    """Raises OSError, and ValueError when it is not what was written; states of earlier versions have no checksum."""
    state: dict[str, Any] = json.loads(path.read_text())
    written = state.pop("checksum", None)
    if written not in {None, checksum_of_state(state)}:
        raise ValueError("it is not what was written: its checksum differs")
    return state


def checksum_of_state(state: Mapping[str, Any]) -> int:
    """The CRC of a state file's content without its own ``checksum``."""
    return zlib.crc32(json.dumps(state).encode())


def state_file(directory: Path) -> Path:
    """The file that says what a checkpoint consists of; a Hugging Face model that no run has saved lacks it."""
    old = directory / OLD_STATE_FILE
    return old if old.is_file() else directory / STATE_FILE


def verify(directory: Path) -> dict[str, Any]:
    """What the state file holds. Raises CheckpointError when a file is missing, cut, or not what was written."""
    path = state_file(directory)
    try:
        state = _read_state(path)
        files = dict(state["files"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    for name, (size, checksum) in files.items():
        try:
            found = file_checksum(directory / name)
        except OSError as error:
            raise CheckpointError(f"{directory / name} cannot be read: {error.strerror}") from error
        if found[0] != size:
            raise CheckpointError(f"{directory / name} is {found[0]} bytes long, {size} were written")
        if found[1] != checksum:
            raise CheckpointError(f"{directory / name} is not what was written: its checksum differs")
    return state


def position_of(state: Mapping[str, Any]) -> Position:
    """The position that a state file holds."""
    return Position(state["stage"], state["stage_version"], state["version"], state.get("step", 0))


def file_checksum(path: Path) -> tuple[int, int]:
    """Size in bytes and CRC of a file, read in blocks."""
    size = checksum = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            size += len(block)
            checksum = zlib.crc32(block, checksum)
    return size, checksum
