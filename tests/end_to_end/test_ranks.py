"""A learner of two processes: it trains, and when one of them is killed, both start again from the checkpoint."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from agent_rl.records.audit import audit
from tests.end_to_end.processes import alive, family, finish, process_of_actor, start, steps_trained, wait_for
from tests.end_to_end.topologies import write_half_right

STEPS = 8


def followers(path: Path) -> set[int]:
    """The processes of the other ranks."""
    learner = process_of_actor(path, "learner.0")
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in family(learner) if alive({pid})}
    return {pid for pid, command in commands.items() if b"actors.training.follower" in command}


@pytest.mark.slow
def test_a_killed_rank_ends_all_and_the_run_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    path, directory = write_half_right(tmp_path, steps=STEPS)
    process = start(path, "--set", "actors.learner.ranks=2", "--set", "run.checkpoint_every=2")
    wait_for(lambda: steps_trained(directory) >= 3 or process.poll() is not None, "three steps")
    (other,) = followers(path)
    learner = process_of_actor(path, "learner.0")
    os.kill(other, signal.SIGKILL)
    wait_for(lambda: not alive({learner}), "the end of rank 0")
    wait_for(lambda: steps_trained(directory) >= 5 or process.poll() is not None, "steps after the restart")
    again = followers(path)
    code, out, err = finish(process)
    assert code == 0, out + err
    assert f"rank 1 of the learner (process {other}) was killed by SIGKILL" in out + err
    assert not alive(again | {other})
    balance = audit(directory)
    assert balance.balanced, balance.lines()
    assert (balance.steps, balance.skipped_steps, balance.open) == (STEPS, 0, 0)
    newest = max((directory / "checkpoints").glob("version-*"))
    assert {folder.name for folder in (newest / "training").glob("rank-*")} == {"rank-0", "rank-1"}


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    path, directory = write_half_right(tmp_path, steps=STEPS)
    process = start(path, "--set", "actors.learner.ranks=2")
    wait_for(lambda: steps_trained(directory) >= 3 or process.poll() is not None, "three steps")
    process.send_signal(signal.SIGINT)
    finish(process)
    assert steps_trained(directory) < STEPS
    code, out, err = finish(start(path, "--set", "actors.learner.ranks=1"))
    assert code == 0, out + err
    assert audit(directory).steps == STEPS
