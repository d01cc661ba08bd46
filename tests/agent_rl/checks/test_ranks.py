"""Ranks of a learner that cannot be: one clear error each, before anything starts."""

from __future__ import annotations

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
    assert mesh_sizes(1, Parallel(compile=True)).ranks == 1


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["actors.learner.ranks=4", "model.parallel.shard=3"], "4 ranks are not model.parallel's shard = 3 times"),
        (["actors.learner.ranks=3", "model.parallel.replicate=2"], "3 ranks cannot be shared by model.parallel.repli"),
        (["model.parallel.shard=2"], "write ranks = 2, or leave shard out"),
        (["actors.learner.ranks=2", "model.parallel.tensor=2"], "only 1 is built"),
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


def test_as_many_ranks_as_gpus_are_fine() -> None:
    assert not faults("actors.learner.ranks=2", 'actors.learner.settings.device="cuda"')
