"""What the tests of records share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_rl.records.journal import Journal


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """A new one, which is closed in the end."""
    made = Journal(tmp_path / "journal.sqlite")
    yield made
    made.close()
