"""What limits a topology, from its shares; what hosts count; and real runs over three namespaces."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import trio

from actors.cli.main import main
from agent_rl.config.load import load_topology
from benchmarks.bench_chaos import EXAMPLE, SCRIPTED
from benchmarks.bench_throughput import Measured, limit
from benchmarks.chaos.cluster import ROLES
from benchmarks.chaos.scripted import write_model
from benchmarks.command import WrongOptions
from benchmarks.hosts import Counters, OverSsh, Traffic, hosts_of
from benchmarks.runs import Window
from tests.machines import skip_without

SPENT = "rollout_generator: a newer policy (the staleness budget is spent)"
THREE = 'hosts={a={address="10.0.0.1"},b={address="10.0.0.2"},c={address="10.0.0.3"}}'


def measured(
    busy: dict[str, float],
    cpu: dict[str, float] | None = None,
    waits: dict[str, dict[str, float]] | None = None,
    **hosts: Traffic,
) -> Measured:
    window = Window(10.0, 0.0, 0.0, 0.0, 0.0, 0.0, busy, cpu or {}, waits or {})
    return Measured(window, hosts or {"local": Traffic(0.0, 0.0, 0.1)})


def test_the_limit_is_a_busy_actor_or_the_cores_or_waiting() -> None:
    assert limit(measured({"a.0": 0.95, "b.0": 0.2}), 2) == "a.0"
    assert limit(measured({"rollout_generator.1": 0.95}), 2) == "the engine of rollout_generator.1"
    assert limit(measured({"a.0": 0.5}, {"a.0": 0.4, "b.0": 1.5}), 2) == "cores (most: b.0)"
    assert limit(measured({"a.0": 0.5, "b.0": 0.1}, {"a.0": 0.4}), 2) == "a.0 (and waiting)"
    assert limit(measured({}), 2) == "nothing was heard of any actor"


def test_a_link_that_is_used_most_of_the_time_is_the_limit() -> None:
    busy, slow = {"learner.0": 0.5, "rollout_generator.0": 0.3}, Traffic(2.2e6, 1e5, 0.4, 2.4e6)
    b = Traffic(1e5, 1.1e6, 0.4, 2.4e6)
    assert limit(measured(busy, a=slow, b=b), 2) == "the link of a, which sends 2.20 of 2.40 MB/s"
    assert limit(measured(busy, a=Traffic(2.2e6, 1e5, 0.4, 1e9), b=b), 2) == "learner.0 (and waiting)"
    assert limit(measured(busy | {"learner.0": 1.0}, a=Traffic(1.9e6, 1e5, 0.4, 2.4e6)), 2) == "learner.0"


def test_cores_that_others_use_are_a_limit_too() -> None:
    busy, cpu = {"learner.0": 0.5}, {"learner.0": 0.2}
    hosts = {"a": Traffic(0.0, 0.0, 0.3, 1e9), "b": Traffic(0.0, 0.0, 0.97, 1e9)}
    assert limit(measured(busy, cpu, **hosts), 2) == "cores of b (most: learner.0)"


def test_a_spent_staleness_budget_is_the_limit_with_what_takes_the_time_between_policies() -> None:
    waits = {"kv_scheduler.0": {SPENT: 0.7}, "learner.0": {"roc_filter: step": 0.3}}
    found = limit(measured({"learner.0": 0.6, "rollout_generator.0": 0.4}, waits=waits), 2)
    assert found == "staleness budget (spent 70 % of the time; from policy to policy mostly learner.0)"
    assert limit(measured({"learner.0": 0.95}, waits=waits), 2) == "learner.0"


def test_a_host_counts_bytes_besides_loopback_and_ticks_of_its_cores() -> None:
    text = (
        "Inter-|   Receive  |  Transmit\n face |bytes packets\n"
        "    lo: 99 1 0 0 0 0 0 0 99 1 0 0 0 0 0 0\n"
        "  eth0: 1000 1 0 0 0 0 0 0 500 1 0 0 0 0 0 0\n"
        "  eth1: 24 1 0 0 0 0 0 0 12 1 0 0 0 0 0 0\n"
        "cpu  10 1 20 60 5 0 4 0 0 0\ncpu0 5 0 10 30 2 0 2 0 0 0\n"
    )
    assert Counters.read(text) == Counters(512, 1024, 35, 100)
    between = Traffic.between(Counters(0, 24, 0, 0), Counters(512, 1024, 35, 100), 2.0, 1024.0)
    assert between == Traffic(256.0, 500.0, 0.35, 1024.0)
    assert between.used == 0.25


def test_a_command_for_another_machine_is_quoted_for_its_shell() -> None:
    hosts = OverSsh({"a": (), "b": ("ssh", "-p", "22", "10.0.0.2")}, ())
    assert hosts.command("a", "cat", "a b") == ["cat", "a b"]
    assert hosts.command("b", "cat", "a b") == ["ssh", "-p", "22", "10.0.0.2", "cat 'a b'"]


def test_what_cannot_be_measured_here_is_said(tmp_path: Path) -> None:
    on_three = [THREE, *(f"actors.{role}.{where}" for role, where in ROLES.items())]
    topology = load_topology(EXAMPLE, [*on_three, "security.key_file=key"])
    with (
        pytest.raises(WrongOptions, match=r"main host a \(10.0.0.1\) is another machine"),
        hosts_of(topology, tmp_path, namespaces=False, ssh="ssh", rate=None),
    ):
        pass
    with (
        pytest.raises(WrongOptions, match="--mbit goes with --namespaces"),
        hosts_of(topology, tmp_path, namespaces=False, ssh="ssh", rate=20.0),
    ):
        pass


def three_hosts(folder: Path) -> list[str]:
    """Settings of a run without a model over three hosts. A published policy has 4 MiB; a step takes half a second."""
    settings = [
        *SCRIPTED,
        THREE,
        *(f"actors.{role}.{where}" for role, where in ROLES.items()),
        f'model={{path="{write_model(folder / "model")}"}}',
        "stages.2.steps=1000",
        "actors.learner.settings.weights_mib=4",
        "actors.rollout_generator.class=benchmarks.chaos.scripted:ScriptedGenerator",
        f"actors.rollout_generator.settings.record={folder / 'record'}",
        "actors.rollout_generator.links.weights=learner",
    ]
    return [part for each in settings for part in ("--set", each)]


def test_what_a_slow_link_carries_is_measured(tmp_path: Path) -> None:
    skip_without("tc")
    settings = [THREE, *(f"actors.{role}.{where}" for role, where in ROLES.items()), "security.key_file=key"]
    topology = load_topology(EXAMPLE, settings)

    async def capacities() -> dict[str, float]:
        with hosts_of(topology, tmp_path, namespaces=True, ssh="ssh", rate=20.0) as hosts:
            before = await hosts.counters()
            found = await hosts.capacities()
            after = await hosts.counters()
        assert all(after[host].sent - before[host].sent > 5e5 for host in hosts.names)
        return found

    found = trio.run(capacities)
    assert found.keys() == {"a", "b", "c"}
    assert all(1e6 < each < 3.5e6 for each in found.values()), found  # 20 Mbit/s are 2.5 MB/s


@pytest.mark.slow
def test_a_slow_link_limits_a_run_over_three_hosts_and_a_fast_one_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    skip_without("tc")
    command = ["bench", "throughput", str(EXAMPLE), "--namespaces", "--seconds", "12", *three_hosts(tmp_path)]
    found = []
    for rate in ([], ["--mbit", "20"]):
        assert main([*command, *rate]) == 0
        out = capsys.readouterr().out
        sys.stdout.write(out)  # for docs/measurements.md: pytest -rP
        found.append(json.loads(out.strip().splitlines()[-1]))
    fast, slow = found
    assert "the link of " in slow["limited_by"], slow  # weights are passed on: two links share what one did
    assert "the link of " not in fast["limited_by"], fast
    assert fast["steps_per_s"] > slow["steps_per_s"] > 0
    for each in found:
        assert each["rollouts_per_s"] > 0
        assert each["tool_calls_per_s"] > 0
        assert each["generated_tokens_per_s"] > 0
        assert each["bytes_between_hosts_per_s"] > each["sent_per_s_a"] > each["received_per_s_a"] > 0
