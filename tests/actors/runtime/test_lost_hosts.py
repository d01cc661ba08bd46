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


def test_actors_of_a_lost_host_are_doubted_until_its_supervisor_is_heard(topology: Topology) -> None:
    told: list[list[str]] = []
    hosts = LostHosts(topology, ["a"], lambda line: told.append(read(line.removeprefix(WORD))))
    assert hosts.line() == WORD + b"[]\n"
    for event in (PeerSilent("supervisor.c", 6.0, ()), PeerLeft("supervisor.b"), PeerGone("y.0", 8.0)):
        hosts.link_event(event)  # silent for a short time, stopped in order, and an actor
    assert not told
    hosts.link_event(PeerGone("supervisor.c", 8.0))
    hosts.link_event(PeerGone("supervisor.c", 8.0))  # each node of this process reports it
    hosts.link_event(PeerGone("supervisor.b", 8.0))
    hosts.link_event(PeerBack("supervisor.c", 30.0))
    assert told == [["y.0", "y.1"], ["x.0", "y.0", "y.1"], ["x.0"]]
    assert hosts.line() == WORD + b'["x.0"]\n'
