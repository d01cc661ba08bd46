"""A host is lost when its supervisor is silent: the actors here then doubt the actors of that host, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.runtime.lost_hosts import WORD, LostHosts, read
from agent_rl.config.load import load_topology
from agent_rl.config.topology import Topology
from tests.actors.runtime.test_roster import TOPOLOGY
from transport import PeerBack, PeerGone, PeerLeft, PeerSilent


@pytest.fixture
def topology(tmp_path: Path) -> Topology:
    (tmp_path / "topology.toml").write_text(TOPOLOGY)
    return load_topology(tmp_path / "topology.toml", ["actors.y.replicas=2"])


def heard_by(topology: Topology) -> tuple[LostHosts, list[list[str]]]:
    told: list[list[str]] = []
    return LostHosts(topology, ["a"], lambda line: told.append(read(line.removeprefix(WORD)))), told


def test_actors_of_a_lost_host_are_doubted_until_its_supervisor_is_heard(topology: Topology) -> None:
    hosts, told = heard_by(topology)
    assert hosts.line() == WORD + b"[]\n"
    for event in (PeerSilent("supervisor.c", 6.0, ()), PeerGone("y.0", 8.0)):  # silent for a short time, and an actor
        hosts.link_event(event)
    assert not told
    hosts.link_event(PeerGone("supervisor.c", 8.0))
    hosts.link_event(PeerGone("supervisor.c", 8.0))  # each node of this process reports it
    hosts.link_event(PeerLeft("supervisor.b"))
    hosts.link_event(PeerBack("supervisor.c", 30.0))
    assert told == [["y.0", "y.1"], ["x.0", "y.0", "y.1"], ["x.0"]]
    assert hosts.line() == WORD + b'["x.0"]\n'


def test_replicas_that_are_not_to_run_are_doubted_on_every_host(topology: Topology) -> None:
    hosts, told = heard_by(topology.scaled({"y": 1}))
    assert hosts.doubted == ["y.1"]
    hosts.follow(topology.scaled({"y": 2}))
    hosts.follow(topology.scaled({"y": 1}))
    assert told == [[], ["y.1"]]


def test_an_optional_host_is_lost_until_it_is_heard(tmp_path: Path) -> None:
    (tmp_path / "topology.toml").write_text(TOPOLOGY)
    hosts, told = heard_by(load_topology(tmp_path / "topology.toml", ["hosts.b.optional=true"]))
    assert hosts.doubted == ["x.0"]
    hosts.heard("supervisor.b")
    hosts.heard("supervisor.b")
    assert told == [[]]
