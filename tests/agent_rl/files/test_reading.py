"""Files of others that are none, have no end, or are larger than any disk: one error each, at once."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_rl.config.load import load_topology
from agent_rl.config.source import TopologyError
from agent_rl.data.shuffle import _lines
from agent_rl.environments.base import TaskError
from agent_rl.environments.task_files import read_rows
from agent_rl.files.reading_json import read_json, read_text
from agent_rl.models.model_files import Unreadable, read_template
from benchmarks.twin.profile import ProfileError, read_profile

READERS: dict[str, tuple[str, Callable[[Path], Any], type[Exception]]] = {
    "a topology": ("a.toml", load_topology, TopologyError),
    "rows": ("a.jsonl", lambda path: list(read_rows(str(path), path)), TaskError),
    "packed rows": ("a.jsonl.gz", lambda path: list(read_rows(str(path), path)), TaskError),
    "rows in random order": ("a.jsonl", lambda path: list(_lines(str(path), path)), TaskError),
    "a chat template": ("a.jinja", read_template, Unreadable),
    "a profile": ("a.toml", lambda path: read_profile(str(path)), ProfileError),
    "JSON": ("a.json", read_json, OSError),
    "a text": ("a.txt", read_text, OSError),
}


@pytest.mark.parametrize("kind", ["a pipe", "a device", "a directory", "holes"])
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_one_error_at_once(tmp_path: Path, reader: str, kind: str) -> None:
    name, read, error = READERS[reader]
    path = tmp_path / name
    match kind:
        case "a pipe":
            os.mkfifo(path)
        case "a device":
            path.symlink_to("/dev/zero")
        case "a directory":
            path.mkdir()
        case _ if name.endswith(".gz"):
            path.write_bytes(gzip.compress(b"\0" * (65 << 20)))
        case _:
            with path.open("wb") as file:
                file.truncate(100 << 30)
    with pytest.raises(error):
        read(path)
