"""Ranks of a learner that cannot be: one clear error each, before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.runtime.change_rules import why_not
from agent_rl.config.load import load_topology
from agent_rl.config.parallel import MeshSizes, Parallel, mesh_sizes
from agent_rl.config.placement import gpus_of_actor, placement
from agent_rl.config.source import Source
from agent_rl.messages import DrainWanted, ScaleWanted, SwapWanted
from agent_rl.models.devices import Machine
from agent_rl.topology_checks.describe import describe
from agent_rl.topology_checks.facts import Facts
from agent_rl.topology_checks.placement import placement_findings, rank_findings

QUICKSTART = Path("examples/quickstart/quickstart.toml")
TWO_GPUS = Machine("cuda", ["nvidia0", "nvidia1"], None)


def faults(*overrides: str) -> list[str]:
    topology, source = load_topology(QUICKSTART, overrides), Source(QUICKSTART, overrides)
    facts = Facts(Path(), machine=TWO_GPUS)
    found = [*rank_findings(topology, facts), *placement_findings(topology, facts)]
    return [source.fault(*each).render("file") for each in found]


ON_TWO_HOSTS = ["hosts={local={}, a={address='10.0.0.1'}, b={address='10.0.0.2'}}", "actors.learner.hosts=['a', 'b']"]


def test_ranks_are_divided_over_hosts() -> None:
    assert not faults(*ON_TWO_HOSTS, "actors.learner.ranks=4")
    topology = load_topology(QUICKSTART, [*ON_TWO_HOSTS, "actors.learner.ranks=4"])
    learner = topology.actors["learner"]
    assert (learner.homes, learner.rank_hosts, learner.ranks_per_host) == (("a",), ("a", "b"), 2)
    assert topology.main_host == "a"
    assert topology.homes("learner_ranks") == {0: "a", 1: "b", 2: "b"}
    lines = describe(topology)
    assert any(
        line.split() == ["learner_ranks", "3", "x", "actors.learner.rank:Rank", "on", "a", "(1),", "b", "(2)"]
        for line in lines
    )


def test_ranks_on_several_hosts_have_gpus_on_each() -> None:
    settings = [*ON_TWO_HOSTS, "actors.learner.ranks=4", "actors.learner.settings.device='cuda'"]
    topology = load_topology(QUICKSTART, settings)
    found = {each.actor: (each.host, each.gpus) for each in placement(topology)}
    ranks = {f"learner_ranks.{number}": place for number, place in enumerate([("a", (1,)), ("b", (0,)), ("b", (1,))])}
    assert found == {"learner.0": ("a", (0,)), **ranks}
    assert gpus_of_actor(topology, "learner_ranks.0") == (1,)


def test_ranks_of_another_host_are_neither_scaled_nor_drained_nor_swapped() -> None:
    overrides = [*ON_TWO_HOSTS, "actors.learner.ranks=4", "actors.tool_executor.hosts=['a', 'b']"]
    topology = load_topology(QUICKSTART, overrides)
    runs = {role: list(topology.wanted(role)) for role in topology.actors}
    for change, reason in (
        (ScaleWanted("learner_ranks", 2), "each process of learner_ranks does a part that no other can do"),
        (DrainWanted("b"), "no other host runs learner_ranks"),
        (SwapWanted("learner_ranks", "m:Other", (), fresh=False), "swap learner"),
    ):
        assert reason in why_not(change, topology, runs, ending=False, busy="")


def test_ranks_alone_are_enough() -> None:
    assert not faults("actors.learner.ranks=4")
    assert mesh_sizes(4, Parallel()) == MeshSizes(replicate=1, shard=4)
    assert mesh_sizes(4, Parallel(replicate=2)) == MeshSizes(replicate=2, shard=2)
    assert mesh_sizes(1, Parallel(compile=True)).ranks == 1


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["actors.learner.ranks=4", "model.parallel.shard=3"], "4 ranks are not model.parallel's shard = 3 times"),
        (["actors.learner.ranks=3", "model.parallel.replicate=2"], "3 ranks cannot be shared by model.parallel.repli"),
        (["model.parallel.shard=2"], "write ranks = 2, or leave shard out"),
        (["actors.learner.ranks=2", "model.parallel.compile=true"], "compile is for one rank"),
        ([*ON_TWO_HOSTS, "actors.learner.ranks=3"], "3 ranks cannot be shared by 2 hosts: each has as many"),
        (
            [*ON_TWO_HOSTS, "actors.learner.ranks=2", "actors.learner.settings.weights_in='shared_memory'"],
            "weights_in: the ranks write policies together, and are on 2 hosts, which share no memory",
        ),
        (
            [*ON_TWO_HOSTS, "actors.learner.ranks=2", "actors.learner.share='time'"],
            "share: the devices of the other hosts are not shared in time",
        ),
        (["actors.tool_executor.ranks=2"], "ToolExecutor is one process"),
        (
            ["actors.learner.ranks=3", 'actors.learner.settings.device="cuda"'],
            "learner_ranks.1 has GPU 2 of host local, and it has 2",
        ),
        (["actors.learner.ranks=2", 'actors.learner.settings.device="cuda:1"'], 'write "cuda": rank 0 has cuda:0'),
    ],
)
def test_one_clear_error(overrides: list[str], expected: str) -> None:
    fault, *_ = faults(*overrides)
    assert expected in fault


def test_as_many_ranks_as_gpus_are_fine() -> None:
    assert not faults("actors.learner.ranks=2", 'actors.learner.settings.device="cuda"')
