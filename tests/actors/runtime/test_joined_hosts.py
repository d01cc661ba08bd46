"""The main host's supervisor lets hosts join, tells the others, and lets them go; in virtual time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from actors.runtime.joined_hosts import FILE, START_SECONDS, Joined, with_kept
from agent_rl import messages
from agent_rl.config.joining import joined_hosts
from agent_rl.config.topology import Topology
from agent_rl.figures import ActorFigures
from agent_rl.messages import ActorStatus, JoinedHosts, JoinWanted
from agent_rl.records.continuing import made_with
from tests.agent_rl.config.test_joining import topology
from transport import MemoryNetwork, Node, Registry


@dataclass
class StandIn:
    """The changes of the run."""

    topology: Topology
    keys: list[str] = field(default_factory=list)
    why_not: str = ""
    swapped: set[str] = field(default_factory=set)

    def swaps(self, roles: Iterable[str]) -> None:
        self.swapped.update(roles)

    def obstacle(self) -> str:
        return self.why_not


class Main:
    """The main host's side, and what it said and told."""

    def __init__(self, directory: Path) -> None:
        self.said: list[str] = []
        self.followed: list[Topology] = []
        self.topology = topology(run={"name": "joined", "directory": str(directory)})
        kept = with_kept(self.topology, directory)
        self.changes = StandIn(self.topology)
        self.joined = Joined(kept, ["a"], self.changes, follow=self.followed.append, say=self.said.append)
        network = MemoryNetwork()
        self.node = Node("supervisor.a", network, Registry.of(messages), incarnation=1)
        self.joined.link(self.node, network)

    def asks(self, name: str, *, port: int = 6000, sender: str = "", made: str = "", **roles: int) -> Any:
        wanted = JoinWanted(name, "10.0.0.9", port, roles, made or json.dumps(made_with(self.topology)))
        return self.joined.answer(sender or f"joining.{name}", wanted)

    def numbers(self) -> dict[str, dict[str, tuple[int, ...]]]:
        return {name: host.joined for name, host in joined_hosts(self.joined.topology).items()}

    def says(self, name: str, state: str, detail: str = "") -> None:
        self.joined.says(ActorStatus(f"supervisor.{name}", "supervisor", state, detail, ActorFigures(), "", 0.0, 0.0))


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Callable[[Main], None]], None]:
    def running(test: Callable[[Main], None]) -> None:
        async def main() -> None:
            await trio.lowlevel.checkpoint()
            test(Main(tmp_path))

        trio.run(main, clock=MockClock())

    return running


def test_a_host_gets_numbers_and_everybody_is_told(run: Any) -> None:
    def test(main: Main) -> None:
        answer = main.asks("d", tool_executor=2, rollout_generator=1)
        assert answer.refusal == ""
        assert [(host.name, host.replicas) for host in answer.hosts] == [
            ("d", {"tool_executor": (2, 3), "rollout_generator": (1,)})
        ]
        assert set(main.node.targets("joined")) == {"supervisor.b", "supervisor.d"}
        assert main.followed[-1].homes("tool_executor") == {0: "a", 1: "b", 2: "d", 3: "d"}
        assert main.said == ["host d joins at 10.0.0.9: rollout_generator.1, tool_executor.2, tool_executor.3"]
        main.joined.up("supervisor.d")
        assert main.said[-1] == "host d has joined"
        main.says("d", "stopping")
        main.says("d", "finished")
        assert main.said[-2:] == ["host d leaves; the run goes on without it", "host d has left"]
        assert set(main.node.targets("joined")) == {"supervisor.b"}
        main.asks("e", tool_executor=1)
        assert main.numbers() == {"e": {"tool_executor": (4,)}}  # numbers are not given twice

    run(test)


def test_a_host_that_was_killed_joins_again_as_what_it_was(run: Any) -> None:
    def test(main: Main) -> None:
        main.asks("d", tool_executor=1)
        main.joined.up("supervisor.d")
        assert main.asks("d", tool_executor=1).refusal == ""
        assert main.numbers() == {"d": {"tool_executor": (2,)}}
        assert main.asks("d", tool_executor=2).refusal == ""
        assert main.numbers() == {"d": {"tool_executor": (3, 4)}}
        assert "joined already" in main.asks("d", port=7000, tool_executor=2).refusal

    run(test)


def test_a_host_that_never_comes_or_fails_is_no_member(run: Any) -> None:
    def test(main: Main) -> None:
        main.asks("d", tool_executor=1)
        main.joined.tick(trio.current_time() + START_SECONDS - 1)
        assert main.numbers()
        main.joined.tick(trio.current_time() + START_SECONDS)
        assert main.numbers() == {}
        assert "did not start" in main.said[-1]
        main.asks("d", tool_executor=1)
        main.says("d", "failed", "no disk")
        assert main.said[-1] == "host d leaves since it failed: no disk; the run goes on without it"
        main.joined.left("supervisor.d")
        main.joined.left("supervisor.b")  # a host of the file
        assert main.numbers() == {}

    run(test)


def test_who_may_not_join_is_told_why_and_so_is_the_user(run: Any) -> None:
    def test(main: Main) -> None:
        other = json.dumps(made_with(main.topology) | {"run.seed": 7})
        for answer, reason in (
            (main.asks("d", sender="joining.e", tool_executor=1), "hosts join by the supervisor"),
            (main.asks("d", made=other, tool_executor=1), "another one, in run.seed"),
            (main.asks("d", kv_scheduler=1), "exactly one kv_scheduler"),
            (main.asks("b", tool_executor=1), "the file names the host b"),
        ):
            assert reason in answer.refusal
            assert any(text.endswith(f"may not join: {answer.refusal}") for text in main.said)
        assert main.followed == []

    run(test)


def test_nobody_joins_while_the_run_starts_or_ends_and_swaps_reach_who_joins(run: Any) -> None:
    def test(main: Main) -> None:
        main.changes.why_not = "the run is ending"
        assert main.asks("d", tool_executor=1).refusal == "the run is ending"
        main.changes.why_not, main.changes.keys = "", ['actors.tool_executor.class="x:Y"']
        assert main.asks("d", tool_executor=1).changes == ('actors.tool_executor.class="x:Y"',)

    run(test)


def test_a_main_host_that_was_killed_remembers_who_had_joined(run: Any, tmp_path: Path) -> None:
    def test(main: Main) -> None:
        main.asks("d", tool_executor=1)
        again = Main(tmp_path)
        assert again.numbers() == {"d": {"tool_executor": (2,)}}
        again.joined.left("supervisor.d")
        again.asks("e", tool_executor=1)
        assert again.numbers() == {"e": {"tool_executor": (3,)}}
        again.joined.over()
        assert not (tmp_path / FILE).exists()

    run(test)


def test_other_hosts_follow_the_main_host(tmp_path: Path, run: Any) -> None:
    def test(main: Main) -> None:
        answer = main.asks("d", tool_executor=1)
        followed: list[Topology] = []
        other = Joined(main.topology, ["b"], main.changes, follow=followed.append, say=main.said.append)
        other.link(Node("supervisor.b", MemoryNetwork(), Registry.of(messages), incarnation=1), MemoryNetwork())
        other.heard(JoinedHosts(answer.hosts))
        other.heard(JoinedHosts(answer.hosts))
        assert [each.homes("tool_executor") for each in followed] == [{0: "a", 1: "b", 2: "d"}]
        assert other.line().startswith(b"joined {")
        other.heard(JoinedHosts(()))
        assert followed[-1] == main.topology
        assert "supervisor of the learner's host" in other.answer("joining.e", answer_wanted(main)).refusal

    run(test)


def answer_wanted(main: Main) -> JoinWanted:
    return JoinWanted("e", "10.0.0.9", 6000, {"tool_executor": 1}, json.dumps(made_with(main.topology)))
