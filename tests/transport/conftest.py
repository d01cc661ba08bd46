"""A folder for the sockets of a test."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def sockets() -> Iterator[Path]:
    """Not tmp_path: a socket's path is short."""
    with tempfile.TemporaryDirectory(prefix="link") as folder:
        yield Path(folder)
