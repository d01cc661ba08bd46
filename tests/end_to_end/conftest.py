import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.processes import STARTED


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary files whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="k-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """What a test has started and not ended is ended, and heard to its end."""
    yield
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            process.kill()
            process.communicate()
