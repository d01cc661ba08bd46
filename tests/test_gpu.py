"""What only a GPU can show: the torch engine's contract there, and that packed rows get what a processor computes.

`pytest tests/test_gpu.py` is the first thing to run on a GPU. Without a CUDA device every test is skipped.
"""

import pytest
import torch
import trio

from actors.engines.torch.model import CausalModel
from agent_rl.learning.packing import variable_length_kernel
from agent_rl.learning.policy_model import ModelOptions, PolicyModel
from agent_rl_contract.engine import CHECKS, SLEEP_CHECKS
from tests.actors.engines.test_torch import new_subject
from tests.agent_rl.learning.test_packing import CONFIGS, LENGTHS, saved, sequences

DEVICE = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here")


@pytest.mark.parametrize("check", [*CHECKS, *SLEEP_CHECKS], ids=lambda check: check.__name__)
@pytest.mark.parametrize(("architecture", "kv_on_update"), [("qwen3", "keep"), ("llama", "recompute")])
def test_contract_of_the_torch_engine(check, architecture, kv_on_update, tmp_path):
    trio.run(check, new_subject(tmp_path, architecture, kv_on_update, device=DEVICE))


@pytest.mark.parametrize(("dtype", "most"), [("float32", 1e-4), ("bfloat16", 0.1)])
@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_packed_rows_get_the_values_and_gradients_of_a_processor(name, dtype, most, tmp_path):
    """Rounding changes gradients by a twenty-fifth; attention that leaves its sequence, by more than a half."""
    if dtype == "bfloat16" and variable_length_kernel() is None:
        pytest.skip("flash_attn is not installed, and this torch has no kernel for packed rows")
    path = saved(CONFIGS[name], tmp_path)
    wanted = [torch.arange(length) > 0 for length in LENGTHS]
    made = []
    for device, its in (("cpu", "float32"), (DEVICE, dtype)):
        model = PolicyModel(path, dtype=its, device=device, options=ModelOptions())
        logprobs, _ = model.logprobs(sequences(), wanted, temperature=1.0)
        logprobs.sum().backward()
        gradients = {name_of: each.grad.cpu().float() for name_of, each in model.module.named_parameters()}
        made.append({"log-probabilities": logprobs.detach().cpu(), **gradients})
    for name_of, expected in made[0].items():
        assert (made[1][name_of] - expected).norm() <= most * expected.norm(), name_of


def test_weights_that_the_gpu_converts_are_those_that_a_processor_converts(tmp_path):
    path = saved(CONFIGS["qwen3"], tmp_path)
    engine = CausalModel(path, dtype="float32", compute="bfloat16", device=torch.device(DEVICE))
    weights = {name: torch.randn(spec.shape) for name, spec in engine.specs.items() if min(spec.aliases) == name}
    engine.replace_weights(weights)
    for name, tensor in weights.items():
        assert torch.equal(engine._tensors[name].cpu(), tensor.bfloat16()), name
