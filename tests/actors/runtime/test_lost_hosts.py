"""A host is lost when its supervisor is silent: the actors here then doubt the actors of that host, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from actors.runtime.ledger import Ledger
from agent_rl.config.load import load_topology
from agent_rl.config.topology import Topology
from agent_rl.messages.pipes import Doubt
from agent_rl.records.document import FILE, Document
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


async def test_what_is_seen_is_on_disk_once_a_second_and_what_is_wanted_at_once(
    topology: Topology, tmp_path: Path
) -> None:
    topology = topology.model_copy(update={"run": topology.run.model_copy(update={"directory": tmp_path})})
    ledger = heard_by(topology)

    def written(actor: str) -> tuple[str, int]:
        document = Document.read(tmp_path)
        assert document is not None
        return document.processes[actor].state, document.processes[actor].incarnation

    ledger.tick({"learner.0": 7, "x.0": 8})
    assert written("learner.0") == ("wanted", 7)
    ledger.process("learner.0", "running")
    ledger.tick({})
    assert written("learner.0") == ("wanted", 7)
    await trio.sleep(1.0)
    ledger.tick({"x.0": 9})
    assert (written("learner.0"), written("x.0")) == (("up", 7), ("wanted", 9))
    ledger.process("x.0", "starting")
    ledger.changed("y", topology)
    assert written("x.0")[0] == "starting"
    (tmp_path / FILE).unlink()
    await trio.sleep(5.0)
    ledger.tick({})
    assert not (tmp_path / FILE).exists(), "there is nothing new"
