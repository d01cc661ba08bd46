"""What the tests of learning share."""

from pathlib import Path

import pytest

from agent_rl.config.topology import InitialiseModel
from agent_rl.learning.tiny import initialise_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two small layers, to be read."""
    directory = tmp_path_factory.mktemp("model")
    spec = InitialiseModel(hidden_size=32, layers=2, heads=2, kv_heads=1, head_dim=16, mlp_size=48)
    initialise_model(spec, directory, 0)
    return directory
