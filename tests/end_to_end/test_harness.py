"""A real run whose rollouts are by a program behind the gateway."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from actors.cli.main import main
from tests.actors.gateway.stand import free_port
from tests.end_to_end import agent
from tests.end_to_end.processes import (
    alive,
    balanced,
    check_trained_once,
    family,
    finish,
    rows,
    signal_actor,
    start,
    steps_trained,
    wait_for,
)
from tests.end_to_end.topologies import write_half_right


@pytest.mark.slow
def test_an_agents_tokens_are_all_trained_or_excluded_for_a_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, directory = write_half_right(tmp_path, steps=3)
    command = [sys.executable, agent.__file__, "{prompt}"]
    finish(
        start(
            path,
            'run.keep_trajectories="all"',
            "run.keep_checkpoints=9",
            "run.checkpoint_every=1",
            "algorithm.max_staleness=0",
            f"environments.0.harness={{command={json.dumps(command)}}}",
            f"actors.gateway.settings.port={free_port()}",
            "actors.gateway.replicas=2",
            "stages.0.max_turns=5",
            "stages.0.max_response_tokens=120",
        )
    )
    balanced(directory, steps=3)
    assert main(["export", str(directory)]) == 0
    assert main(["audit", str(directory)]) == 0
    said = capsys.readouterr().out
    found = rows(directory / "trajectories.jsonl")
    causes = {cause for row in found for *_, cause in row["branches"]}
    assert causes == {"side_call", "rewrite", "sub_agent"}
    sampled = json.loads((directory / "summary.json").read_text())
    trained = sum(sum(row["loss_mask"]) for row in found if row["kept"])
    assert sampled["tokens_delivered_trained"] == trained > 0
    assert sampled["tokens_delivered_side_call"] > 0
    parts = [value for name, value in sampled.items() if name.startswith("tokens_delivered_")]
    assert 2 * sampled["tokens_delivered_sampled"] == sum(parts)
    assert f"= {trained:,} trained + " in said
    assert main(["analyze", str(directory), "--rollouts", "6", "--step", "3"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["gap"] < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("role", ["gateway", "rollout_generator", "kv_scheduler"])
def test_killed_an_actor_costs_the_turn_under_way_and_leaves_no_program(tmp_path: Path, role: str) -> None:
    path, directory = write_half_right(tmp_path, steps=6)
    command = [sys.executable, agent.__file__, "{prompt}", "6"]
    process = start(
        path,
        f"environments.0.harness={{command={json.dumps(command)}}}",
        f"actors.gateway.settings.port={free_port()}",
        "actors.gateway.replicas=2",
        "stages.0.max_turns=8",
        "stages.0.max_response_tokens=220",
    )
    wait_for(lambda: steps_trained(directory) >= 2, "two steps")
    everyone = family(process.pid)
    signal_actor(path, f"{role}.0")
    said = finish(process)
    assert f"{role}.0 was killed by SIGKILL; starting it again" in said.all
    wait_for(lambda: not alive(everyone), "every process to end")
    balanced(directory, steps=6)
    check_trained_once(directory)
    steps = [row for row in rows(directory / "metrics.jsonl") if row["kind"] == "step"]
    assert sum(row["rollouts_failed"] for row in steps) == 0
    if role == "rollout_generator":
        log = "".join(each.read_text() for each in (directory / "logs").iterdir())
        assert "rollout goes on" in log
