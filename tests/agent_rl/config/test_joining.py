"""Hosts that join: the numbers of their replicas, and why a host is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.config.addresses import actor_nodes, addresses
from agent_rl.config.joining import joined_hosts, next_numbers, read, refusal, with_changed, written
from agent_rl.config.processes import Host
from agent_rl.config.topology import Topology

ROLES = {
    "kv_scheduler": "actors.kv_scheduler:KVScheduler",
    "rollout_generator": "actors.rollout_generator:RolloutGenerator",
    "tool_executor": "actors.tool_executor:ToolExecutor",
}
MANY = ("rollout_generator", "tool_executor")


def topology(**changes: Any) -> Topology:
    actors: dict[str, dict[str, Any]] = {role: {"class": path, "host": "a"} for role, path in ROLES.items()}
    actors["tool_executor"] = {"class": ROLES["tool_executor"], "hosts": ["a", "b"]}
    tables: dict[str, Any] = {
        "run": {"name": "joined", "directory": "/nowhere"},
        "model": {"initialise": {}},
        "environments": [{"class": "arithmetic"}],
        "stages": [{"kind": "sft", "steps": 1}],
        "hosts": {"a": {"address": "10.0.0.1"}, "b": {"address": "10.0.0.2"}},
        "security": {"key_file": "key"},
        "actors": actors,
    }
    return Topology.model_validate(tables | changes)


JOINS = st.lists(
    st.tuples(
        st.booleans(),
        st.dictionaries(st.sampled_from(MANY), st.integers(1, 3), min_size=1),
        st.sampled_from(["10.0.0.1", "10.0.0.2", "10.0.0.3"]),
    ),
    max_size=8,
)


@settings(max_examples=60)
@given(JOINS)
def test_hosts_that_come_and_go_never_get_a_name_that_was_given_before(joins: list[Any]) -> None:
    """Each event: a host joins, and before it the oldest host that joined leaves, or not."""
    present = topology()
    taken: dict[str, int] = {}
    given_names = {name for name, _ in actor_nodes(present)}
    for number, (leaves, wanted, address) in enumerate(joins):
        joined = joined_hosts(present)
        if leaves and joined:
            present = with_changed(present, dict(list(joined.items())[1:]))
        name = f"j{number}"
        host = Host(address=address, base_port=6000 + 100 * number)
        assert refusal(present, name, host, wanted) == ""
        before = addresses(present, Path("/tmp/x"))
        numbers = next_numbers(present, taken, wanted)
        taken |= {role: each[-1] + 1 for role, each in numbers.items()}
        present = with_changed(
            present, joined_hosts(present) | {name: Host(address=address, base_port=host.base_port, joined=numbers)}
        )
        names = {node for node, _ in actor_nodes(present, name)}
        assert len(names) == sum(wanted.values())
        assert not names & given_names
        given_names |= names
        after = addresses(present, Path("/tmp/x"))
        assert before.items() <= after.items()
        assert len(set(after.values())) == len(after)
        assert read(written(joined_hosts(present))) == joined_hosts(present)
    assert with_changed(present, {}) == topology()


@pytest.mark.parametrize(
    ("name", "host", "wanted", "reason"),
    [
        ("b", {}, {"tool_executor": 1}, "start it with agent-rl run FILE --host b"),
        ("j", {}, {"tool_executor": 1}, "a host j has joined already"),
        ("d", {}, {"kv_scheduler": 1}, "there is exactly one kv_scheduler"),
        ("d", {}, {"generator": 1}, "no role is named 'generator'"),
        ("d", {}, {}, "it would run no actor"),
        ("d", {"address": "10.0.0.2"}, {"tool_executor": 1}, "host b has the ports 5700 to 5701 at 10.0.0.2"),
        ("d", {"address": "10.0.0.3", "base_port": 5702}, {"tool_executor": 1}, "choose --base-port 5703"),
        ("d", {"address": "10.0.0.3", "base_port": 60000}, {"tool_executor": 5536}, "and 65535 is the highest"),
    ],
)
def test_a_host_that_cannot_join_is_told_why(name: str, host: dict[str, Any], wanted: Any, reason: str) -> None:
    j = Host(address="10.0.0.3", joined={"tool_executor": (2, 3)})
    place = Host.model_validate({"address": "10.0.0.9"} | host)
    assert reason in refusal(with_changed(topology(), {"j": j}), name, place, wanted)


def test_nobody_joins_a_run_on_unix_sockets() -> None:
    alone = topology(hosts={"a": {}}, actors={"tool_executor": {"class": ROLES["tool_executor"], "host": "a"}})
    assert "Unix sockets alone" in refusal(alone, "d", Host(), {"tool_executor": 1})
