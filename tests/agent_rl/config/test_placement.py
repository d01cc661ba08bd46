"""Where replicas run and listen: names and addresses that another host does not change, and no two alike; and the
settings in which hosts must agree.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.config.addresses import actor_nodes, addresses
from agent_rl.config.agreement import differences
from agent_rl.config.agreement import settings_to_agree as to_agree
from agent_rl.config.full import toml_text
from agent_rl.config.load import load_topology
from agent_rl.config.processes import ActorEntry
from agent_rl.config.topology import Topology
from agent_rl.environments.load import shown_settings
from tests.end_to_end.topologies import write_two_hosts

HOSTS = [f"h{number}" for number in range(5)]
ROLES = ["scheduler", "generator", "executor", "filter"]


def topology(hosts: dict[str, Any], actors: dict[str, Any]) -> Topology:
    return Topology.model_validate(
        {
            "run": {"name": "placed", "directory": "/nowhere"},
            "model": {"initialise": {}},
            "environments": [{"class": "maths"}],
            "stages": [{"kind": "sft", "steps": 1}],
            "hosts": hosts,
            "security": {"key_file": "key"},
            "actors": actors,
        }
    )


def places(given_topology: Topology) -> dict[str, str]:
    return addresses(given_topology, Path("/tmp/x"))


@pytest.mark.parametrize(
    ("keys", "homes"),
    [
        ({}, ["local"]),
        ({"host": "b", "replicas": 2}, ["b", "b"]),
        ({"hosts": ["b", "c"]}, ["b", "c"]),
        ({"hosts": ["b", "c"], "replicas": 3}, ["b", "c", "b"]),
        ({"hosts": ["b", "c"], "replicas_per_host": 2}, ["b", "b", "c", "c"]),
        ({"host": "b", "replicas_per_host": 2}, ["b", "b"]),
    ],
)
def test_replicas_are_dealt_over_the_hosts(keys: dict[str, Any], homes: list[str]) -> None:
    assert list(ActorEntry.model_validate({"class": "m:C"} | keys).homes) == homes


@st.composite
def placed(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """Hosts with ports of their own at few addresses, and roles on some of them."""
    names = draw(st.lists(st.sampled_from(HOSTS), min_size=2, unique=True))
    hosts = {
        name: {"address": draw(st.sampled_from(["10.0.0.1", "10.0.0.2", "::1"])), "base_port": 5000 + 1000 * at}
        for at, name in enumerate(names)
    }
    actors: dict[str, Any] = {}
    for role in ROLES:
        several = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
        key = draw(st.sampled_from(["replicas", "replicas_per_host"]))
        count = draw(st.integers(1, 4)) + (len(several) if key == "replicas" else 0)
        actors[role] = {"class": "m:C", "hosts": several, key: count}
    actors["first"] = {"class": "m:C", "hosts": names}
    return hosts, actors


@settings(max_examples=60)
@given(placed())
def test_nodes_have_names_and_addresses_of_their_own(what: tuple[dict[str, Any], dict[str, Any]]) -> None:
    made = topology(*what)
    names = [node for node, _ in actor_nodes(made)]
    assert len(set(names)) == len(names)
    assert sorted(names) == sorted(node for host in made.hosts for node, _ in actor_nodes(made, host))
    for role, entry in made.actors.items():
        assert [name for name in names if name.startswith(f"{role}.")] == [
            f"{role}.{number}" for number in range(len(entry.homes))
        ]
        counts = [list(entry.homes).count(host) for host in entry.hosts or ()]
        assert max(counts) - min(counts) <= 1
    table = places(made)
    assert len(set(table.values())) == len(table) == len(names) + len(made.hosts)


@settings(max_examples=60)
@given(placed(), st.sets(st.sampled_from(ROLES), min_size=1))
def test_another_host_at_the_end_changes_no_address(
    what: tuple[dict[str, Any], dict[str, Any]], wanted: set[str]
) -> None:
    hosts, actors = what
    for role in wanted:
        entry = actors[role]
        entry["replicas_per_host"] = entry.pop("replicas", entry.get("replicas_per_host"))
    before = places(topology(hosts, actors))
    more = hosts | {"new": {"address": "10.0.0.9"}}
    named = actors | {role: actors[role] | {"hosts": [*actors[role]["hosts"], "new"]} for role in wanted}
    after = places(topology(more, named))
    assert before.items() <= after.items()
    assert len(after) > len(before)
    assert len(set(after.values())) == len(after)
    fewer = actors | {role: actors[role] | {"start": 1} for role in wanted}
    assert places(topology(hosts, fewer)) == before


def test_a_topology_on_several_hosts_means_the_same_when_it_is_written_out(tmp_path: Path) -> None:
    hosts = {"a": {}, "b": {}, "c": {"optional": True}}
    made = topology(hosts, {"generator": {"class": "m:C", "hosts": ["a", "b", "c"], "replicas": 5, "start": 4}})
    path = tmp_path / "written.toml"
    path.write_text(toml_text(made.model_dump(by_alias=True)))
    assert load_topology(path) == made
    assert load_topology(path).homes("generator") == {0: "a", 1: "b", 2: "c", 3: "a", 4: "b"}
    assert load_topology(path).wanted("generator") == {0: "a", 1: "b", 2: "c", 3: "a"}


@pytest.mark.parametrize("way", ["overlay", "set"])
def test_another_way_to_place_a_role_takes_the_place_of_the_first(tmp_path: Path, way: str) -> None:
    hosts = {"a": {}, "b": {}}
    base = tmp_path / "base.toml"
    made = topology(hosts, {"generator": {"class": "m:C", "host": "a", "replicas": 3}})
    base.write_text(toml_text(made.model_dump(by_alias=True)))
    if way == "set":
        changed = load_topology(base, ['actors.generator.hosts=["a", "b"]', "actors.generator.replicas_per_host=1"])
    else:
        mine = tmp_path / "mine.toml"
        mine.write_text('[actors.generator]\nhosts = ["a", "b"]\nreplicas_per_host = 1\n')
        changed = load_topology([base, mine])
    assert changed.homes("generator") == {0: "a", 1: "b"}


# What hosts must agree on ---------------------------------------------------------------------------------------------


def settings_to_agree(topology: Topology) -> dict[str, str]:
    return to_agree(topology, shown_settings)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_two_hosts(tmp_path_factory.mktemp("hosts"), (5700, 5800))[0]


@pytest.mark.parametrize(
    "override",
    [
        "run.directory=/elsewhere/run",
        "run.log_mib=3",
        "security.key_file=/elsewhere/cluster.key",
        "hosts.a.address=10.0.0.7",
        "actors.rollout_generator.settings.max_rollouts=3",
        "actors.rollout_generator.restarts=9",
    ],
)
def test_what_only_one_host_uses_may_differ(path: Path, override: str) -> None:
    assert differences(settings_to_agree(load_topology(path)), settings_to_agree(load_topology(path, [override]))) == ""


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("algorithm.samples=8", "algorithm.samples is 4 here and 8 there"),
        ("hosts.b.base_port=5900", "hosts.b.base_port is 5800 here and 5900 there"),
        ("actors.rollout_generator.replicas=2", "actors.rollout_generator.replicas is 1 here and 2 there"),
        ("run.seed=7", "run.seed is 0 here and 7 there"),
    ],
)
def test_differing_keys_are_named_with_both_values(path: Path, override: str, text: str) -> None:
    here, there = settings_to_agree(load_topology(path)), settings_to_agree(load_topology(path, [override]))
    assert text in differences(here, there)
    assert differences(there, here)


def test_paths_are_compared_by_their_last_part_and_secrets_by_digest(path: Path) -> None:
    def settings(*overrides: str) -> dict[str, str]:
        added = [f"environments.0.settings.{override}" for override in overrides]
        return settings_to_agree(load_topology(path, added))

    assert settings("file=/a/data.jsonl") == settings("file=/b/data.jsonl")
    assert differences(settings("file=/a/data.jsonl"), settings("file=/a/other.jsonl"))
    kept = settings("api_key=hunter2")["environments.0.settings.api_key"]
    assert kept.startswith("sha256:")
    assert "hunter2" not in differences(settings("api_key=hunter2"), settings("api_key=hunter3"))


def test_many_differing_keys_are_counted() -> None:
    here = {f"key{number}": "1" for number in range(20)}
    text = differences(here, dict.fromkeys(here, "2"))
    assert text.startswith("key0 is 1 here and 2 there; ")
    assert text.endswith("; 14 more keys differ")
