"""Actors of a run under way are swapped: the run goes on, no group is lost or trained twice, success is as before."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.processes import CALLS_TOOLS, ROOM, SECONDS, Run, Traces
from tests.end_to_end.topologies import write_half_right

SEVERAL = [
    f"actors.{role}.{key}" for role in ("rollout_generator", "tool_executor") for key in ("replicas=3", "start=1")
]
SWAPS = {
    "kv_scheduler": "OtherScheduler",
    "roc_filter": "OtherFilter",
    "rollout_generator": "OtherGenerator",
    "tool_executor": "OtherExecutor",
    "learner": "OtherLearner",
}


def change(run: Run, temporary: Path, what: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Have a command change the run under way."""
    command = [sys.executable, "-m", "actors.cli", what, str(run.directory), *arguments]
    environment = os.environ | {"TMPDIR": str(temporary)}
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=4 * SECONDS, env=environment)


@pytest.mark.slow
def test_every_actor_of_a_run_is_swapped_and_the_run_balances(tmp_path, temporary):
    """Every rollout calls the executor and every step trains, so that each process that leaves has work to lose."""
    run = Run(*write_half_right(tmp_path, steps=500, generator=CALLS_TOOLS), TMPDIR=str(temporary))
    traces = Traces(run, temporary)
    run.start(*ROOM).until(1)
    traces.look()
    before = sorted(run.processes)

    def refused(*arguments: str) -> str:
        swapped = change(run, temporary, "swap", *arguments)
        assert swapped.returncode == 2, swapped.stdout + swapped.stderr
        return swapped.stderr

    for arguments, reason in (
        (("roc_filter", "--class", "tests.end_to_end.swapped:Missing"), "has no class 'Missing'"),
        (("kv_scheduler", "--set", "request_window=1"), "request_window 1 is smaller than a group"),
        (("nobody", "--set", "threads=1"), "the run has no actor 'nobody'"),
    ):
        assert reason in refused(*arguments)
    assert sorted(run.processes) == before

    running = run.pid("rollout_generator.0")
    said = refused("rollout_generator", "--class", "tests.end_to_end.swapped:NeverReady")
    assert "before it was ready: RuntimeError: this generator has a fault" in said
    assert run.pid("rollout_generator.0") == running

    said = refused("roc_filter", "--class", "tests.end_to_end.swapped:Broken")
    assert "this filter has a fault" in said
    assert "the former class and settings hold again" in said

    for role, name in SWAPS.items():
        run.more(1)
        swapped = change(run, temporary, "swap", role, "--class", f"tests.end_to_end.swapped:{name}")
        assert swapped.returncode == 0, swapped.stdout + swapped.stderr
        assert f"{role}.0 is now tests.end_to_end.swapped:{name}; it was away for" in swapped.stdout
        assert "s (beside)\n" in swapped.stdout
        assert run.logged(f"{role}.0", "started")[-1]["actor_class"] == f"tests.end_to_end.swapped:{name}"
        traces.look()
    said = run.more(2).interrupt()
    assert "starting it again" not in said.all  # nobody died
    traces.assert_none()

    done = run.trained
    said = run.to_end(*ROOM, f"stages.0.steps={done + 2}")
    assert "kv_scheduler was swapped in the last start, and now is what the file says" in " ".join(said.all.split())
    run.balanced(steps=done + 2)
    run.trained_once()
    assert all(row["success"] == 0.5 for row in run.told("step") if row["groups_trained"])


@pytest.mark.slow
def test_generators_and_executors_come_and_go_and_the_run_balances(tmp_path, temporary):
    """Every rollout calls the executor, and at most 8 run at one generator, so that each process has work."""
    run = Run(*write_half_right(tmp_path, steps=500, generator=CALLS_TOOLS), TMPDIR=str(temporary))
    run.start(*ROOM, *SEVERAL).until(1)
    for role, number, reason in (
        ("learner", "2", "exactly one learner, which"),
        ("tool_executor", "0", "at least one"),
    ):
        refused = change(run, temporary, "scale", role, number)
        assert refused.returncode == 2, refused.stdout + refused.stderr
        assert reason in refused.stderr
    for role, number in (
        ("rollout_generator", 2),
        ("tool_executor", 3),
        ("rollout_generator", 1),
        ("tool_executor", 2),
    ):
        run.more(1)
        scaled = change(run, temporary, "scale", role, str(number))
        assert scaled.returncode == 0, scaled.stdout + scaled.stderr
        assert f"{role} has {number} process" in scaled.stdout
    run.more(2)
    stopped = change(run, temporary, "stop")
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert "the run stops in order; continue with: agent-rl run " in stopped.stdout
    said = run.finish()
    assert "stopping, as a command asks; continue with: agent-rl run" in " ".join(said.all.split())
    assert "starting it again" not in said.all  # nobody died
    done = run.trained
    said = run.to_end(*ROOM, *SEVERAL, f"stages.0.steps={done + 2}")
    assert "tool_executor was scaled in the last start" in " ".join(said.all.split())
    run.balanced(steps=done + 2)
