"""Several ranks against one: the same gradients, the same updates, the same checkpoints. See `rank_cases`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from agent_rl.config.topology import InitialiseModel
from agent_rl.learning.tensor_files import TensorFiles
from agent_rl.learning.tiny import initialise_model

SCRIPT = Path(__file__).with_name("rank_cases.py")
GRADIENTS, UPDATES, REPORTS = 1e-5, 1e-2, 1e-5
"""The most by which gradients, changes of weights and figures may differ, relative to one rank's."""
HALF = 0.05
"""The same for bfloat16, whose gradients are rounded in other places."""
LOSSES = ("grpo", "sequence_mean", "dr_grpo", "gspo", "cispo")
CASES = (
    *LOSSES,
    "sft",
    "one_update",
    "kl",
    "lora",
    "checkpointing",
    "offload",
    "poisoned",
    "poisoned_updates",
    "bfloat16",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    spec = InitialiseModel(hidden_size=32, layers=2, heads=2, kv_heads=1, head_dim=16, mlp_size=48)
    initialise_model(spec, directory, 0)
    return directory


def run(ranks: int, replicate: int, model: Path, folder: Path, *cases: str) -> dict[str, list[float]]:
    """The differences of each case from one rank: of gradients, of updates, of figures."""
    command = [sys.executable, str(SCRIPT), str(ranks), str(replicate), str(model), str(folder), *cases]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    return {case: figures for case, *figures in rows}


def compared(found: dict[str, list[float]], cases: tuple[str, ...]) -> None:
    assert tuple(found) == cases
    for case, (gradients, updates, reports) in found.items():
        if case == "bfloat16":
            assert max(gradients, reports) < HALF
            continue
        assert gradients <= GRADIENTS, case
        assert updates <= UPDATES, case
        assert reports <= REPORTS, case


def test_two_ranks_compute_what_one_does(model: Path, tmp_path: Path) -> None:
    compared(run(2, 1, model, tmp_path, "one_update"), ("one_update",))


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "replicate"), [(2, 1), (2, 2), (4, 1), (4, 2), (3, 1)])
def test_ranks_compute_what_one_does(model: Path, tmp_path: Path, ranks: int, replicate: int) -> None:
    compared(run(ranks, replicate, model, tmp_path, *CASES), CASES)


@pytest.mark.slow
def test_a_step_may_have_fewer_sequences_than_ranks(model: Path, tmp_path: Path) -> None:
    compared(run(4, 1, model, tmp_path, "few", "few_updates"), ("few", "few_updates"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "lora"])
def test_a_checkpoint_of_four_ranks_is_one_of_two_and_of_one_bit_for_bit(
    model: Path, tmp_path: Path, kind: str
) -> None:
    run(4, 1, model, tmp_path, f"save:{kind}:four")
    run(2, 1, model, tmp_path, f"load:{kind}:four:two")
    run(1, 1, model, tmp_path, f"load:{kind}:two:one")
    run(4, 2, model, tmp_path, f"load:{kind}:one:copies")
    first = tensors(tmp_path / "four")
    assert any(name.endswith(".exp_avg_sq") for name in first)
    for other in ("two", "one", "copies"):
        again = tensors(tmp_path / other)
        assert again.keys() == first.keys()
        assert all(torch.equal(again[name], tensor) for name, tensor in first.items())
    assert len(list((tmp_path / "four" / "training").glob("rank-*"))) == 4
    for published in ("four", "two", "copies"):
        served = load_file(tmp_path / f"{published}.safetensors")
        assert served.keys() == load_file(tmp_path / "four" / "model.safetensors").keys()
        assert all(torch.equal(tensor, first[name]) for name, tensor in served.items())
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "four").state_dict()
    assert all(torch.equal(loaded[name], first[name].to(loaded[name].dtype)) for name in loaded.keys() & first.keys())


def tensors(checkpoint: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint, the parts of its ranks put together."""
    paths = [path for path in sorted(checkpoint.rglob("*.safetensors")) if path.stem != "rng"]
    with TensorFiles(paths) as files:
        return {name: files.rows(name, 0, files.shape(name)[0]) for name in sorted(files.names())}
