"""In which order roles stop, which hosts a process serves, and what an actor's process is given."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from actors.runtime.lifecycle import actor_environment, drain_order, drain_seconds, hosts_to_start, needed_to_drain
from agent_rl.config.load import load_topology
from agent_rl.records.run_directory import RunRefused
from tests.actors.runtime.virtual_run import World


class Link:
    def __init__(self, kind: str) -> None:
        self.kind = kind


class Linked:
    links: ClassVar[dict[str, Link]] = {"push": Link("push"), "ask": Link("call"), "tell": Link("announce")}


class Early(Linked):
    drain_order = 10


class Late(Linked):
    drain_order = 51
    drain_seconds = 7


LINKED, EARLY, LATE = (f'class = "{__name__}:{kind.__name__}"\n' for kind in (Linked, Early, Late))


def test_roles_stop_upstream_first_unless_their_class_says_otherwise(world: World) -> None:
    world.write(
        sink=LINKED,
        late=LATE + 'links.push = "sink"',
        middle=LINKED + 'links.push = "sink"\nlinks.tell = "source"',
        source=LINKED + 'links.ask = "middle"\nlinks.push = "late"',
        early=EARLY,
        learner=LINKED + 'links.ask = "circle"',
        circle=LINKED + 'links.push = "learner"',
    )
    topology = load_topology(world.path)
    order = drain_order(topology)
    assert order == ["early", "learner", "circle", "source", "middle", "sink", "late"]
    assert [role for role in order if needed_to_drain(topology, role)] == ["circle", "middle", "sink", "late"]
    seconds = {role: drain_seconds(role, topology.actors[role]) for role in ("late", "sink", "learner")}
    assert seconds == {"late": 7.0, "sink": 30.0, "learner": 120.0}


def test_which_hosts_a_supervisor_serves(world: World) -> None:
    world.write("b", 'a address = "127.0.0.1"', x='host = "b"', learner='host = "a"')
    topology = load_topology(world.path)
    assert hosts_to_start(topology, None) == ("a", "b")
    assert hosts_to_start(topology, "b") == ("b",)
    with pytest.raises(RunRefused, match="no actor runs on a host named 'c'; there is b, a"):
        hosts_to_start(topology, "c")
    topology = load_topology(world.path, ["hosts.b.address=10.0.0.2"])
    with pytest.raises(RunRefused, match="start each with its own, --host b, --host a"):
        hosts_to_start(topology, None)
    assert hosts_to_start(topology, "a") == ("a",)


@pytest.mark.parametrize(("settings", "given", "threads"), [({"threads": 3}, "8", "3"), ({}, "8", "8"), ({}, "", "1")])
def test_threads_come_from_the_settings_then_from_the_environment_and_then_are_one(
    world: World, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], given: str, threads: str
) -> None:
    variables = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    for variable in variables:
        monkeypatch.setenv(variable, given)
        if not given:
            monkeypatch.delenv(variable)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "elsewhere")
    world.write(first="")
    entry = load_topology(world.path).actors["first"].model_copy(update={"settings": settings})
    environment = actor_environment(entry, world.folder)
    assert {environment[variable] for variable in variables} == {threads}
    assert environment["TORCHINDUCTOR_CACHE_DIR"] == "elsewhere"
    assert environment["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] == "0"
