"""Ranks of a learner that cannot be: one clear error each, before anything starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent_rl.checks.placement import placement_faults
from agent_rl.checks.ranks import rank_faults
from agent_rl.config.load import load_topology
from agent_rl.config.parallel import MeshSizes, Parallel, mesh_sizes
from agent_rl.config.source import Source
from agent_rl.models.devices import Machine

QUICKSTART = Path("examples/quickstart.toml")
TWO_GPUS = Machine("cuda", ["nvidia0", "nvidia1"], None)


def faults(*overrides: str) -> list[str]:
    topology, source = load_topology(QUICKSTART, overrides), Source(QUICKSTART, overrides)
    found = [*rank_faults(topology, source), *placement_faults(topology, source, machine=TWO_GPUS)]
    return [fault.render("file") for fault in found]


def test_ranks_alone_are_enough() -> None:
    assert not faults("actors.learner.ranks=4")
    assert mesh_sizes(4, Parallel()) == MeshSizes(replicate=1, shard=4, tensor=1)
    assert mesh_sizes(4, Parallel(replicate=2)) == MeshSizes(replicate=2, shard=2, tensor=1)
    assert mesh_sizes(8, Parallel(replicate=2, tensor=2)) == MeshSizes(replicate=2, shard=2, tensor=2)
    assert mesh_sizes(1, Parallel(compile=True)).ranks == 1


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["actors.learner.ranks=4", "model.parallel.shard=3"], "4 ranks are not model.parallel's shard = 3 times"),
        (["actors.learner.ranks=3", "model.parallel.replicate=2"], "3 ranks cannot be shared by model.parallel.repli"),
        (["model.parallel.shard=2"], "write ranks = 2, or leave shard out"),
        (
            ["actors.learner.ranks=3", "model.parallel.tensor=2"],
            "replicate = 1 times tensor = 2; write a multiple of 2",
        ),
        (
            ["actors.learner.ranks=4", "model.parallel.shard=4", "model.parallel.tensor=2"],
            "tensor = 2, which is 8; write ranks = 8, or leave shard out",
        ),
        (
            ["actors.learner.ranks=8", "model.parallel.tensor=8"],
            "model.parallel.tensor: 8 ranks cannot share 4 heads of keys and values of model.initialise",
        ),
        (["actors.learner.ranks=2", "model.parallel.compile=true"], "compile is for one rank"),
        (["actors.tool_executor.ranks=2"], "ToolExecutor is one process"),
        (
            ["actors.learner.ranks=3", 'actors.learner.settings.device="cuda"'],
            "learner.0 has GPU 2 of host local, and it has 2",
        ),
        (["actors.learner.ranks=2", 'actors.learner.settings.device="cuda:1"'], 'write "cuda": rank 0 has cuda:0'),
    ],
)
def test_one_clear_error(overrides: list[str], expected: str) -> None:
    fault, *_ = faults(*overrides)
    assert expected in fault


def test_ranks_share_layers_of_models_that_can_be_split(tmp_path: Path) -> None:
    assert not faults("actors.learner.ranks=4", "model.parallel.tensor=2")
    config = {"model_type": "qwen2", "num_attention_heads": 14, "num_key_value_heads": 2, "hidden_size": 896}
    config |= {"num_hidden_layers": 24, "intermediate_size": 4864, "vocab_size": 151936}
    config["max_position_embeddings"] = 32768

    def of_model() -> list[str]:
        (tmp_path / "config.json").write_text(json.dumps(config))
        reference = f'algorithm.kl={{coefficient=0.1, reference="{tmp_path}"}}'
        return faults("actors.learner.ranks=4", "model.parallel.tensor=4", "model.initialise.kv_heads=4", reference)

    (fault,) = of_model()
    assert "4 ranks cannot share 14 heads and 2 heads of keys and values of algorithm.kl.reference" in fault
    assert "write a divisor of 2, or shard" in fault
    config["model_type"] = "qwen3_moe"
    (fault,) = of_model()
    assert "algorithm.kl.reference is of the kind qwen3_moe, whose layers ranks cannot share" in fault


def test_as_many_ranks_as_gpus_are_fine() -> None:
    assert not faults("actors.learner.ranks=2", 'actors.learner.settings.device="cuda"')
