"""Linear layers by oneDNN: what it keeps of them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from agent_rl.learning.linear import CACHES

# In a process of its own: the libraries read their limits once.
SCRIPT = """
import torch
from pathlib import Path
from torch import nn
from agent_rl.learning.linear import use_one_dnn

def held():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

torch.set_num_threads(1)
layer = nn.Sequential(nn.Linear(128, 128))
use_one_dnn(layer)
for rows in range(1, 20):
    layer(torch.randn(rows, 128)).sum().backward()
before = held()
for rows in range(20, 220):
    layer(torch.randn(rows, 128)).sum().backward()
print(held() - before)
"""


def growth(**environment: str) -> float:
    """MiB that 200 forward and backward passes over as many lengths leave behind."""
    own = {name: value for name, value in os.environ.items() if name not in CACHES}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, env=own | environment
    )
    return float(done.stdout)


def test_products_of_ever_new_lengths_take_no_more_memory() -> None:
    assert growth() < 25


@pytest.mark.slow
def test_without_the_bound_they_do() -> None:
    """As many are kept as the libraries keep of their own accord: the test above can fail."""
    assert growth(**dict.fromkeys(CACHES, "1024")) > 60
