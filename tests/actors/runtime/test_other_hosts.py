"""The main host's supervisor tells the others what they must do; the newest of it takes the place of the former."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from actors.runtime.other_hosts import OtherHosts
from agent_rl.config.load import load_topology
from agent_rl.messages import RunState
from tests.actors.runtime.test_roster import TOPOLOGY


def test_that_the_run_ends_is_not_replaced_by_who_misbehaves_while_it_does(tmp_path: Path) -> None:
    """A host that is not heard when the run ends hears of it when it is back."""
    (tmp_path / "topology.toml").write_text(TOPOLOGY)
    topology = load_topology(tmp_path / "topology.toml")
    told: list[RunState] = []
    main = OtherHosts(topology, [topology.main_host])
    node: Any = SimpleNamespace(
        name=f"supervisor.{topology.main_host}", announce=lambda *_, **__: SimpleNamespace(set=told.append)
    )
    main.link(node)
    main.replace({"x.0": 3})
    main.ending(1, "a reason", finished=False)
    main.replace({"x.0": 3, "y.0": 4})
    assert [state.ending for state in told] == [False, True]
    assert told[-1].exit_code == 1
