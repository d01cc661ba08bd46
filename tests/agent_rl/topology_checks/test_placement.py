"""Which actor has which GPU, and how ranks share them: the rule, the table, and what is refused. No GPU is needed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from actors.runtime.change_rules import why_not
from actors.runtime.lifecycle import devices_for
from agent_rl.config.load import load_topology
from agent_rl.config.parallel import MeshSizes, Parallel, mesh_sizes
from agent_rl.config.placement import gpus_of_actor, most_gpus, partners, placement
from agent_rl.config.source import Source
from agent_rl.config.topology import Topology
from agent_rl.messages import DrainWanted, ScaleWanted, SwapWanted
from agent_rl.models.devices import Gpu, Machine, cores_near, gpu_memory, gpus_here, visible_devices
from agent_rl.topology_checks.describe import describe
from agent_rl.topology_checks.facts import Facts
from agent_rl.topology_checks.model import device_findings
from agent_rl.topology_checks.placement import placement_findings, placement_rows, ranges, rank_findings

QUICKSTART = Path("examples/quickstart/quickstart.toml")
CUDA = ['actors.rollout_generator.settings.device="cuda"', 'actors.learner.settings.device="cuda"']
EIGHT = "hosts.local.gpus=8"
NO_GPU = Machine("", [], None)


def load(*overrides: str) -> Topology:
    return load_topology(QUICKSTART, overrides)


def faults(*overrides: str, machine: Machine = NO_GPU) -> list[str]:
    source, topology, facts = Source(QUICKSTART, overrides), load(*overrides), Facts(Path(), machine=machine)
    found = [*rank_findings(topology, facts), *placement_findings(topology, facts)]
    return [source.fault(*each).render("file") for each in found]


TURNS, SPACE = (
    [f'actors.{role}.share="{share}"' for role in ("rollout_generator", "learner")] for share in ("time", "space")
)
NAMED = [f'actors.{role}.settings.device="cuda:0"' for role in ("rollout_generator", "learner")]
SPREAD = "actors.rollout_generator.settings.engine_settings={tensor_parallel_size=4}"
VLLM = 'actors.rollout_generator.settings={engine="vllm", device="cuda"}'
TWO = "actors.rollout_generator.replicas=2"
ONE_HAS = "GPU 0 of host local is that of "
TWO_GPUS, UNCOUNTED = Machine("cuda", ["nvidia0", "nvidia1"], None), Machine("hip", ["kfd"], None)


@pytest.mark.parametrize(
    ("overrides", "machine", "told"),
    [
        ([], NO_GPU, []),
        ([*CUDA, SPREAD, "actors.rollout_generator.gpus_per_replica=2", "hosts.local.gpus=16"], NO_GPU, [
            "is 2, and the engine's parallel sizes make 4"]),
        (NAMED, NO_GPU, [f'{ONE_HAS} ... share = "time" in both tables']),
        ([*NAMED, *TURNS, "hosts.local.gpus=1"], NO_GPU, []),
        ([*NAMED, TURNS[0]], NO_GPU, ["GPU 0"]),
        ([*NAMED, SPACE[0], TURNS[1]], NO_GPU, [ONE_HAS]),
        ([*CUDA, *TURNS, TWO, "actors.learner.ranks=2"], NO_GPU, []),
        ([*CUDA, *TURNS, TWO], NO_GPU, []),
        ([*TURNS, TWO], NO_GPU, []),
        ([*CUDA, *SPACE, "hosts.local.gpus=1"], NO_GPU, []),
        ([CUDA[0], *SPACE], NO_GPU, ['is "space", and no other role that says so has a GPU of this role'] * 2),
        (SPACE, NO_GPU, ['is "space", and no other role that says so has a GPU of this role'] * 2),
        ([*CUDA, "actors.rollout_generator.replicas=8", EIGHT], NO_GPU, [
            "has GPU 8 of host local, and it has 8, counted from 0; its actors need 9"]),
        ([*CUDA, "actors.rollout_generator.replicas=8"], UNCOUNTED, []),  # nobody knows how many
        ([*CUDA, "actors.rollout_generator.replicas=8"], TWO_GPUS, ["it has 2"]),
        (["actors.learner.settings.device=cpu", "actors.learner.gpus_per_replica=1", EIGHT], NO_GPU, [
            "the role's device is cpu"]),
        (TURNS[1:], NO_GPU, ['share ... is "time", and no other role that says so has a device of this role']),
        ([CUDA[0], *TURNS], NO_GPU, ["share", "share"]),
        ([VLLM, CUDA[1], *TURNS], UNCOUNTED, ["waking from vLLM's sleep mode fails on AMD's GPUs (vllm #52478)"]),
        ([VLLM, CUDA[1], *TURNS], Machine("cuda", ["nvidia0"], None), []),
    ],
)  # fmt: skip
def test_what_cannot_be_placed_is_refused(overrides: list[str], machine: Machine, told: list[str]) -> None:
    said = faults(*overrides, machine=machine)
    assert len(said) == len(told), said
    for line, parts in zip(said, told, strict=True):
        assert all(part in line for part in parts.split(" ... ")), line


FIRST, SECOND, THIRD = (f"rollout_generator.{number}" for number in range(3))
LEARNER, RANK, RANKS_TWO = "learner.0", "learner_ranks.0", "actors.learner.ranks=2"
FOUR = tuple(range(4))
PLACED: list[tuple[list[str], dict[str, tuple[int, ...]]]] = [
    ([], {}),
    ([*CUDA, "actors.rollout_generator.replicas=3"], {FIRST: (0,), SECOND: (1,), THIRD: (2,), LEARNER: (3,)}),
    ([*CUDA, TWO, RANKS_TWO], {FIRST: (0,), SECOND: (1,), LEARNER: (2,), RANK: (3,)}),
    ([*CUDA, SPREAD, TWO], {FIRST: FOUR, SECOND: (4, 5, 6, 7), LEARNER: (8,)}),
    ([CUDA[0], NAMED[1], TWO], {LEARNER: (0,), FIRST: (1,), SECOND: (2,)}),
    ([*CUDA, *TURNS], {LEARNER: (0,), FIRST: (0,)}),
    ([*CUDA, SPACE[0], TURNS[1]], {FIRST: (0,), LEARNER: (1,)}),
    ([*CUDA, *TURNS, TWO], {FIRST: (0,), SECOND: (1,), LEARNER: (0,)}),
    ([*CUDA, *TURNS, TWO, RANKS_TWO], {FIRST: (0,), SECOND: (1,), LEARNER: (0,), RANK: (1,)}),
    ([*CUDA, *SPACE, TWO], {FIRST: (0,), SECOND: (1,), LEARNER: (0,)}),
]


@pytest.mark.parametrize(("overrides", "found"), PLACED)
def test_each_process_has_the_next_gpus_unless_the_file_names_them_or_roles_share(
    overrides: list[str], found: dict[str, tuple[int, ...]]
) -> None:
    topology = load(*overrides)
    assert {placed.actor: placed.gpus for placed in placement(topology)} == found
    assert most_gpus(topology, "local") == max((gpus[-1] + 1 for gpus in found.values()), default=0)
    assert bool(placement_rows(topology)) == bool(found)
    for actor, gpus in found.items():
        named = actor == LEARNER and NAMED[1] in overrides
        assert gpus_of_actor(topology, actor) == (None if named else gpus)


@pytest.mark.parametrize(
    ("overrides", "share", "shared"),
    [
        # with two generators: who shares devices with the learner, and who with each of them
        ([*CUDA, *TURNS], "time", [(FIRST,), (LEARNER,), ()]),
        ([*CUDA, *TURNS, RANKS_TWO], "time", [(FIRST, SECOND), (LEARNER,), (LEARNER,)]),
        (TURNS, "time", [(FIRST, SECOND), (LEARNER,), (LEARNER,)]),  # on the processor of one host
        ([*CUDA, *SPACE], "space", [(FIRST,), (LEARNER,), ()]),
        ([*CUDA, *SPACE], "time", [()] * 3),
        (TURNS[:1], "time", [()] * 3),
        ([CUDA[0], *TURNS], "time", [()] * 3),
        ([], "time", [()] * 3),
    ],
)
def test_those_share_a_device_that_both_have_and_both_say_so(
    overrides: list[str], share: str, shared: list[tuple[str, ...]]
) -> None:
    topology = load(*overrides, TWO)
    assert [partners(topology, actor, share) for actor in (LEARNER, FIRST, SECOND)] == shared
    assert share == "space" or partners(topology, LEARNER) == shared[0]
    in_turns = {*TURNS} <= {*overrides}
    assert topology.actors["learner"].links.get("device") == ("rollout_generator" if in_turns else None)


def test_the_table_says_who_takes_turns_and_who_does_not() -> None:
    for overrides, way in ((TURNS, "in turns"), (SPACE, "at once")):
        (_, row) = placement_rows(load(*CUDA, *overrides))
        assert row[2] in {f"rollout_generator.0 and learner.0, {way}", f"learner.0 and rollout_generator.0, {way}"}


def test_the_check_believes_the_file_about_gpus_and_the_run_does_not() -> None:
    overrides = [*CUDA, EIGHT]
    assert list(device_findings(load(*overrides), Facts(Path(), elsewhere=True))) == []
    if not Machine.here().gpus:
        assert list(device_findings(load(*overrides), Facts(Path()))) != []


def test_the_table_names_hosts_gpus_actors_and_cores() -> None:
    found = [Gpu(0, "NVIDIA H200", "0000:1b:00.0", frozenset(range(16)))]
    rows = placement_rows(load(*CUDA), found)
    assert [row[:2] for row in rows] == [("GPUs:", ""), ("  local", "cuda:0"), ("  local", "cuda:1")]
    assert rows[1][3] == "NVIDIA H200, cores 0-15"
    assert {row[2] for row in rows[1:]} == {"learner.0", "rollout_generator.0"}
    assert ranges(frozenset({0, 1, 2, 5, 7, 8})) == "0-2,5,7-8"


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (Machine("cuda", [], None), {"CUDA_VISIBLE_DEVICES": "1,2"}),
        (Machine("cuda", [], "4, 5,6"), {"CUDA_VISIBLE_DEVICES": "5,6"}),
        (Machine("hip", ["kfd"], None), {"HIP_VISIBLE_DEVICES": "1,2"}),
        (Machine("cuda", [], "GPU-a,GPU-b,GPU-c"), {"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-c"}),
    ],
)
def test_a_process_is_shown_its_gpus_of_those_that_are_seen(machine: Machine, expected: dict[str, str]) -> None:
    assert expected.items() <= visible_devices([1, 2], machine).items()


def test_more_gpus_than_are_seen_are_refused() -> None:
    with pytest.raises(ValueError, match="GPU 2 is wanted, and CUDA_VISIBLE_DEVICES shows 2: 4,5"):
        visible_devices([1, 2], Machine("cuda", [], "4,5"))
    assert devices_for(None) == devices_for(()) == ({}, frozenset())


def make(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_gpus_of_nvidia_are_found_in_the_order_of_their_buses(tmp_path: Path) -> None:
    card = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 300\nDevice Minor: \t {}\n"
    root = make(
        tmp_path,
        {
            "proc/driver/nvidia/gpus/0000:9B:00.0/information": card.format(0),
            "proc/driver/nvidia/gpus/0000:1b:00.0/information": card.format(1),
            "sys/bus/pci/devices/0000:1b:00.0/local_cpulist": "0-3,8-11\n",
        },
    )
    near, far = gpus_here(root)
    assert near == Gpu(0, "NVIDIA H200", "0000:1b:00.0", frozenset([*range(4), *range(8, 12)]))
    assert (far.number, far.bus, far.cores) == (1, "0000:9b:00.0", frozenset())
    assert cores_near([0], Machine("cuda", [], None), [near, far]) == near.cores
    assert cores_near([0], Machine("cuda", [], "1"), [near, far]) == frozenset()
    assert cores_near([0, 1], Machine("cuda", [], None), [near, far]) == frozenset()


def test_gpus_of_amd_are_found_among_the_nodes_of_their_driver(tmp_path: Path) -> None:
    nodes = "sys/class/kfd/kfd/topology/nodes"
    root = make(
        tmp_path,
        {
            f"{nodes}/0/properties": "cpu_cores_count 96\nsimd_count 0\n",
            f"{nodes}/2/properties": "simd_count 1216\nlocation_id 1280\ndomain 0\ngfx_target_version 90402\n",
            "sys/bus/pci/devices/0000:05:00.0/local_cpulist": "0-47",
        },
    )
    (gpu,) = gpus_here(root)
    assert (gpu.name, gpu.bus, len(gpu.cores)) == ("AMD gfx942", "0000:05:00.0", 48)
    assert gpus_here(tmp_path / "nothing") == []


def test_a_process_stays_on_the_cores_near_its_gpus() -> None:
    """Of cores that this machine does not have, and cores that it has, the latter are taken."""
    from actors.runtime.children import ActorChild

    before = os.sched_getaffinity(0)
    child = ActorChild.__new__(ActorChild)
    child._process = type("Process", (), {"pid": 0, "returncode": None})()
    try:
        child.stay_on({4096, min(before)})
        assert os.sched_getaffinity(0) == {min(before)}
        child.stay_on({4096})
        assert os.sched_getaffinity(0) == {min(before)}
    finally:
        os.sched_setaffinity(0, before)


def test_the_memory_of_gpus_is_asked_of_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_memory() is None
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 81559\necho 40960\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert gpu_memory() == 40960 << 20
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho '[N/A]'\n")
    assert gpu_memory() is None


# Ranks of a learner -------------------------------------------------------------------------------------------------

ON_TWO_HOSTS = ["hosts={local={}, a={address='10.0.0.1'}, b={address='10.0.0.2'}}", "actors.learner.hosts=['a', 'b']"]


def test_ranks_are_divided_over_hosts() -> None:
    topology = load(*ON_TWO_HOSTS, "actors.learner.ranks=4")
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
    topology = load(*settings)
    found = {each.actor: (each.host, each.gpus) for each in placement(topology)}
    ranks = {f"learner_ranks.{number}": place for number, place in enumerate([("a", (1,)), ("b", (0,)), ("b", (1,))])}
    assert found == {"learner.0": ("a", (0,)), **ranks}
    assert gpus_of_actor(topology, "learner_ranks.0") == (1,)


def test_ranks_of_another_host_are_neither_scaled_nor_drained_nor_swapped() -> None:
    overrides = [*ON_TWO_HOSTS, "actors.learner.ranks=4", "actors.tool_executor.hosts=['a', 'b']"]
    topology = load(*overrides)
    runs = {role: list(topology.wanted(role)) for role in topology.actors}
    for change, reason in (
        (ScaleWanted("learner_ranks", 2), "each process of learner_ranks does a part that no other can do"),
        (DrainWanted("b"), "no other host runs learner_ranks"),
        (SwapWanted("learner_ranks", "m:Other", (), fresh=False), "swap learner"),
    ):
        assert reason in why_not(change, topology, runs, ending=False, busy="")


def test_the_mesh_of_ranks() -> None:
    assert mesh_sizes(4, Parallel()) == MeshSizes(replicate=1, shard=4)
    assert mesh_sizes(4, Parallel(replicate=2)) == MeshSizes(replicate=2, shard=2)
    assert mesh_sizes(1, Parallel(compile=True)).ranks == 1


RANKS = [
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
    (["actors.learner.ranks=3", CUDA[1]], "learner_ranks.1 has GPU 2 of host local, and it has 2"),
    (["actors.learner.ranks=2", 'actors.learner.settings.device="cuda:1"'], 'write "cuda": rank 0 has cuda:0'),
    (["actors.learner.ranks=4"], ""),
    (["actors.learner.ranks=2", CUDA[1]], ""),  # as many as GPUs
    ([*ON_TWO_HOSTS, "actors.learner.ranks=4"], ""),
]


@pytest.mark.parametrize(("overrides", "told"), RANKS)
def test_ranks_that_cannot_be_are_one_clear_error(overrides: list[str], told: str) -> None:
    said = faults(*overrides, machine=TWO_GPUS)
    assert bool(said) == bool(told)
    assert told in "".join(said[:1])
