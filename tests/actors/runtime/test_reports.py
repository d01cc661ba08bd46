"""Statuses of actors on other hosts: passed on by their supervisor, and heard on the main host once each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from actors.runtime.reports import StatusReports
from actors.runtime.roster import Roster
from agent_rl.config.load import load_topology
from agent_rl.messages import HostReport
from tests.actors.runtime.test_roster import TOPOLOGY
from tests.builders import status


class Link:
    """Keeps what is announced."""

    def __init__(self) -> None:
        self.sent: list[HostReport] = []
        self.targets: list[str] = []

    def announce(self, link: str, targets: list[str]) -> Any:
        del link
        self.targets = targets
        return self

    def set(self, report: HostReport) -> None:
        self.sent.append(report)


class Hosts:
    """The supervisor of host b and that of the main host."""

    def __init__(self, folder: Path) -> None:
        path = folder / "topology.toml"
        path.write_text(TOPOLOGY)
        topology = load_topology(path)
        self.link = Link()
        self.b, self.main = (StatusReports(topology, [host], Roster(topology, [host], 0)) for host in "ba")
        for each in (self.b, self.main):
            each.link(self.link)  # type: ignore[arg-type]

    def tick(self) -> None:
        """As long as it takes until something is passed on."""

        async def run() -> None:
            for each in (self.b, self.main):
                with trio.move_on_after(0.4):
                    await each.run()

        trio.run(run, clock=MockClock(autojump_threshold=0))

    def passed_on(self) -> tuple[list[str], list[str]]:
        """What the main host hears of the newest report: actors with their states, and actors that stopped."""
        statuses, stopped = self.main.heard("supervisor.b", self.link.sent[-1])
        return [f"{each.actor} {each.state}" for each in statuses], stopped


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    return Hosts(tmp_path)


def test_statuses_are_passed_on_together_and_only_when_there_are_new_ones(hosts: Hosts) -> None:
    hosts.tick()
    assert hosts.link.sent == []
    hosts.b.observe(status("x.0", state="starting"), 0)
    hosts.b.observe(status("x.0"), 0)
    hosts.tick()
    hosts.tick()
    assert len(hosts.link.sent) == 1
    assert hosts.link.targets == ["supervisor.a"]
    assert hosts.passed_on() == (["x.0 running"], [])


def test_a_status_that_was_there_before_is_not_heard_again_so_a_silent_actor_is_silent(hosts: Hosts) -> None:
    hosts.b.observe(status("x.0"), 0)
    hosts.tick()
    assert hosts.passed_on() == (["x.0 running"], [])
    assert hosts.passed_on() == ([], [])
    hosts.b.observe(status("x.0"), 0)  # the same words, and yet a sign of life
    hosts.tick()
    assert hosts.passed_on() == (["x.0 running"], [])


def test_a_failure_is_passed_on_at_once(hosts: Hosts) -> None:
    hosts.b.observe(status("x.0", state="failed", detail="no memory"), 0)
    assert hosts.passed_on() == (["x.0 failed"], [])


def test_the_last_status_of_an_actor_that_stops_is_passed_on_before_it_ends(hosts: Hosts) -> None:
    hosts.b.observe(status("x.0"), 0, at_once=True)
    assert hosts.passed_on() == (["x.0 running"], [])


def test_an_actor_that_stops_is_expected_no_more_and_neither_are_those_of_a_host_that_leaves(hosts: Hosts) -> None:
    hosts.b.observe(status("x.0"), 0)
    hosts.tick()
    hosts.passed_on()
    hosts.b.forget("x.0")
    hosts.tick()
    assert hosts.passed_on() == ([], ["x.0"])
    hosts.b.observe(status("x.0"), 1)
    hosts.tick()
    assert hosts.passed_on() == (["x.0 running"], [])
    hosts.b.forget("x.0")
    hosts.b.observe(status("x.0"), 2)  # the first status of its next process
    hosts.tick()
    assert hosts.passed_on() == (["x.0 running"], [])
    assert hosts.main.left("supervisor.b") == ["x.0"]
    assert hosts.main.left("supervisor.b") == []


def test_a_supervisor_speaks_for_its_own_actors_only(hosts: Hosts) -> None:
    for actor in ("learner.0", "y.0", "x.0", "x.7"):
        hosts.b.observe(status(actor, state="finished"), 0)
    assert hosts.passed_on() == (["x.0 finished"], [])


def test_the_main_host_passes_nothing_on(hosts: Hosts) -> None:
    hosts.main.observe(status("learner.0"), 0)
    hosts.tick()
    assert hosts.link.sent == []
