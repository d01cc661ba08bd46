"""Read and verify the files of a checkpoint, without torch: its position, and whether each file is as written."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_rl.files.reading_json import open_file, read_json

TRAINING = "training/"
STATE_FILE = f"{TRAINING}state.json"
_BLOCK = 1 << 22


@dataclass(frozen=True, slots=True)
class Position:
    """A position in the recipe: the stage, the version at its start, the version (RL steps) reached.

    ``step`` counts the steps so far in a supervised stage.
    """

    stage: int
    stage_version: int
    version: int
    step: int = 0

    @property
    def begins_stage(self) -> bool:
        """Whether nothing of the stage was trained yet."""
        return self.version == self.stage_version and not self.step


class CheckpointError(Exception):
    """A checkpoint cannot be used; the message names the file and the fault."""


def read_position(directory: Path) -> Position | None:
    """The position of a checkpoint; None when the folder holds no complete checkpoint."""
    found = read_state(directory)
    return None if found is None else found[0]


def read_state(directory: Path) -> tuple[Position, dict[str, Any]] | None:
    """The position of a checkpoint and its extra data; None when the folder holds no complete checkpoint."""
    try:
        state = _read_state(directory / STATE_FILE)
        return position_of(state), dict(state.get("extra", {}))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _read_state(path: Path) -> dict[str, Any]:
    """Raises OSError, and ValueError or KeyError when the file changed since it was written."""
    state: dict[str, Any] = read_json(path)
    if state.pop("checksum", None) not in {None, checksum_of_state(state)}:
        raise ValueError("it is not what was written: its checksum differs")
    return state


def checksum_of_state(state: Mapping[str, Any]) -> int:
    """The CRC of a state file's content without its own ``checksum``."""
    return zlib.crc32(json.dumps(state).encode())


def verify(directory: Path, *, training: bool = True) -> dict[str, Any]:
    """The content of the state file. Raises CheckpointError when a file is missing, truncated or changed.

    Without ``training``, files that only training needs are not read.
    """
    path = directory / STATE_FILE
    try:
        state = _read_state(path)
        files = dict(state["files"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    for name, (size, checksum) in files.items():
        if not training and name.startswith(TRAINING):
            continue
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
    """The position in a state file's content."""
    return Position(state["stage"], state["stage_version"], state["version"], state.get("step", 0))


def file_checksum(path: Path) -> tuple[int, int]:
    """Size in bytes and CRC of a file, read in blocks."""
    size = checksum = 0
    with open_file(path) as file:
        while block := file.read(_BLOCK):
            size += len(block)
            checksum = zlib.crc32(block, checksum)
    return size, checksum
