"""Supervisors tell each other, and their actors, which incarnations nodes have; each speaks for its own host alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from actors.runtime.children import ActorChild, start_child
from actors.runtime.roster import Roster
from agent_rl.config.load import load_topology
from agent_rl.messages import Incarnations
from agent_rl.messages.pipes import Expect, Go
from transport.stream import packed

TOPOLOGY = """
[run]
name = "demo"
directory = "run"
[model]
path = "x"
[[environments]]
class = "maths"
[[stages]]
kind = "sft"
steps = 1
[hosts.a]
[hosts.b]
[hosts.c]
[actors.learner]
class = "somewhere:Learner"
host = "a"
[actors.x]
class = "somewhere:X"
host = "b"
[actors.y]
class = "somewhere:Y"
host = "c"
"""


class StandIn:
    """A node, the link to other supervisors, and an actor's process, which remember what they are told."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self.targets: list[str] = []
        self.announced: list[Incarnations] = []

    def expect(self, name: str, incarnation: int) -> None:
        self.known[name] = incarnation

    def announce(self, link: str, targets: list[str]) -> StandIn:
        assert link == "incarnations"
        self.targets = targets
        return self

    def set(self, message: Incarnations) -> None:
        self.announced.append(message)

    def tell(self, message: Expect) -> None:
        self.known |= message.incarnations


@pytest.fixture
def roster(tmp_path: Path) -> Any:
    (tmp_path / "topology.toml").write_text(TOPOLOGY)
    return Roster(load_topology(tmp_path / "topology.toml"), ["b"], 100)


def test_a_supervisor_tells_of_its_own_actors_and_passes_on_what_others_say(roster: Any) -> None:
    node, actor = StandIn(), StandIn()
    roster.link(node)
    roster.tell_actors = actor.tell
    assert node.known == {"supervisor.b": 100, "x.0": 100}
    assert node.targets == ["supervisor.a", "supervisor.c"]
    roster.started("x.0", 101)
    assert [message.incarnations for message in node.announced] == [{"x.0": 100}, {"x.0": 101}]
    roster.heard("supervisor.a", Incarnations({"learner.0": 7}))
    assert node.known == {"supervisor.b": 100, "x.0": 101, "learner.0": 7}
    assert actor.known == {"x.0": 101, "learner.0": 7}
    assert len(node.announced) == 2


def test_a_supervisor_speaks_for_its_own_host_alone(roster: Any) -> None:
    node = StandIn()
    roster.link(node)
    before = dict(node.known)
    for sender in ("supervisor.c", "supervisor.b", "learner.0", "nobody"):
        roster.heard(sender, Incarnations({"learner.0": 1 << 60, "x.0": 1 << 60, "supervisor.a": 1 << 60, "z.0": 1}))
    assert node.known == before


def test_an_actor_that_never_reads_its_lifeline_is_noticed_and_one_with_many_peers_is_not(tmp_path: Path) -> None:
    child: ActorChild = start_child(
        "http.server", ["--help-me-not"], environment=os.environ, stderr=tmp_path / "stderr"
    )
    try:
        table = Expect({f"rollout_generator.{n}": 1 << 50 for n in range(5000)})
        assert len(packed(table)) > 1 << 16
        assert child.tell(table)
        told = [child.tell(Expect({"learner.0": 1234567890})) for _ in range(20_000)]
    finally:
        child.reap()
    assert told[0]
    assert child.tell(Go())  # it has ended: nobody is to be told
