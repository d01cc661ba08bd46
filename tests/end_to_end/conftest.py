from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary files whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="k-", dir="/tmp") as name:
        yield Path(name)
