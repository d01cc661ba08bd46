"""Another number of replicas: where new ones go, which ones go first, and that no address or name changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.config.addresses import actor_nodes, addresses
from agent_rl.config.agreement import settings_to_agree
from agent_rl.config.joining import changed_hosts, read, with_changed, written
from agent_rl.config.processes import Host
from agent_rl.config.scaling import (
    last_replicas,
    new_replicas,
    port_fault,
    present,
    refusal,
    with_replicas,
    without_replicas,
)
from agent_rl.config.topology import Topology
from tests.agent_rl.config.test_joining import MANY, topology


def scaled(now: Topology, role: str, number: int) -> Topology:
    more = number - len(present(now, role))
    if more > 0:
        return with_replicas(now, new_replicas(now, role, more, taken={}))
    return without_replicas(now, last_replicas(now, role, -more))


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(MANY), st.integers(1, 5)), max_size=6))
def test_no_name_is_given_twice_and_no_address_changes(changes: list[tuple[str, int]]) -> None:
    now = topology()
    before = dict(actor_nodes(now))
    known = addresses(now, now.run.directory)
    for role, number in changes:
        former = dict(actor_nodes(now))
        now = scaled(now, role, number)
        came = dict(actor_nodes(now)).keys() - former.keys()
        assert not came & before.keys()
        before |= dict.fromkeys(came, role)
        assert len(present(now, role)) == number
        table = addresses(now, now.run.directory)
        assert {name: table[name] for name in known} == known
        assert len(set(table.values())) == len(table)
        known = table
    # What a message or a file says of the changes is all that another process needs.
    assert with_changed(topology(), read(written(changed_hosts(now)))) == now
    assert settings_to_agree(now) == settings_to_agree(topology())


def test_new_replicas_are_spread_evenly_over_the_hosts_that_run_the_role() -> None:
    assert new_replicas(topology(), "rollout_generator", 2, taken={}) == {
        "rollout_generator.1": "a",
        "rollout_generator.2": "a",
    }
    on_three = with_replicas(topology(), {"tool_executor.2": "a"})
    assert list(new_replicas(on_three, "tool_executor", 3, taken={}).values()) == ["b", "a", "b"]
    assert set(new_replicas(on_three, "tool_executor", 3, taken={}, left=["b"]).values()) == {"a"}
    assert list(new_replicas(topology(), "tool_executor", 1, taken={"tool_executor": 7})) == ["tool_executor.7"]
    assert last_replicas(on_three, "tool_executor", 2) == {"tool_executor.2": "a", "tool_executor.1": "b"}


def test_a_host_without_replicas_stays_a_host_of_the_run() -> None:
    now = scaled(topology(), "tool_executor", 1)
    assert now.homes("tool_executor") == {0: "a"}
    assert now.hosts_in_use == ("a", "b")


@pytest.mark.parametrize(
    ("role", "number", "reason"),
    [
        ("nobody", 2, "no role 'nobody'; there are kv_scheduler"),
        ("tool_executor", 0, "at least one process"),
        ("tool_executor", -1, "at least one process"),
        ("tool_executor", 2, "nothing would change: tool_executor has 2 processes already"),
        ("kv_scheduler", 1, "has 1 process already"),
        ("kv_scheduler", 2, "exactly one kv_scheduler"),
    ],
)
def test_a_number_is_refused(role: str, number: int, reason: str) -> None:
    assert reason in refusal(topology(), role, number)


def test_hosts_that_left_count_for_nothing() -> None:
    assert refusal(topology(), "tool_executor", 2, left=["b"]) == ""
    assert "no host that runs tool_executor is left" in refusal(topology(), "tool_executor", 2, left=["a", "b"])


def test_ports_that_another_host_has_are_refused() -> None:
    def at_one_address(**host: Any) -> Topology:
        return topology(hosts={"a": {"address": "10.0.0.1"}, "b": {"address": "10.0.0.1", **host}})

    def fault(now: Topology) -> str:
        return port_fault(with_replicas(now, {"rollout_generator.1": "a"}))

    assert fault(at_one_address(base_port=5705)) == ""
    assert "host b would need the ports 5704 to 5705 at 10.0.0.1, and host a those from 5700 to 5704" in fault(
        at_one_address(base_port=5704)
    )
    assert fault(topology()) == ""


def test_a_host_of_the_file_keeps_the_address_that_its_own_file_gives_it() -> None:
    told = {"a": Host(address="10.9.9.9", base_port=9000, added=("rollout_generator.1",))}
    assert with_changed(topology(), told).hosts["a"].address == "10.0.0.1"
