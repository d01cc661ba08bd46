"""The memory plan against what torch holds, and whether a run fits into the memory and onto the cores of this machine.

Counted are the bytes of tensors, not process memory, which depends on the allocator.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM, Qwen3Config

from agent_rl.config.algorithm import Algorithm
from agent_rl.config.load import load_topology
from agent_rl.config.parallel import MeshSizes
from agent_rl.config.topology import SftStage, Topology
from agent_rl.learning.ranks import JoinedRanks
from agent_rl.learning.sharding import local, shard, unloaded
from agent_rl.learning.trainer import Trainer
from agent_rl.models.devices import Machine
from agent_rl.models.shapes import Shape
from agent_rl.topology_checks import memory
from agent_rl.topology_checks.facts import Facts
from agent_rl.topology_checks.memory import FRAGMENTED, LIBRARIES, Training, learner_needs, plan, plan_rows

TOKENS = 512
SMALL: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
SMALL |= {"head_dim": 16, "intermediate_size": 192, "vocab_size": 200, "max_position_embeddings": 1024}
SMALL |= {"tie_word_embeddings": True}
WIDE = SMALL | {"hidden_size": 96, "num_hidden_layers": 5, "head_dim": 32, "tie_word_embeddings": False}
QWEN3_14B = {"model_type": "qwen3", "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40}
QWEN3_14B |= {"num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 17408, "vocab_size": 151936}
QWEN3_14B |= {"max_position_embeddings": 32768, "tie_word_embeddings": False}
ANY = Machine("cuda", ("nvidia0",), None)
LARGE = Shape.of(QWEN3_14B)
TINY = Shape.of(SMALL | {"model_type": "qwen3"})
assert LARGE is not None
assert TINY is not None
SERVED = 2 * 14_768_307_200
"""Bytes of Qwen3-14B in bfloat16."""


def quickstart(folder: Path, sizes: dict[str, Any], *overrides: str) -> Callable[..., Topology]:
    """Loads the quickstart with a model of these sizes in bfloat16."""
    (folder / "config.json").write_text(json.dumps(sizes))
    given = [f'model={{path="{folder}", dtype="bfloat16"}}', *overrides]
    return lambda *more: load_topology(Path("examples/quickstart/quickstart.toml"), [*given, *more])


@pytest.fixture
def large(tmp_path: Path) -> Callable[..., Topology]:
    """The quickstart with Qwen3-14B in bfloat16, and these overrides."""
    return quickstart(tmp_path, QWEN3_14B)


def rank_needs(shape: Shape, tokens: int, *, ranks: int = 1, **changes: Any) -> dict[str, int]:
    """Bytes of each row of a rank of the learner."""
    given = {"width": 2, "shard": ranks, "checkpointed": False, "logits_mib": 128, "on_gpu": False, **changes}
    training = Training(tokens=tokens, ranks=ranks, **given)
    return {need.what: need.size for need in learner_needs(shape, training, "learner")}


def measured(folder: Path, sizes: dict[str, Any], dtype: str) -> tuple[int, int, int]:
    """Bytes of weights, gradients and moments; of tensors that a forward pass keeps; and the number of weights."""
    AutoModelForCausalLM.from_config(Qwen3Config(**sizes)).save_pretrained(folder)
    algorithm = Algorithm(microbatch_tokens=TOKENS)
    trainer = Trainer(folder, dtype=dtype, device="cpu", algorithm=algorithm, threads=1, seed=0, tokenizer=object())
    row, other = torch.randint(0, 200, (2, TOKENS // 2))
    wanted = torch.tensor([False] + [True] * (TOKENS // 2 - 1))
    stage = SftStage(kind="sft", steps=9, batch=2)
    held: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        kept = trainer.model.logprobs([row, other], [wanted, wanted], temperature=1.0, with_entropy=False)
    parameters = list(trainer.model.module.parameters())
    for parameter in parameters:
        held.pop(parameter.untyped_storage().data_ptr(), None)
    del kept
    trainer.sft_step([(row.tolist(), [1] * len(row))], stage, 0)
    count = sum(parameter.numel() for parameter in parameters)
    moments, _ = trainer.optimizer.state()
    own = sum(parameter.nbytes for parameter in parameters)
    gradients = 4 * count
    return own + gradients + sum(tensor.nbytes for tensor in moments.values()), sum(held.values()), count


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("sizes", [SMALL, WIDE])
def test_the_plan_is_within_a_tenth_of_what_torch_holds(tmp_path: Path, sizes: dict[str, Any], dtype: str) -> None:
    state, activations, count = measured(tmp_path / "model", sizes, dtype)
    shape = Shape.of(sizes | {"model_type": "qwen3"})
    assert shape is not None
    assert shape.weights == count
    planned = rank_needs(shape, TOKENS, width=4 if dtype == "float32" else 2)
    of_state = sum(planned.get(name, 0) for name in ("weights", "float32 copies", "gradients", "moments"))
    assert of_state == state
    error = 100 * abs(planned["activations"] / activations - 1)
    sys.stdout.write(f"plan_error_percent {error:.2f}\n")  # for docs/measurements.md: pytest -rP
    assert error < 10


def test_the_weights_of_real_models_are_counted() -> None:
    assert LARGE.weights == SERVED // 2  # as its safetensors index says, by 2 bytes each
    assert LARGE.kv_bytes(2) == 163_840
    assert Shape.of({"model_type": "mixture"}) is None
    assert Shape.of({"model_type": "qwen3"}) is None


def test_ranks_share_what_is_sharded_and_checkpointing_keeps_inputs() -> None:
    few = rank_needs(LARGE, 16384, ranks=8, logits_mib=1024, on_gpu=True)
    many = rank_needs(LARGE, 16384, ranks=32, checkpointed=True, logits_mib=1024, on_gpu=True)
    for name in ("weights, float32", "gradients", "moments"):
        assert few[name] == 4 * many[name]
    assert many["activations"] < few["activations"] / 10
    assert many["embeddings gathered"] == few["embeddings gathered"]
    assert many["a layer's backward pass"] > few["a layer's backward pass"]  # it computes one layer's activations again


def test_on_a_processor_the_libraries_count_and_holes_that_a_checkpoint_leaves_no_room_for() -> None:
    few, many = (rank_needs(TINY, tokens, width=4) for tokens in (16, 4096))
    assert few["libraries"] == many["libraries"] == LIBRARIES
    assert few["fragmentation"] == int(FRAGMENTED * few["activations"])  # one rank writes checkpoints without a copy
    assert many["fragmentation"] == int(FRAGMENTED * many["activations"])
    few, shared = (rank_needs(TINY, tokens, width=4, ranks=2) for tokens in (16, 4096))
    assert "fragmentation" not in few
    assert shared["fragmentation"] == many["fragmentation"] - 6 * TINY.weights
    assert not {"libraries", "fragmentation"} & rank_needs(TINY, 4096, width=4, on_gpu=True).keys()


@contextmanager
def fake_ranks(rank: int, sizes: MeshSizes) -> Iterator[JoinedRanks]:
    """One of many ranks whose others do not exist: nothing is sent."""
    torch_distributed: Any = distributed
    torch_distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=sizes.ranks)
    try:
        yield JoinedRanks(rank, sizes, "cpu", beside="fake")
    finally:
        torch_distributed.destroy_process_group()


@pytest.mark.parametrize(("sizes", "rank"), [(MeshSizes(shard=64), 63), (MeshSizes(replicate=8, shard=8), 9)])
def test_at_64_ranks_each_holds_the_part_that_is_planned(tmp_path: Path, sizes: MeshSizes, rank: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_14B))
    many = {"ranks": sizes.ranks, "shard": sizes.shard, "checkpointed": True, "logits_mib": 1024, "on_gpu": True}
    planned = rank_needs(LARGE, 16384, **many)
    with fake_ranks(rank, sizes) as ranks:
        module = unloaded(tmp_path, "sdpa")
        shard(module, ranks, method="forward", dtype=torch.bfloat16, offload=False)
        parameters = dict(module.named_parameters())
        parts = [local(parameter) for parameter in parameters.values()]
        assert {part.device.type for part in parts} == {"meta"}
        places = (Replicate(), Shard(0)) if sizes.replicate > 1 else (Shard(0),)
        assert {tuple(parameter.placements) for parameter in parameters.values()} == {places}
        for parameter, part in zip(parameters.values(), parts, strict=True):
            assert tuple(part.shape) == (parameter.shape[0] // sizes.shard, *parameter.shape[1:])
        assert sum(part.nbytes for part in parts) == planned["weights, float32"] == planned["gradients"]
        layers: list[Any] = [each for each in module.modules() if isinstance(each, FSDPModule) and each is not module]
        assert [sum(p.numel() for p in each.parameters()) for each in layers] == [LARGE.layer_weights] * LARGE.layers
        gathered_with_all = sum(p.numel() for p in parameters.values()) - LARGE.layers * LARGE.layer_weights
        assert gathered_with_all == 2 * LARGE.embedding + LARGE.hidden


def test_several_ranks_stage_their_parts_and_rank_0_holds_no_policy(large: Callable[..., Topology]) -> None:
    found = {need.what: need.size for need in plan(large("actors.learner.ranks=4"))}
    assert found["memory: checkpoint being written"] == 6 * SERVED
    assert "memory: policy being published" not in found
    sent = large("actors.learner.ranks=4", 'actors.learner.settings={weights_in="gloo"}')
    assert {need.what: need.size for need in plan(sent)}["memory: policy being published"] == SERVED


def test_check_prints_the_plan_of_a_model_that_is_here(large: Callable[..., Topology]) -> None:
    needs = plan(
        large(
            'actors.learner.settings={device="cuda", weights_in="shared_memory"}',
            'actors.rollout_generator.settings={engine="vllm", device="cuda", engine_settings={tensor_parallel_size=2}}',
            "actors.rollout_generator.links.weights=learner",
        )
    )
    expected = {
        ("learner", "moments"): 4 * SERVED,
        ("each of 2 GPUs of an engine", "weights"): SERVED // 2,
        ("host local", "shared memory: published policies"): 2 * SERVED,
        ("host local", "memory: older policies (mismatch_tokens)"): 2 * SERVED,
        ("host local", "memory: checkpoint being written"): 7 * SERVED,
        ("host local", "memory: rollouts of a step"): 16 * 8 * 176 * 46,
        ("host local", "shared memory: fetched policy"): SERVED,
    }
    found = {(need.where, need.what): need.size for need in needs}
    assert expected.items() <= found.items()
    assert ("host local", "memory: policy being published") not in found  # it is the last of the older ones
    rows = plan_rows(needs, str)
    assert len({len(row) for row in rows}) == 1
    assert "the rest" in {row[2] for row in rows}
    assert plan(load_topology(Path("examples/quickstart/quickstart.toml"))) == []  # a small model that is made here


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_device_in_turns_holds_the_larger_of_both_and_not_their_sum(
    large: Callable[..., Topology], device: str
) -> None:
    overrides = [
        f'actors.learner.settings.device="{device}"',
        f'actors.rollout_generator.settings={{device="{device}", kv_tokens=100000}}',
    ]
    assert "a device in turns" not in {need.where for need in plan(large(*overrides))}
    needs = plan(large(*overrides, *(f'actors.{role}.share="time"' for role in ("learner", "rollout_generator"))))
    learner = sum(need.size for need in needs if need.where == "learner")
    engine = sum(need.size for need in needs if need.where == "engine")
    found = {need.what: need.size for need in needs if need.where == "a device in turns"}
    again = SERVED - 2 * QWEN3_14B["vocab_size"] * QWEN3_14B["hidden_size"]  # the embedding is looked up
    assert found == {
        "while the learner trains": learner + (SERVED + again + LIBRARIES if device == "cpu" else 0),
        # the weights, their float32 copies, the moments
        "while the engine writes": engine + 7 * SERVED + (LIBRARIES if device == "cpu" else 0),
    }
    (row,) = [row for row in plan_rows(needs, str) if row[1] == "at most"]
    assert row[2] == str(max(found.values()))
    sleeping = [need.size for need in needs if need.what == "memory: weights of a sleeping engine"]
    assert sleeping == ([SERVED] if device == "cuda" else [])


@pytest.mark.parametrize(
    ("engine", "gib", "key"),
    [
        ("torch", 330, ""),
        ("torch", 320, "kv_tokens"),
        ("vllm", 400, "gpu_memory_utilization"),
        ("vllm", 3000, ""),
        ("torch", None, "kv_tokens"),
    ],
)
def test_what_does_not_fit_on_a_gpu_that_is_shared_in_space_is_refused(
    large: Callable[..., Topology], engine: str, gib: int | None, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "gpu_memory", lambda: 80 << 30)
    topology = large(
        *(f'actors.{role}.share="space"' for role in ("learner", "rollout_generator")),
        'actors.learner.settings.device="cuda"',
        f'actors.rollout_generator.settings={{device="cuda", kv_tokens=10000, engine="{engine}"}}',
        *([] if gib is None else [f"hosts.local.gpu_gib={gib}"]),
    )
    needs = plan(topology)
    both = {need.what: need.size for need in needs if need.where == "a GPU of both"}
    assert both == {who: sum(need.size for need in needs if need.where == who) for who in ("learner", "engine")}
    found = list(memory.memory_findings(topology, Facts(Path(), machine=ANY)))
    assert len(found) == bool(key), found
    for each in found:
        assert f"a GPU of host local has {gib or 80}.0 GiB: at once, learner " in each.message
        assert f"lower {key} of the engine or microbatch_tokens" in each.remedy
        assert 'share = "time"' in each.remedy


# This machine --------------------------------------------------------------------------------------------------------

HALF_BILLION: dict[str, Any] = {"model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24}
HALF_BILLION |= {"num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936}
HALF_BILLION |= {"max_position_embeddings": 32768, "tie_word_embeddings": True}


@pytest.fixture
def small(tmp_path: Path) -> Callable[..., Topology]:
    """The quickstart with a model of half a billion weights, and these overrides."""
    return quickstart(tmp_path, HALF_BILLION, "algorithm.microbatch_tokens=1024")


def machine(gib: float, cores: int = 2) -> Machine:
    return Machine("", (), None, cores=cores, memory=int(gib * memory.GIB))


def test_a_host_s_rows_add_up_with_those_of_its_processes(small: Callable[..., Topology]) -> None:
    rows = plan(small())
    (together,) = [need for need in rows if need.what == memory.TOGETHER]
    host = [n for n in rows if n.where == "host local" and n.what.startswith(("memory: ", "shared memory: "))]
    counted = [need for need in rows if need.where in {"learner", "engine"}] + [n for n in host if n is not together]
    assert together.size - sum(need.size for need in counted) == 4 * 100 * 2**20  # filter, scheduler, tools, supervisor
    assert {n.what for n in rows if "checkpoint being written" in n.what} == set()  # it is written from the state


@pytest.mark.parametrize(
    ("gib", "more", "finds", "remedy"),
    [
        (40, (), "", ""),
        (14, (), "needs", "mismatch_tokens = 0 frees 1.8 GiB"),
        (14, ("algorithm.microbatch_tokens=16384",), "needs", "algorithm.microbatch_tokens = 176 frees"),
        (4, (), "needs", "not enough: take a smaller model, [model.lora], or a larger machine"),
        (20, (), "needs", "algorithm.updates_per_step = 1 frees 5.5 GiB"),
        (20, ("algorithm.updates_per_step=1",), "", ""),
    ],
)
def test_what_does_not_fit_into_this_machine_s_memory_is_refused_with_the_keys_that_help(
    small: Callable[..., Topology], gib: float, more: tuple[str, ...], finds: str, remedy: str
) -> None:
    topology = small(*more)
    found = list(memory.memory_findings(topology, Facts(Path(), machine=machine(gib))))
    assert [finds in each.message for each in found] == ([True] if finds else [])
    for each in found:
        assert f"and this machine has {gib}.0: 1 x learner " in each.message
        assert remedy in each.remedy
    elsewhere = small(*more, 'hosts.local.address="10.1.2.3"')
    assert not list(memory.memory_findings(elsewhere, Facts(Path(), machine=machine(gib))))


def test_caches_and_sequences_that_are_rarely_as_long_as_they_may_be_are_a_warning(
    small: Callable[..., Topology],
) -> None:
    topology = small("stages.2.max_response_tokens=32000")
    facts = Facts(Path(), machine=machine(24))
    assert not list(memory.memory_findings(topology, facts))
    (found,) = memory.memory_warnings(topology, facts.machine)
    assert "the run may need " in found.message
    assert "max_response_tokens = 1024 frees " in found.remedy
    assert "kv_tokens frees " in found.remedy
    assert list(memory.memory_findings(small("actors.rollout_generator.settings.kv_tokens=4000000"), facts))


@pytest.mark.parametrize(
    ("threads", "cores", "role"),
    [
        ((2, 2), 2, "learner"),
        ((2, 1), 2, "learner"),
        ((1, 3), 2, "rollout_generator"),
        ((1, 1), 2, ""),
        ((2, 2), 4, ""),
    ],
)
def test_threads_that_wait_for_each_other_are_named(
    small: Callable[..., Topology], threads: tuple[int, int], cores: int, role: str
) -> None:
    roles = zip(("learner", "rollout_generator"), threads, strict=True)
    topology = small(*(f"actors.{name}.settings.threads={count}" for name, count in roles))
    found = list(memory.memory_warnings(topology, machine(99, cores)))
    assert [each.key for each in found] == ([("actors", role, "settings", "threads")] if role else [])
    turns = small(
        "actors.learner.settings.threads=2",
        *(f'actors.{n}.share="time"' for n in ("learner", "rollout_generator")),
    )
    assert not list(memory.memory_warnings(turns, machine(99, cores)))
