"""Whether a run fits into the memory and onto the cores of this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent_rl.config.load import load_topology
from agent_rl.config.topology import Topology
from agent_rl.models.devices import Machine
from agent_rl.topology_checks.facts import Facts
from agent_rl.topology_checks.memory import GIB, TOGETHER, memory_findings, memory_warnings, plan

HALF_BILLION: dict[str, Any] = {"model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24}
HALF_BILLION |= {"num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936}
HALF_BILLION |= {"max_position_embeddings": 32768, "tie_word_embeddings": True}


@pytest.fixture
def overrides(tmp_path: Path) -> list[str]:
    (tmp_path / "config.json").write_text(json.dumps(HALF_BILLION))
    return [f'model={{path="{tmp_path}", dtype="bfloat16"}}', "algorithm.microbatch_tokens=1024"]


def loaded(overrides: list[str], *more: str) -> Topology:
    return load_topology(Path("examples/quickstart/quickstart.toml"), [*overrides, *more])


def machine(gib: float, cores: int = 2) -> Machine:
    return Machine("", (), None, cores=cores, memory=int(gib * GIB))


def test_a_host_s_rows_add_up_with_those_of_its_processes(overrides: list[str]) -> None:
    rows = plan(loaded(overrides))
    (together,) = [need for need in rows if need.what == TOGETHER]
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
    overrides: list[str], gib: float, more: tuple[str, ...], finds: str, remedy: str
) -> None:
    topology = loaded(overrides, *more)
    found = list(memory_findings(topology, Facts(Path(), machine=machine(gib))))
    assert [finds in each.message for each in found] == ([True] if finds else [])
    for each in found:
        assert f"and this machine has {gib}.0: 1 x learner " in each.message
        assert remedy in each.remedy
    elsewhere = loaded(overrides, *more, 'hosts.local.address="10.1.2.3"')
    assert not list(memory_findings(elsewhere, Facts(Path(), machine=machine(gib))))


def test_caches_and_sequences_that_are_rarely_as_long_as_they_may_be_are_a_warning(overrides: list[str]) -> None:
    topology = loaded(overrides, "stages.2.max_response_tokens=32000")
    facts = Facts(Path(), machine=machine(24))
    assert not list(memory_findings(topology, facts))
    (found,) = memory_warnings(topology, facts.machine)
    assert "the run may need " in found.message
    assert "max_response_tokens = 1024 frees " in found.remedy
    assert "kv_tokens frees " in found.remedy
    assert list(memory_findings(loaded(overrides, "actors.rollout_generator.settings.kv_tokens=4000000"), facts))


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
    overrides: list[str], threads: tuple[int, int], cores: int, role: str
) -> None:
    roles = zip(("learner", "rollout_generator"), threads, strict=True)
    topology = loaded(overrides, *(f"actors.{name}.settings.threads={count}" for name, count in roles))
    found = list(memory_warnings(topology, machine(99, cores)))
    assert [each.key for each in found] == ([("actors", role, "settings", "threads")] if role else [])
    turns = loaded(
        overrides,
        "actors.learner.settings.threads=2",
        *(f'actors.{n}.share="time"' for n in ("learner", "rollout_generator")),
    )
    assert not list(memory_warnings(turns, machine(99, cores)))
