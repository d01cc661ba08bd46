"""The memory of an engine that computes ever new numbers of rows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from actors.engines.reference import save_tiny_model
from actors.engines.torch.model import CausalModel
from agent_rl.learning.linear import CACHES, PRODUCTS

# In a process of its own: the libraries read their limits once.
SCRIPT = """
import sys
from pathlib import Path

import numpy as np
import torch
import transformers

from actors.engines.base import TurnRequest
from actors.engines.torch.decode import Decoder
from actors.engines.torch.model import CausalModel
from actors.engines.torch.sequences import SequenceTurn
from agent_rl.learning.tiny import initialise_model
from agent_rl.messages import Policy
from benchmarks.rollout_models import quickstart_model

def held():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

torch.set_num_threads(1)
transformers.logging.disable_progress_bar()
model = Path(sys.argv[1])
initialise_model(quickstart_model(), model, seed=0)
random = np.random.default_rng(0)
with torch.inference_mode():
    served = CausalModel(model, dtype="float32", device=torch.device("cpu"))
    decoder = Decoder(served, max_rollouts=256, kv_tokens=None, kv_on_update="keep", policy=Policy(0, 0))
    running = number = 0
    for step in range(300):
        if step == 40:
            before = held()
        if step % 10 == 0:
            wanted = int(random.integers(1, 257))
        while running < wanted:
            number, running = number + 1, running + 1
            tokens = random.integers(10, 100, int(random.integers(4, 64)))
            request = TurnRequest(
                rollout=str(number),
                tokens=tokens,
                max_tokens=int(random.integers(1, 60)),
                temperature=1.0,
                stop_tokens=frozenset(),
                seed=number,
            )
            decoder.submit(SequenceTurn(request, number, tokens))
        for turn, _ in decoder.step():
            decoder.release(turn.rollout)
            running -= 1
print(held() - before)
"""


def growth(model: Path, **environment: str) -> float:
    """MiB by which the process grows in 260 steps of random numbers of rows."""
    own = {name: value for name, value in os.environ.items() if name not in CACHES}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(model)], capture_output=True, text=True, check=True, env=own | environment
    )
    return float(done.stdout)


def test_the_engine_bounds_the_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CACHES:
        monkeypatch.delenv(name, raising=False)
    save_tiny_model(tmp_path / "model", "llama", seed=0)
    CausalModel(tmp_path / "model", dtype="float32", device=torch.device("cpu"))
    assert {os.environ[name] for name in CACHES} == {PRODUCTS}


@pytest.mark.slow
def test_new_numbers_of_rows_take_no_more_memory(tmp_path: Path) -> None:
    bounded = growth(tmp_path / "model")
    unbounded = growth(tmp_path / "model", **dict.fromkeys(CACHES, "1024"))
    assert bounded < unbounded / 2, f"{bounded} MiB with the bound, {unbounded} MiB with what the libraries keep"
