"""The processes that a supervisor keeps while its hosts are scaled."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio

from actors.runtime.processes import Processes, has_left
from agent_rl.config.topology import Topology
from tests.agent_rl.config.test_placement import topology


def start_of(number: int) -> Topology:
    return topology(
        {"a": {}, "b": {}},
        {"executor": {"class": "actors.tool_executor:ToolExecutor", "hosts": ["a", "b"], "replicas": 6}},
    ).scaled({"executor": number})


def make(name: str, role: str, now: Any, *, added: bool = False, incarnation: int = 1) -> Any:
    life = SimpleNamespace(stops=False, incarnation=incarnation)
    return SimpleNamespace(name=name, role=role, ended=trio.Event(), life=life, added=added)


def test_a_run_that_ends_while_it_is_scaled_says_so() -> None:
    ending = trio.Event()
    kept: Any = Processes(start_of(2), ["a"], make, ending)
    ending.set()
    kept.follow(start_of(3))
    faults, done = trio.run(kept.carry_out, ["executor.2"], [], start_of(3))
    assert faults == ["executor.2 does not start: the run is ending"]
    assert has_left("executor.2") not in done


def test_what_was_removed_before_the_first_process_starts_is_never_started() -> None:
    """The main host's news may come while a supervisor that was started again opens its nodes."""
    kept: Any = Processes(start_of(6), ["a"], make, trio.Event())
    assert list(kept.actors) == ["executor.0", "executor.2", "executor.4"]
    kept.follow(start_of(4))
    assert list(kept.actors) == ["executor.0", "executor.2"]


def test_a_replica_that_comes_again_is_newer_than_the_one_that_left() -> None:
    """Its peers refuse an older process, and the GPUs and the port of its number are its own."""
    started: list[Any] = []
    kept: Any = Processes(start_of(3), ["a"], make, trio.Event())
    kept._keep, kept._start = started.append, lambda *_: None
    former = kept.actors["executor.2"]
    kept.follow(start_of(2))
    former.life.stops = True
    kept.follow(start_of(3))
    assert kept.actors["executor.2"] is former, "the former process stops still"
    former.ended.set()
    kept.follow(start_of(3))
    assert [(actor.name, actor.life.incarnation, actor.added) for actor in started] == [("executor.2", 2, True)]
