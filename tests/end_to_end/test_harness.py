"""A real run whose rollouts are by a program behind the gateway."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from actors.cli.main import main
from agent_rl.environments.harness import REST
from examples.entropy.entropy import study
from tests.actors.gateway.stand import free_port
from tests.actors.sandbox.running import living, named
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
    assert study(directory, rollouts=6, step=3)["gap"] < 1e-4


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
    time.sleep(0.7)  # of the 1.8 s that a rollout takes at least: some have a turn by now
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


@pytest.mark.slow
def test_a_program_whose_gateway_is_killed_is_not_at_fault(tmp_path: Path) -> None:
    """The program repeats nothing: it fails wherever a connection breaks."""
    path, directory = write_half_right(tmp_path, steps=6)
    ask = "agent.ask([{'role': 'user', 'content': sys.argv[2]}] * (n + 1))"
    words = f"import sys, time; sys.path.insert(0, sys.argv[1]); import agent; n = 0; {ask}\n{named('has-asked')}"
    words += f"for n in range(1, 5): {ask} and time.sleep(0.2)"
    command = [sys.executable, "-c", words, str(Path(agent.__file__).parent), "{prompt}"]
    process = start(
        path,
        'run.keep_trajectories="all"',
        f"environments.0.harness={{command={json.dumps(command)}}}",
        f"actors.gateway.settings.port={free_port()}",
        "stages.0.max_turns=8",
        "stages.0.max_response_tokens=220",
    )
    for step in (1, 2, 4):  # one that has asked asks again before the next gateway listens
        wait_for(lambda step=step: steps_trained(directory) >= step and living("has-asked"), "a program that asks")
        signal_actor(path, "gateway.0")
    finish(process)
    balanced(directory, steps=6)
    assert main(["export", str(directory)]) == 0
    kept = [row["transcript"] for row in rows(directory / "trajectories.jsonl") if row["kept"]]
    said = [reply for transcript in kept for reply in transcript["replies"] if reply["role"] == REST]
    assert {json.loads(reply["content"])["status"] for reply in said} == {"status 0"}
    assert "a program is started again" in "".join(each.read_text() for each in (directory / "logs").iterdir())


@pytest.mark.slow
def test_the_tests_of_a_task_folder_decide_the_reward(tmp_path: Path) -> None:
    path, directory = write_half_right(tmp_path, steps=2)
    for number in range(4):
        task = tmp_path / "tasks" / f"task-{number}"
        (task / "tests").mkdir(parents=True)
        (task / "task.toml").write_text('version = "1.0"\n')
        (task / "instruction.md").write_text(f"Do {number}.")
        (task / "tests" / "test.sh").write_text(
            "mkdir -p /logs/verifier; ls /app /tests\n"
            + ("no_such_program" if number == 3 else "grep -c 1 /app/seed > /logs/verifier/reward.txt; exit 0\n")
        )
    program = "sys.path.insert(0, sys.argv[1]); import agent; open('seed', 'w').write(str(int(sys.argv[3]) % 2))"
    program = f"import sys; {program}; agent.ask([{{'role': 'user', 'content': sys.argv[2]}}])"
    command = [sys.executable, "-c", program, str(Path(agent.__file__).parent), "{prompt}", "{seed}"]
    harness = f'{{command={json.dumps(command)}, isolation="strong", check=["bash", "{{tests}}/test.sh"]}}'
    whole = path.read_text().replace("tests.end_to_end.faulty:HalfRight", "actors.roc_filter:RoCFilter")
    whole = whole.replace(
        'class = "maths"\nsettings.files = ["fours.jsonl"]', 'class = "harbor"\nsettings.folder = "tasks"'
    )
    path.write_text(whole)
    finish(
        start(
            path,
            'run.keep_trajectories="all"',
            f"environments.0.harness={harness}",
            f"actors.gateway.settings.port={free_port()}",
        )
    )
    log = "".join(each.read_text() for each in (directory / "logs").iterdir())
    assert "the check of a task is broken: left out for the rest of the run" in log
    balanced(directory, steps=2)
    assert main(["export", str(directory)]) == 0
    found = [row for row in rows(directory / "trajectories.jsonl") if row["reward"] is not None]
    assert {row["reward"] for row in found} == {0.0, 1.0}
    told = json.loads(found[0]["transcript"]["replies"][0]["content"])
    assert (told["status"], told["check_output"]) == ("status 0", "/app:\nseed\n\n/tests:\ntest.sh\n")
