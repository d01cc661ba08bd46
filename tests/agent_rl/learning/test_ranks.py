"""Several ranks against one: the same gradients, updates and checkpoints (`rank_cases`); and ranks that do not meet.

Each of these says so at its deadline, and the message names who is missing.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from agent_rl.config.parallel import MeshSizes
from agent_rl.config.topology import InitialiseModel
from agent_rl.learning.finite import TrainingStoppedError
from agent_rl.learning.ranks import (
    LOOPBACK,
    JoinedRanks,
    MeetingPoint,
    RanksApartError,
    _talk_over,
    interface_of,
    joined,
    meeting_place,
)
from agent_rl.learning.tensor_files import TensorFiles
from agent_rl.learning.tiny import initialise_model
from tests.agent_rl.learning import rank_cases

GRADIENTS, UPDATES, REPORTS = 1e-5, 1e-2, 1e-5
"""The most by which gradients, changes of weights and figures may differ, relative to one rank's."""
HALF = 0.05
"""The same for bfloat16, whose gradients are rounded in other places."""
SOME = ("grpo", "sft", "lora", "poisoned_rank")
FEW = ("few", "few_updates")
"""Of steps that have fewer sequences than ranks."""
CASES = tuple(name for name in rank_cases.CASES if name not in FEW)
KINDS = ("float32", "bfloat16", "lora")


SIZES = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("intermediate_size", "max_position_embeddings", "initializer_range"),
)
PLAIN = InitialiseModel(hidden_size=32, layers=2, heads=2, kv_heads=1, head_dim=16, mlp_size=48)
"""Its vocabulary is no multiple of three or four."""
OTHERS: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "llama": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
}
"""Models of other kinds, with biases."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    directory = tmp_path_factory.mktemp("models")
    initialise_model(PLAIN, directory / "plain", 0)
    torch.manual_seed(0)
    for kind, given in OTHERS.items():
        sizes = json.loads((directory / "plain" / "config.json").read_text())
        named = {key: sizes[key] for key in SIZES}
        other = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **named, **given))
        for name, parameter in other.named_parameters():
            if name.endswith(".bias"):
                nn.init.normal_(parameter, std=0.1)
        other.save_pretrained(directory / kind)
        for file in (directory / "plain").glob("*token*"):
            (directory / kind / file.name).write_bytes(file.read_bytes())
    return directory


def run(model: Path, folder: Path, *words: str) -> dict[str, list[float]]:
    """The differences of each case from one rank: of gradients, of updates, of figures. ``words``: LAYOUT CASE..."""
    command = [sys.executable, str(rank_cases.__file__), str(model), str(folder), *words]
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "name", "cases"),
    [
        *((layout, "plain", CASES) for layout in ("1x2", "2x1", "2x2", "1x3")),
        ("1x4", "plain", (*CASES, *FEW)),
        *(("1x2", kind, SOME) for kind in OTHERS),
    ],
)
def test_ranks_compute_what_one_does(models, tmp_path, layout, name, cases):
    compared(run(models / name, tmp_path, layout, *cases), cases)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "layouts"),
    [
        *((kind, ("1x4", "1x2", "1x1", "2x2")) for kind in KINDS),
        ("float32", ("1x3", "1x1", "1x2")),  # whose parts have not the same size
    ],
)
def test_a_checkpoint_of_some_ranks_is_one_of_any_ranks_bit_for_bit(models, tmp_path, kind, layouts):
    resharded(models / "plain", tmp_path, kind, *layouts)
    ranks = int(layouts[0].removeprefix("1x"))
    assert len(list((tmp_path / layouts[0] / "training").glob("rank-*"))) == ranks


def resharded(model: Path, folder: Path, kind: str, *layouts: str) -> None:
    """Save a checkpoint in the first layout, load and save it in each other one: all hold the same bits."""
    words = [layouts[0], f"save:{kind}:{layouts[0]}"]
    for before, layout in pairwise(layouts):
        words += [layout, f"load:{kind}:{before}:{layout}"]
    run(model, folder, *words)
    first = tensors(folder / layouts[0])
    assert any(name.endswith(".exp_avg_sq") for name in first)
    for other in layouts[1:]:
        again = tensors(folder / other)
        assert again.keys() == first.keys()
        assert all(torch.equal(again[name], tensor) for name, tensor in first.items())
    for published in (layout for layout in layouts if layout != "1x1"):
        served = load_file(folder / f"{published}.safetensors")
        assert served.keys() == load_file(folder / layouts[0] / "model.safetensors").keys()
        assert all(torch.equal(tensor, first[name]) for name, tensor in served.items())
    loaded = AutoModelForCausalLM.from_pretrained(folder / layouts[0]).state_dict()
    assert all(torch.equal(loaded[name], first[name].to(loaded[name].dtype)) for name in loaded.keys() & first.keys())


def tensors(checkpoint: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint, the parts of its ranks put together."""
    paths = [path for path in sorted(checkpoint.rglob("*.safetensors")) if path.stem != "rng"]
    with TensorFiles(paths) as files:
        return {name: files.whole(name) for name in sorted(files.names())}


def join(
    rank: int, size: int, place: socket.socket | MeetingPoint, *, version: str = "2.9", seconds: float = 30.0
) -> JoinedRanks:
    sizes = MeshSizes(shard=size)
    return joined(rank, sizes, place=place, device="cpu", seconds=seconds, meeting_seconds=seconds, version=version)


def test_a_rank_that_does_not_come_is_named():
    with meeting_place() as place, ThreadPoolExecutor() as threads:
        second = threads.submit(join, 1, 4, place.getsockname(), seconds=5.0)
        with pytest.raises(RanksApartError, match=r"^ranks 2, 3 of the learner did not reach rank 0 at .* 5 s$"):
            join(0, 4, place, seconds=5.0)
        with pytest.raises(RanksApartError, match=r"^rank 1 of the learner heard no verdict of rank 0"):
            second.result()


def test_a_rank_that_cannot_reach_rank_0_says_so():
    with socket.create_server((LOOPBACK, 0)) as nobody:
        port = nobody.getsockname()[1]
    with pytest.raises(RanksApartError, match=f"^rank 1 of the learner did not reach rank 0 at {LOOPBACK}:{port}"):
        join(1, 2, (LOOPBACK, port), seconds=0.5)


def test_ranks_with_other_versions_of_torch_are_named_to_all():
    with meeting_place() as place, ThreadPoolExecutor() as threads:
        there = place.getsockname()
        others = [threads.submit(join, rank, 3, there, version=version) for rank, version in ((1, "2.9"), (2, "2.8"))]
        text = "^rank 0 of the learner has torch 2.9, and rank 2 has 2.8; install one version for all$"
        with pytest.raises(TrainingStoppedError, match=text):
            join(0, 3, place)
        for other in others:
            with pytest.raises(TrainingStoppedError, match=text):
                other.result()


def test_the_interface_of_an_address_is_found():
    assert interface_of(LOOPBACK) == interface_of("localhost") == "lo"
    assert interface_of("192.0.2.1") == ""  # of documentation: no host has it


def test_ranks_of_several_hosts_talk_over_the_interface_of_their_address(monkeypatch):
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    _talk_over(LOOPBACK)
    assert (os.environ["GLOO_SOCKET_IFNAME"], os.environ["NCCL_SOCKET_IFNAME"]) == ("lo", "ib0")
