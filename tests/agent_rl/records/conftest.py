"""What the tests of records share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_rl.records.journal import Journal
from tests.agent_rl.records.report_runs import SyntheticRun


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """A new one, which is closed in the end."""
    made = Journal(tmp_path / "journal.sqlite")
    yield made
    made.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory of a whole run that has ended."""
    return SyntheticRun(tmp_path / "made").whole().close()
