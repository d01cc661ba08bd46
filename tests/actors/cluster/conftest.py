"""A topology in a folder of its own."""

import pytest

from tests.actors.cluster.topology import TOPOLOGY


@pytest.fixture
def file(tmp_path, monkeypatch):
    """The topology as ``two.toml`` of the working directory."""
    path = tmp_path / "two.toml"
    path.write_text(TOPOLOGY)
    monkeypatch.chdir(tmp_path)
    return path
