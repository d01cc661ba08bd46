"""A host is lost when its supervisor is silent: the actors here then doubt the actors of that host, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.runtime.ledger import Ledger
from agent_rl.config.load import load_topology
from agent_rl.config.topology import Topology
from agent_rl.messages.pipes import Doubt
from tests.actors.runtime.test_roster import TOPOLOGY
from transport import PeerBack, PeerGone, PeerLeft, PeerSilent


@pytest.fixture
def topology(tmp_path: Path) -> Topology:
    (tmp_path / "topology.toml").write_text(TOPOLOGY)
    return load_topology(tmp_path / "topology.toml", ["actors.y.replicas=2"])


def heard_by(topology: Topology) -> Ledger:
    return Ledger(topology, ["a"], None, print)


def test_actors_of_a_lost_host_are_doubted_until_its_supervisor_is_heard(topology: Topology) -> None:
    ledger = heard_by(topology)
    for event in (PeerSilent("supervisor.c", 6.0, ()), PeerGone("y.0", 8.0)):  # silent for a short time, and an actor
        ledger.link_event(event)
        assert ledger.doubted == Doubt(())
    for event, doubted in (
        (PeerGone("supervisor.c", 8.0), ("y.0", "y.1")),
        (PeerGone("supervisor.c", 8.0), ("y.0", "y.1")),  # each node of this process reports it
        (PeerLeft("supervisor.b"), ("x.0", "y.0", "y.1")),
        (PeerBack("supervisor.c", 30.0), ("x.0",)),
    ):
        ledger.link_event(event)
        assert ledger.doubted == Doubt(doubted)


def test_replicas_that_are_not_to_run_are_doubted_on_every_host(topology: Topology) -> None:
    ledger = heard_by(topology.scaled({"y": 1}))
    assert ledger.doubted == Doubt(("y.1",))
    ledger.follow(topology.scaled({"y": 2}))
    assert ledger.doubted == Doubt(())
    ledger.follow(topology.scaled({"y": 1}))
    assert ledger.doubted == Doubt(("y.1",))


def test_an_optional_host_is_lost_until_it_is_heard(tmp_path: Path) -> None:
    (tmp_path / "topology.toml").write_text(TOPOLOGY)
    ledger = heard_by(load_topology(tmp_path / "topology.toml", ["hosts.b.optional=true"]))
    assert ledger.doubted == Doubt(("x.0",))
    ledger.heard("supervisor.b")
    assert ledger.doubted == Doubt(())
