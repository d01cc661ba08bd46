"""A learner of two ranks: it trains a whole recipe, and whatever happens to one of them, all end and go on."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent_rl.records.checkpoint_files import verify
from tests.end_to_end.processes import Run, alive, wait_for
from tests.end_to_end.topologies import write_half_right

STEPS = 8
EXAMPLES = Path(__file__).parents[2] / "examples"
SHORT = {
    "run.checkpoint_every": 2,
    "actors.learner.ranks": 2,
    "actors.learner.settings.rank_timeout_seconds": 40,  # rank 0 is in touch every 10 s, while it trains too
    "algorithm.groups_per_step": 4,
    "stages.0.steps": 300,
    "stages.1.problems": 20,
    "stages.2.steps": STEPS,
    "stages.3.problems": 20,
}
"""The quickstart's stages, each shorter: about a minute on two free cores."""
RANK = "learner_ranks.0"
"""The actor of rank 1."""
ENDED_SECONDS = 60.0
"""All ranks have ended so long after one of them was stopped, at most."""


def two_ranks(folder: Path, *, steps: int = STEPS, **settings: object) -> tuple[Run, list[str]]:
    """A run with rl alone, and the arguments for two ranks with these learner's settings."""
    given = {"actors.learner.ranks": 2, "run.checkpoint_every": 2}
    given |= {f"actors.learner.settings.{name}": value for name, value in settings.items()}
    return Run(*write_half_right(folder, steps=steps)), [f"{name}={value}" for name, value in given.items()]


def whole(directory: Path) -> Path:
    """The newest checkpoint, after each of its files was read."""
    newest = max((directory / "checkpoints").glob("version-*"))
    verify(newest)
    assert {folder.name for folder in (newest / "training").glob("rank-*")} == {"rank-0", "rank-1"}
    assert not list(directory.rglob(".*.partial"))
    return newest


def restarts(said: str) -> list[str]:
    """The lines that say why the learner is started again."""
    return [line for line in said.splitlines() if "learner.0" in line and "starting it again" in line]


def finished(run: Run, *, killed: bool) -> None:
    """The run ends well, also where rank 1 is killed after three steps: all ranks then end, and start again, once."""
    if killed:
        run.more(3)
        other, learner = run.pid(RANK), run.pid("learner.0")
        os.kill(other, signal.SIGKILL)
        wait_for(lambda: not alive({learner}), "the end of rank 0")
    said = run.finish().all
    assert len(restarts(said)) == int(killed), said
    if killed:
        assert f"{RANK} was killed by SIGKILL; starting it again" in said
        assert f"rank 1 of the learner ({RANK}, process {other}) has ended" in said
    assert run.balanced(steps=STEPS).skipped_steps == 0
    whole(run.directory)


@pytest.mark.slow
def test_two_ranks_train_the_quickstart(tmp_path):
    run = Run(tmp_path / "quickstart.toml", tmp_path / "run")
    shutil.copy(EXAMPLES / "quickstart/arithmetic.py", tmp_path)
    text = (EXAMPLES / "quickstart/quickstart.toml").read_text()
    run.path.write_text(text.replace('"runs/quickstart"', f'"{run.directory}"'))
    finished(run.start(*[f"{name}={value}" for name, value in SHORT.items()]), killed=False)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_two_ranks_send_their_parts_to_the_engine(tmp_path, killed):
    run, arguments = two_ranks(tmp_path, weights_in="gloo")
    finished(run.start(*arguments, "actors.rollout_generator.links.transfer=learner"), killed=killed)
    assert not list(run.directory.glob("weights/*"))
    taken_up = {(row["epoch"], row["version"]) for row in run.logged("rollout_generator.0", "policy taken up")}
    assert len(taken_up) >= STEPS // 2
    assert len({epoch for epoch, _ in taken_up}) == 1 + int(killed)


@pytest.mark.slow
def test_a_rank_that_stands_still_ends_all_and_they_start_again(tmp_path):
    run, arguments = two_ranks(tmp_path, rank_silent_seconds=10)
    run.start(*arguments).more(3)
    other, learner = run.pid(RANK), run.pid("learner.0")
    stopped = time.monotonic()
    os.kill(other, signal.SIGSTOP)
    wait_for(lambda: not alive({learner, other}), "the end of both ranks")
    assert time.monotonic() - stopped < ENDED_SECONDS
    (line,) = restarts(run.finish().all)
    silent = "has given no sign of life for rank_silent_seconds (10 s)"
    assert f"rank 1 of the learner ({RANK}, process {other}) {silent}" in line
    assert "the process is stopped" in line
    assert run.balanced(steps=STEPS).skipped_steps == 0
    whole(run.directory)


@pytest.mark.slow
def test_a_learner_that_is_swapped_and_killed_gets_new_ranks_without_a_word_of_theirs(tmp_path):
    run, arguments = two_ranks(tmp_path, steps=2000)
    run.start(*arguments).more(3)
    before = run.pid(RANK)
    swap = [sys.executable, "-m", "actors.cli", "swap", str(run.directory), "learner", "--set", "logits_mib=64"]
    done = subprocess.run(swap, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    run.more(1)
    between = run.pid(RANK)
    run.signal("learner.0")
    wait_for(lambda: not alive({between}), "the end of the other rank")
    said = run.more(1).interrupt().all
    assert len({before, between}) == 2
    assert len(restarts(said)) == 1
    assert f"{RANK} " not in "".join(line for line in said.splitlines() if "starting it again" in line)
    trained = run.trained
    run.to_end(*arguments, f"stages.0.steps={trained + 1}")
    assert run.balanced(steps=trained + 1).skipped_steps == 0


@pytest.mark.slow
def test_a_full_disk_of_one_rank_stops_the_run_with_one_message(tmp_path):
    run, arguments = two_ranks(tmp_path, steps=400)
    run.start(*arguments).wait(lambda: any((run.directory / "checkpoints").glob("version-*")), "a checkpoint")
    other = run.pid(RANK)
    resource.prlimit(other, resource.RLIMIT_FSIZE, (1000, 1000))  # as a quota's end
    said = run.finish(2).all
    (line,) = [line for line in said.splitlines() if "stopping the run: " in line]
    assert "cannot be written: File too large; make room on its disk, then run again" in line
    assert "starting it again" not in said
    assert not alive({other})
    trained = run.trained
    whole(run.directory)
    run.to_end(*arguments, f"stages.0.steps={trained + 3}")
    run.balanced(steps=trained + 3)


@pytest.mark.slow
def test_ranks_that_do_not_meet_in_time_stop_the_run_with_one_message(tmp_path):
    run, arguments = two_ranks(tmp_path, rank_meeting_seconds=0.2)
    said = run.to_end(*arguments, "actors.learner.restarts=0", code=1).all
    (line,) = [line for line in said.splitlines() if "it said: " in line]
    assert "RanksApartError: rank 1 of the learner did not reach rank 0 at 127.0.0.1:" in line


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_ranks(tmp_path):
    run = Run(*write_half_right(tmp_path, steps=STEPS))
    run.start("actors.learner.ranks=2").more(3).interrupt()
    assert run.trained < STEPS
    run.to_end("actors.learner.ranks=1")
    run.balanced(steps=STEPS)
