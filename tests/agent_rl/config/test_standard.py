"""What a topology need not say: actors, classes and links that are the standard ones; and who is at a link's ends."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from agent_rl.config.gateway import gateway_url
from agent_rl.config.links import awaited_roles, peers, wait_for
from agent_rl.config.load import load_topology
from agent_rl.config.source import TopologyError
from agent_rl.config.standard import STANDARD, completed
from agent_rl.config.topology import Topology
from agent_rl.messages import EngineLoad, GroupOpened, PolicyPublished, RolloutRequest, StepReady, ToolCall, Trajectory
from agent_rl.topology_checks.topology import check_topology
from tests.end_to_end.topologies import MICRO

FIRST = Path(__file__).with_name("first.toml").read_text(encoding="utf-8")
LINKS = {
    "kv_scheduler": {
        "groups": "roc_filter",
        "requests": "rollout_generator",
        "unwanted": "rollout_generator",
        "journal": "roc_filter",
    },
    "rollout_generator": {
        "trajectories": "roc_filter",
        "tools": "tool_executor",
        "turns": "tool_executor",
        "load": ("kv_scheduler", "learner"),
        "kept": "kv_scheduler",
    },
    "tool_executor": {},
    "roc_filter": {"checks": "tool_executor", "training": "learner", "progress": "kv_scheduler"},
    "learner": {
        "policy": ("kv_scheduler", "rollout_generator"),
        "stages": "roc_filter",
        "steps": "roc_filter",
        "checkpoints": "roc_filter",
    },
}


@pytest.fixture
def first(tmp_path: Path):
    """Load the first topology with tables more; its file is beside it."""

    def write(more: str = "", overrides=()) -> Topology:
        path = tmp_path / "first.toml"
        path.write_text(FIRST.format(directory=tmp_path / "run") + more)
        topology = load_topology(path, overrides)
        assert [fault.render(path) for fault in check_topology(topology, path, overrides)] == []
        return topology

    return write


ALWAYS = {role: path for role, path in STANDARD.items() if role != "gateway"}


def links(topology: Topology) -> dict[str, dict]:
    return {role: dict(entry.links) for role, entry in topology.actors.items()}


def test_a_first_topology_is_short_and_has_all_actors_and_links_also_where_it_names_one(first) -> None:
    assert len(FIRST.splitlines()) <= 25
    for more in ("", "[actors.tool_executor]\nreplicas = 2\n"):
        topology = first(more)
        assert {role: entry.class_path for role, entry in topology.actors.items()} == ALWAYS
        assert list(topology.actors) == list(ALWAYS)
        assert links(topology) == LINKS


def test_a_harness_brings_a_gateway(first) -> None:
    topology = first(overrides=["environments.0.harness={command=['sh'], network=['pypi.org:443', '[::1]:80']}"])
    assert [*ALWAYS, "gateway"] == list(topology.actors)
    assert links(topology)["gateway"] == {"asked": "rollout_generator", "sessions": "rollout_generator"}
    assert gateway_url(topology, "rollout_generator.0") == "http://127.0.0.1:8642"
    assert topology.environments[0].harness.named == ("pypi.org:443", "[::1]:80")


def test_a_role_may_change_one_thing_alone(first, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "from actors.roc_filter import RoCFilter\nclass Mine(RoCFilter): pass\n"
    (tmp_path / "standard_filter.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    own = '[actors.roc_filter]\nclass = "standard_filter:Mine"\n[actors.learner]\nsilent_seconds = inf\n'
    topology = first(own, ["actors.learner.settings.threads=2", "actors.tool_executor.replicas=3"])
    learner, executor = topology.actors["learner"], topology.actors["tool_executor"]
    assert (learner.settings, learner.silent_seconds, executor.replicas) == ({"threads": 2}, float("inf"), 3)
    assert topology.actors["roc_filter"].class_path == "standard_filter:Mine"
    assert list(topology.actors) == list(ALWAYS)
    assert links(topology) == LINKS


def test_an_actor_of_the_users_own_hears_what_it_receives(first, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "standard_log.py").write_text(
        "from actors.base import Actor, Announce\nfrom agent_rl.messages import PolicyPublished\n"
        "class PolicyLog(Actor):\n    receives = (Announce(PolicyPublished),)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    topology = first('[actors.policy_log]\nclass = "standard_log:PolicyLog"\n')
    assert topology.actors["learner"].links["policy"] == ("kv_scheduler", "rollout_generator", "policy_log")
    assert list(topology.actors) == [*ALWAYS, "policy_log"]


def test_a_link_that_is_written_stays_as_it_is(first) -> None:
    written = 'links = { weights = "learner", load = ["learner", "kv_scheduler"] }'
    topology = first(f"[actors.rollout_generator]\n{written}\n")
    expected = {**LINKS["rollout_generator"], "weights": "learner", "load": ("learner", "kv_scheduler")}
    assert topology.actors["rollout_generator"].links == expected


def test_nothing_is_added_to_a_file_that_says_all(tmp_path: Path) -> None:
    data = tomllib.loads(MICRO.format(directory=tmp_path / "run", steps=1, hosts="", a="local", b="local"))
    assert completed(data) == data
    alone = {"actors": {"learner": {"class": "actors.base:Actor"}, "x": {"class": "not.there:X"}}}
    assert completed(alone) == alone


@pytest.mark.parametrize(
    "actors",
    [
        "3",
        "[]",
        *(f"{{ learner = {it} }}" for it in ("3", "{ class = 3 }", "{ links = 3 }", "{ links = { policy = [{}] } }")),
    ],
)
def test_what_is_of_the_wrong_type_is_named_and_nothing_is_raised(tmp_path: Path, actors: str) -> None:
    path = tmp_path / "first.toml"
    path.write_text(f"actors = {actors}\n" + FIRST.format(directory=tmp_path / "run"))
    with pytest.raises(TopologyError) as caught:
        load_topology(path)
    assert all(fault.line == 1 and fault.key.startswith("actors") for fault in caught.value.faults), caught.value.faults


def test_the_other_ranks_of_a_learner_get_a_role_that_follows_the_learner() -> None:
    settings = {"device": "cuda", "rank_silent_seconds": 70}
    entry = {"hosts": ["a", "b", "c"], "ranks": 6, "settings": settings, "restarts": 9}
    tables = completed({"actors": {**{role: {} for role in STANDARD}, "learner": entry}})
    ranks = tables["actors"]["learner_ranks"]
    assert (ranks["hosts"], ranks["replicas"], ranks["restarts"]) == (["a", "b", "b", "c", "c"], 5, 9)
    assert ranks["silent_seconds"] > 70  # so that the learner names it before
    assert tables["actors"]["learner"]["links"]["ranks"] == "learner_ranks"
    assert completed(tables) == tables
    tables["actors"]["learner"] |= {"hosts": ["a", "c"]}
    assert completed(tables)["actors"]["learner_ranks"]["hosts"] == ["a", "a", "c", "c", "c"]


@pytest.mark.parametrize(
    ("entry", "hosts"),
    [
        ({"host": "b", "ranks": 3}, ["b", "b"]),
        ({"hosts": ["b"], "ranks": 3}, ["b", "b"]),
        ({"host": "a"}, None),
        ({"hosts": ["a", "b"]}, None),
        ({"hosts": 3, "ranks": 2}, None),
    ],
)
def test_ranks_of_one_host_are_on_it_and_one_rank_needs_no_other_role(entry: dict, hosts: list[str] | None) -> None:
    tables = completed({"actors": {**{role: {} for role in STANDARD}, "learner": entry}})
    assert tables["actors"].get("learner_ranks", {}).get("hosts") == hosts


# The ends of links, whatever the roles are called ---------------------------------------------------------------------

SECOND = """
[actors.gen_b]
class = "actors.rollout_generator:RolloutGenerator"
links = { trajectories = "curator", tools = "tool_executor", turns = "tool_executor", load = ["kv_scheduler", "learner"] }
"""


@pytest.fixture(scope="module")
def renamed(tmp_path_factory: pytest.TempPathFactory) -> Topology:
    folder = tmp_path_factory.mktemp("roles")
    text = MICRO.format(directory=folder / "run", steps=1, hosts="", a="local", b="local") + SECOND
    text = text.replace("roc_filter", "curator").replace("curator:RoCFilter", "roc_filter:RoCFilter")
    text = text.replace('"rollout_generator"', '["rollout_generator", "gen_b"]')
    text = text.replace(
        '["kv_scheduler", ["rollout_generator", "gen_b"]]', '["kv_scheduler", "rollout_generator", "gen_b"]'
    )
    path = folder / "roles.toml"
    path.write_text(text)
    return load_topology(path)


@pytest.mark.parametrize(
    ("role", "message", "awaited"),
    [
        ("learner", StepReady, ("curator",)),
        ("curator", Trajectory, ("rollout_generator", "gen_b")),
        ("curator", GroupOpened, ("kv_scheduler",)),
        ("kv_scheduler", GroupOpened, ("curator",)),
        ("kv_scheduler", EngineLoad, ("rollout_generator", "gen_b")),
        ("gen_b", PolicyPublished, ("learner",)),
        ("gen_b", RolloutRequest, ("kv_scheduler",)),
        ("gen_b", ToolCall, ("tool_executor",)),
        ("tool_executor", StepReady, ()),
    ],
)
def test_peers_follow_from_links(renamed: Topology, role: str, message: type, awaited: tuple[str, ...]) -> None:
    assert peers(renamed, role, message) == awaited


def test_a_wait_names_the_roles_and_they_can_be_read_from_it(renamed: Topology) -> None:
    text = wait_for(renamed, "curator", Trajectory, "trajectories of 2 groups")
    assert text == "rollout_generator, gen_b: trajectories of 2 groups"
    assert awaited_roles(text) == ("rollout_generator", "gen_b")
    assert awaited_roles(wait_for(renamed, "tool_executor", StepReady, "x")) == ("no actor",)
