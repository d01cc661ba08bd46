"""A host is lost when its supervisor is silent: the actors here then doubt the actors of that host, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.runtime.lost_hosts import LostHosts
from agent_rl.config.load import load_topology
from agent_rl.config.topology import Topology
from agent_rl.messages.pipes import Doubt
from tests.actors.runtime.test_roster import TOPOLOGY
from transport import PeerBack, PeerGone, PeerLeft, PeerSilent


@pytest.fixture
def topology(tmp_path: Path) -> Topology:
    (tmp_path / "topology.toml").write_text(TOPOLOGY)
    return load_topology(tmp_path / "topology.toml", ["actors.y.replicas=2"])


def heard_by(topology: Topology) -> tuple[LostHosts, list[Doubt]]:
    told: list[Doubt] = []
    return LostHosts(topology, ["a"], told.append), told


def test_actors_of_a_lost_host_are_doubted_until_its_supervisor_is_heard(topology: Topology) -> None:
    hosts, told = heard_by(topology)
    assert hosts.doubted == Doubt(())
    for event in (PeerSilent("supervisor.c", 6.0, ()), PeerGone("y.0", 8.0)):  # silent for a short time, and an actor
        hosts.link_event(event)
    assert not told
    hosts.link_event(PeerGone("supervisor.c", 8.0))
    hosts.link_event(PeerGone("supervisor.c", 8.0))  # each node of this process reports it
    hosts.link_event(PeerLeft("supervisor.b"))
    hosts.link_event(PeerBack("supervisor.c", 30.0))
    assert told == [Doubt(("y.0", "y.1")), Doubt(("x.0", "y.0", "y.1")), Doubt(("x.0",))]
    assert hosts.doubted == told[-1]


def test_replicas_that_are_not_to_run_are_doubted_on_every_host(topology: Topology) -> None:
    hosts, told = heard_by(topology.scaled({"y": 1}))
    assert hosts.doubted == Doubt(("y.1",))
    hosts.follow(topology.scaled({"y": 2}))
    hosts.follow(topology.scaled({"y": 1}))
    assert told == [Doubt(()), Doubt(("y.1",))]


def test_an_optional_host_is_lost_until_it_is_heard(tmp_path: Path) -> None:
    (tmp_path / "topology.toml").write_text(TOPOLOGY)
    hosts, told = heard_by(load_topology(tmp_path / "topology.toml", ["hosts.b.optional=true"]))
    assert hosts.doubted == Doubt(("x.0",))
    hosts.heard("supervisor.b")
    hosts.heard("supervisor.b")
    assert told == [Doubt(())]
