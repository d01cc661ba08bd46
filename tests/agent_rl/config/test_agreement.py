"""Which settings two hosts must agree on, and how the keys are named in which they differ."""

from pathlib import Path

import pytest

from agent_rl.config.agreement import differences
from agent_rl.config.agreement import settings_to_agree as to_agree
from agent_rl.config.load import load_topology
from agent_rl.config.topology import Topology
from agent_rl.environments.load import shown_settings
from tests.end_to_end.topologies import write_two_hosts


def settings_to_agree(topology: Topology) -> dict[str, str]:
    return to_agree(topology, shown_settings)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_two_hosts(tmp_path_factory.mktemp("hosts"), (5700, 5800))[0]


@pytest.mark.parametrize(
    "override",
    [
        "run.directory=/elsewhere/run",
        "run.log_mib=3",
        "security.key_file=/elsewhere/cluster.key",
        "hosts.a.address=10.0.0.7",
        "actors.rollout_generator.settings.max_rollouts=3",
        "actors.rollout_generator.restarts=9",
    ],
)
def test_what_only_one_host_uses_may_differ(path: Path, override: str) -> None:
    assert differences(settings_to_agree(load_topology(path)), settings_to_agree(load_topology(path, [override]))) == ""


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("algorithm.samples=8", "algorithm.samples is 4 here and 8 there"),
        ("hosts.b.base_port=5900", "hosts.b.base_port is 5800 here and 5900 there"),
        ("actors.rollout_generator.replicas=2", "actors.rollout_generator.replicas is 1 here and 2 there"),
        ("run.seed=7", "run.seed is 0 here and 7 there"),
    ],
)
def test_differing_keys_are_named_with_both_values(path: Path, override: str, text: str) -> None:
    here, there = settings_to_agree(load_topology(path)), settings_to_agree(load_topology(path, [override]))
    assert text in differences(here, there)
    assert differences(there, here)


def test_paths_are_compared_by_their_last_part_and_secrets_by_digest(path: Path) -> None:
    def settings(*overrides: str) -> dict[str, str]:
        added = [f"environments.0.settings.{override}" for override in overrides]
        return settings_to_agree(load_topology(path, added))

    assert settings("file=/a/data.jsonl") == settings("file=/b/data.jsonl")
    assert differences(settings("file=/a/data.jsonl"), settings("file=/a/other.jsonl"))
    kept = settings("api_key=hunter2")["environments.0.settings.api_key"]
    assert kept.startswith("sha256:")
    assert "hunter2" not in differences(settings("api_key=hunter2"), settings("api_key=hunter3"))


def test_many_differing_keys_are_counted() -> None:
    here = {f"key{number}": "1" for number in range(20)}
    text = differences(here, dict.fromkeys(here, "2"))
    assert text.startswith("key0 is 1 here and 2 there; ")
    assert text.endswith("; 14 more keys differ")
