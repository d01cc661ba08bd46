"""Who stands at the ends of a link: derived from the topology, whatever its roles are called."""

import pytest

from agent_rl.config.links import awaited_roles, peers, wait_for
from agent_rl.config.load import load_topology
from agent_rl.config.topology import Topology
from agent_rl.messages import EngineLoad, GroupOpened, PolicyPublished, RolloutRequest, StepReady, ToolCall, Trajectory
from tests.end_to_end.topologies import MICRO

SECOND = """
[actors.gen_b]
class = "actors.rollout_generator:RolloutGenerator"
links = { trajectories = "curator", tools = "tool_executor", turns = "tool_executor", load = ["kv_scheduler", "learner"] }
"""


@pytest.fixture(scope="module")
def topology(tmp_path_factory: pytest.TempPathFactory) -> Topology:
    folder = tmp_path_factory.mktemp("roles")
    text = MICRO.format(directory=folder / "run", steps=1, hosts="", a="local", b="local") + SECOND
    text = text.replace("roc_filter", "curator").replace("curator:RoCFilter", "roc_filter:RoCFilter")
    text = text.replace('"rollout_generator"', '["rollout_generator", "gen_b"]')
    text = text.replace(
        '["kv_scheduler", ["rollout_generator", "gen_b"]]', '["kv_scheduler", "rollout_generator", "gen_b"]'
    )
    path = folder / "roles.toml"
    path.write_text(text)
    return load_topology(path)


@pytest.mark.parametrize(
    ("role", "message", "awaited"),
    [
        ("learner", StepReady, ("curator",)),
        ("curator", Trajectory, ("rollout_generator", "gen_b")),
        ("curator", GroupOpened, ("kv_scheduler",)),
        ("kv_scheduler", GroupOpened, ("curator",)),
        ("kv_scheduler", EngineLoad, ("rollout_generator", "gen_b")),
        ("gen_b", PolicyPublished, ("learner",)),
        ("gen_b", RolloutRequest, ("kv_scheduler",)),
        ("gen_b", ToolCall, ("tool_executor",)),
        ("tool_executor", StepReady, ()),
    ],
)
def test_peers_follow_from_links(topology: Topology, role: str, message: type, awaited: tuple[str, ...]) -> None:
    assert peers(topology, role, message) == awaited


def test_a_wait_names_the_roles_and_they_can_be_read_from_it(topology: Topology) -> None:
    text = wait_for(topology, "curator", Trajectory, "trajectories of 2 groups")
    assert text == "rollout_generator, gen_b: trajectories of 2 groups"
    assert awaited_roles(text) == ("rollout_generator", "gen_b")
    assert awaited_roles(wait_for(topology, "tool_executor", StepReady, "x")) == ("no actor",)
