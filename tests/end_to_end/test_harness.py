"""Real runs whose rollouts are by a program behind the gateway, or by a loop that branches. A run is studied: its own
checkpoints give the tokens the log-probabilities that they were sampled with.
"""

import json
import sys
from pathlib import Path

import pytest

from actors.cli.main import main
from agent_rl.environments.harness import REST
from examples.entropy.entropy import study
from tests.actors.gateway.stand import free_port
from tests.actors.sandbox.running import living, named
from tests.end_to_end import agent
from tests.end_to_end.processes import Run, alive, family, wait_for
from tests.end_to_end.topologies import write_half_right

pytestmark = pytest.mark.slow
AGENTS = str(Path(agent.__file__).parent)
KEEP_ALL = 'run.keep_trajectories="all"'
STUDIED = (KEEP_ALL, "run.keep_checkpoints=9", "run.checkpoint_every=1", "algorithm.max_staleness=0")


def by_a_program(*command: str, turns: int = 8, tokens: int = 220, more: str = "") -> list[str]:
    """What has each rollout written by a program of these words."""
    harness = f"environments.0.harness={{command={json.dumps([sys.executable, *command])}{more}}}"
    limits = [f"stages.0.max_turns={turns}", f"stages.0.max_response_tokens={tokens}"]
    return [harness, f"actors.gateway.settings.port={free_port()}", *limits]


def test_each_step_of_a_run_is_computed_by_the_policy_that_sampled_it(tmp_path):
    run = Run(*write_half_right(tmp_path, steps=5))
    run.to_end(*STUDIED)
    written = {int(path.name.split("-")[1]) for path in (run.directory / "checkpoints").glob("version-*")}
    steps = [step for step in (1, 2, 3, 4, 5) if step - 1 in written]  # one still being written postpones the next
    assert len(steps) >= 2
    for step in steps:
        found = study(run.directory, rollouts=6, step=step)
        assert (found["rollouts"], found["version"]) == (6, step - 1)
        assert Path(found["model"]).name.startswith(f"version-{step - 1:06d}")
        assert found["gap"] < 1e-4  # engine and learner in float32
        assert 0 < found["entropy"] < 6


def test_each_token_of_a_rollout_with_branches_is_trained_once_where_it_was_sampled(tmp_path):
    run = Run(*write_half_right(tmp_path, steps=3))
    branching = 'environments.0.rollout="tests.end_to_end.faulty:branching"'
    run.to_end(*STUDIED, branching, "stages.0.max_turns=5", "stages.0.max_response_tokens=120")
    run.balanced(steps=3)
    found = run.exported()
    assert all(sorted(cause for *_, cause in row["branches"]) == ["again", "rewrite", "sub_agent"] for row in found)
    for version, step in enumerate(row for row in run.told("step") if "trained_tokens" in row):
        kept = [row for row in found if row["kept"] and row["step"] == version]
        assert step["trained_tokens"] == sum(sum(row["loss_mask"]) for row in kept) > 0
        assert step["trained_rollouts"] == len(kept)
    assert study(run.directory, rollouts=6, step=3)["gap"] < 1e-4
    right = run.exported("--right")
    assert len(right) == 4 * sum(row["reward"] > 0 for row in found)
    assert all(not row["branches"] for row in right)


def test_an_agents_tokens_are_all_trained_or_excluded_for_a_cause(tmp_path, capsys):
    run = Run(*write_half_right(tmp_path, steps=3))
    program = by_a_program(agent.__file__, "{prompt}", turns=5, tokens=120)
    run.to_end(*STUDIED, *program, "actors.gateway.replicas=2")
    run.balanced(steps=3)
    found = run.exported()
    assert main(["audit", str(run.directory)]) == 0
    said = capsys.readouterr().out
    assert {cause for row in found for *_, cause in row["branches"]} == {"side_call", "rewrite", "sub_agent"}
    sampled = run.summary()
    trained = sum(sum(row["loss_mask"]) for row in found if row["kept"])
    assert sampled["tokens_delivered_trained"] == trained > 0
    assert sampled["tokens_delivered_side_call"] > 0
    parts = [value for name, value in sampled.items() if name.startswith("tokens_delivered_")]
    assert 2 * sampled["tokens_delivered_sampled"] == sum(parts)
    assert f"= {trained:,} trained + " in said
    assert study(run.directory, rollouts=6, step=3)["gap"] < 1e-4


@pytest.mark.parametrize("role", ["gateway", "rollout_generator", "kv_scheduler"])
def test_killed_an_actor_costs_the_turn_under_way_and_leaves_no_program(tmp_path, role):
    run = Run(*write_half_right(tmp_path, steps=6))
    run.start(*by_a_program(agent.__file__, "{prompt}", "6"), "actors.gateway.replicas=2").until(2)
    everyone = family(run.process.pid)
    wait_for(lambda: living("had-turns-2"), "a program with two turns of six")
    run.signal(f"{role}.0")
    assert f"{role}.0 was killed by SIGKILL; starting it again" in run.finish().all
    wait_for(lambda: not alive(everyone), "every process to end")
    run.balanced(steps=6)
    run.trained_once()
    assert sum(row["rollouts_failed"] for row in run.told("step")) == 0
    assert role != "rollout_generator" or "rollout goes on" in run.log()


def test_a_program_whose_gateway_is_killed_is_not_at_fault(tmp_path):
    """The program repeats nothing: it fails wherever a connection breaks."""
    run = Run(*write_half_right(tmp_path, steps=6))
    ask = "agent.ask([{'role': 'user', 'content': sys.argv[2]}] * (n + 1))"
    words = f"import sys, time; sys.path.insert(0, sys.argv[1]); import agent; n = 0; {ask}\n{named('has-asked')}"
    words += f"for n in range(1, 5): {ask} and time.sleep(0.2)"
    run.start(KEEP_ALL, *by_a_program("-c", words, AGENTS, "{prompt}"))
    for steps in (1, 2, 4):  # one that has asked asks again before the next gateway listens
        run.until(steps)
        wait_for(lambda: living("has-asked"), "a program that asks")
        run.signal("gateway.0")
    run.finish()
    run.balanced(steps=6)
    said = [reply for row in run.exported() if row["kept"] for reply in row["transcript"]["replies"]]
    assert {json.loads(reply["content"])["status"] for reply in said if reply["role"] == REST} == {"status 0"}
    assert "a program is started again" in run.log()


def test_the_tests_of_a_task_folder_decide_the_reward(tmp_path):
    run = Run(*write_half_right(tmp_path, steps=2))
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
    text = run.path.read_text().replace("tests.end_to_end.faulty:HalfRight", "actors.roc_filter:RoCFilter")
    maths = 'class = "maths"\nsettings.files = ["fours.jsonl"]'
    run.path.write_text(text.replace(maths, 'class = "harbor"\nsettings.folder = "tasks"'))
    check = ', isolation="strong", check=["bash", "{tests}/test.sh"]'
    run.to_end(KEEP_ALL, *by_a_program("-c", program, AGENTS, "{prompt}", "{seed}", turns=2, tokens=40, more=check))
    assert "the check of a task is broken: left out for the rest of the run" in run.log()
    run.balanced(steps=2)
    found = [row for row in run.exported() if row["reward"] is not None]
    assert {row["reward"] for row in found} == {0.0, 1.0}
    told = json.loads(found[0]["transcript"]["replies"][0]["content"])
    assert (told["status"], told["check_output"]) == ("status 0", "/app:\nseed\n\n/tests:\ntest.sh\n")
