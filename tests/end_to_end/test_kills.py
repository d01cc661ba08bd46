"""Any one actor is killed in the middle of a run: it is started again, and no group is lost or trained twice."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from agent_rl.journal import Journal
from tests.end_to_end.processes import (
    check_finished,
    finish,
    process_of_actor,
    start,
    steps_trained,
    wait_for,
)
from tests.end_to_end.topologies import write_micro


@pytest.mark.parametrize("role", ["kv_scheduler", "rollout_generator", "tool_executor", "roc_filter", "learner"])
def test_a_killed_actor_is_started_again_and_the_run_balances(tmp_path: Path, role: str) -> None:
    path, directory = write_micro(tmp_path, steps=12)
    process = start(path)
    wait_for(lambda: steps_trained(directory) >= 2, "two steps")
    os.kill(process_of_actor(path, f"{role}.0"), signal.SIGKILL)
    code, out, err = finish(process)
    assert code == 0, out + err
    assert f"{role}.0 was killed by SIGKILL; starting it again" in out + err
    check_finished(path, directory, out, steps=12)
    journal = Journal(directory / "journal.sqlite")
    trained = [group for step in journal.steps() for group in step.groups]
    journal.close()
    assert len(trained) == len(set(trained))
