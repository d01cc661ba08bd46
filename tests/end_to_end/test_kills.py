"""An actor, or the supervisor, is killed in the middle of a run: it goes on, no group is lost or trained twice, nothing
is left. A learner that is killed at random moments, or while it writes checkpoints, ends with the bits of one that never
was.
"""

import os
import random
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from actors.roc_filter.replay import decode_stored
from actors.weights.files import model_directory
from actors.weights.settings import LearnerSettings
from agent_rl.config.addresses import run_digest
from agent_rl.config.load import load_topology
from agent_rl.learning.trainer import Trainer
from agent_rl.records.checkpoint_files import Position
from tests.end_to_end.faulty import groups_given
from tests.end_to_end.processes import CALLS_TOOLS, ROOM, SECONDS, Run, Traces, alive, children_named, wait_for
from tests.end_to_end.topologies import write_half_right, write_micro


@pytest.mark.slow
@pytest.mark.parametrize(
    ("role", "weights_in"),
    [
        ("learner", "gloo"),
        ("learner", "shared_memory"),
        ("rollout_generator", "run_directory"),
        ("rollout_generator", "gloo"),
    ],
)
def test_killed_with_a_sandbox_an_actor_is_started_again_the_run_balances_and_nothing_is_left(
    tmp_path, temporary, role, weights_in
):
    """The executor and its interpreters are killed with the actor, at once: none of them can remove its directory."""
    run = Run(*write_micro(tmp_path, steps=12), TMPDIR=str(temporary))
    traces = Traces(run, temporary)
    ways = [f"actors.learner.settings.weights_in={weights_in}"]
    # Without namespaces calls have directories on disk; with them there is nothing to leave.
    ways += ["actors.tool_executor.settings.isolation=limits"]
    if weights_in == "gloo":
        ways += ["actors.rollout_generator.links.transfer=learner"]
    run.start(*ways).until(2)
    traces.look()
    published = Path("/dev/shm") / f"agent-rl.published-{os.getuid()}-{run_digest(load_topology(run.path))}"
    assert published.is_dir() == (weights_in == "shared_memory")
    assert (run.directory / "weights").is_dir() == (weights_in == "run_directory")
    assert [folder for folder in temporary.iterdir() if "sandbox" in folder.name]
    run.signal(f"{role}.0")
    executor = run.pid("tool_executor.0")
    for pid in (executor, *children_named(executor, "actors.sandbox")):
        with suppress(ProcessLookupError):  # the interpreters are to end with the executor: one may have been quick
            os.kill(pid, signal.SIGKILL)
    said = run.finish()
    for killed in (role, "tool_executor"):
        assert f"{killed}.0 was killed by SIGKILL; starting it again" in said.all
        assert re.search(rf"{killed}\.0 runs again, \d+\.\d s after it ended", said.out)
    run.finished(said, steps=12)
    run.trained_once()
    assert not published.exists()
    traces.assert_none()


@pytest.mark.slow
def test_of_two_executors_one_is_killed_and_no_call_is_lost(tmp_path, temporary):
    """Every rollout has a call under way most of its time, so that some are under way at the one that is killed."""
    run = Run(*write_half_right(tmp_path, steps=8, generator=CALLS_TOOLS), TMPDIR=str(temporary))
    traces = Traces(run, temporary)
    run.start("actors.tool_executor.replicas=2", *ROOM).until(2)
    traces.look()
    run.signal("tool_executor.1")
    assert "tool_executor.1 was killed by SIGKILL; starting it again" in run.finish().all
    steps = run.told("step")
    assert len(steps) == 8
    assert all(row["rollouts_failed"] == row["tool_error_share"] == 0 for row in steps)
    groups = run.trained_once()
    with run.journal() as journal:
        stored = [decode_stored(each.payload) for group in groups for each in journal.trajectories(group)]
    assert stored
    assert all([call.outcome for call in each.transcript.calls] == ["success"] for each in stored)
    traces.assert_none()


STEPS = 60
RANDOM_KILLS, CHECKPOINT_KILLS = 3, 2
LONGEST_WAIT = 0.6
"""Seconds after a step, about two steps: a kill comes anywhere in them."""


@pytest.fixture
def threads() -> Iterator[None]:
    """The trainer sets them for the whole process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def partial_checkpoints(run: Run) -> list[Path]:
    return list((run.directory / "checkpoints").glob(".*.partial"))


def kill_after_a_step(run: Run, seconds: float | None) -> bool:
    """Kill the learner so long after its next step, or (None) while it writes a checkpoint; whether one was half
    written.
    """
    run.more(1)
    learner = run.pid("learner.0")
    if seconds is None:
        deadline = time.monotonic() + SECONDS
        while not partial_checkpoints(run) and time.monotonic() < deadline:
            time.sleep(0.0002)
    else:
        time.sleep(seconds)
    os.kill(learner, signal.SIGKILL)
    wait_for(lambda: not alive({learner}), "the learner's end")
    return bool(partial_checkpoints(run))


def never_killed(run: Run, saved: Path) -> None:
    """Train what the run's learner was given, from its first weights, in one go; save it as a checkpoint."""
    topology = load_topology(run.path)
    (stage,) = topology.stages
    trainer = Trainer(
        model_directory(topology, run.directory),
        dtype=topology.model.dtype,
        device=LearnerSettings().device,
        algorithm=topology.algorithm,
        threads=1,
        seed=topology.run.seed,
    )
    for version, groups in groups_given(run.directory).items():
        trainer.rl_step(groups, stage, version)
    trainer.save(saved, Position(1, STEPS, STEPS), {})


@pytest.mark.slow
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("seed", range(2))
def test_killed_anywhere_the_learner_ends_with_the_bits_of_one_that_never_was(tmp_path, temporary, seed):
    draw = random.Random(seed)
    recording = "tests.end_to_end.faulty:RecordingLearner"
    run = Run(*write_half_right(tmp_path, steps=STEPS, learner=recording), TMPDIR=str(temporary))
    traces = Traces(run, temporary)
    run.start("actors.learner.restarts=99")
    moments = [draw.uniform(0, LONGEST_WAIT) for _ in range(RANDOM_KILLS)] + [None] * CHECKPOINT_KILLS
    draw.shuffle(moments)
    half_written = [kill_after_a_step(run, seconds) for seconds in moments]
    traces.look()
    said = run.finish()
    assert said.all.count("learner.0 was killed by SIGKILL; starting it again") == len(moments)
    assert any(half_written), "no kill found a checkpoint half written"
    assert partial_checkpoints(run) == []
    assert run.balanced(steps=STEPS).skipped_steps == 0
    traces.assert_none()

    given = groups_given(run.directory)
    with run.journal() as journal:
        trained = [tuple(step.groups) for step in journal.steps()]
    assert trained == [tuple(group.group for group in groups) for groups in given.values()]
    assert len(run.trained_once()) == 2 * STEPS

    never_killed(run, tmp_path / "whole")
    last = max((run.directory / "checkpoints").glob("version-*"))
    for name in ("model.safetensors", "training/rank-0/optimizer.safetensors"):
        assert (last / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


SUPERVISED_STEPS, KILLS = 1500, 4
LAST = "version-000001-stage-01"
LONGEST = 2.5
"""Seconds of training before the next kill, at most."""


def supervised_alone(folder: Path) -> Run:
    """A run whose only stage is a supervised one."""
    folder.mkdir()
    path, directory = write_micro(folder)
    before, stages = path.read_text().split("[[stages]]", 1)
    stage = f'[[stages]]\nkind = "sft"\nsteps = {SUPERVISED_STEPS}\nbatch = 8\n\n'
    path.write_text(before + stage + stages[stages.index("[actors.") :])
    return Run(path, directory)


@pytest.mark.slow
def test_a_supervised_stage_goes_on_whenever_its_learner_is_killed_and_ends_with_the_same_bits(tmp_path):
    draw = random.Random(0)
    run = supervised_alone(tmp_path / "killed").start("actors.learner.restarts=99", "run.checkpoint_seconds=0.5")
    for kill in range(KILLS):
        run.wait(lambda seen=kill: len(run.logged("learner.0", "stage")) > seen, "the stage")
        time.sleep(draw.uniform(0.7, LONGEST))
        assert run.process.poll() is None, "the stage is too short for this test"
        run.signal("learner.0")
    run.finish()
    went_on = [row["step"] for row in run.logged("learner.0", "stage")]
    assert len(went_on) == KILLS + 1
    assert went_on == sorted(went_on)
    assert went_on[-1] > 0
    untouched = supervised_alone(tmp_path / "whole")
    summary = untouched.to_end().summary
    checkpoints, expected = (each.directory / "checkpoints" for each in (run, untouched))
    assert (summary["sft_steps"], summary["checkpoint"]) == (SUPERVISED_STEPS, str(expected / LAST))
    report = untouched.text("report.html")
    assert "Supervised training in" in report
    assert "Supervised loss, stage sft" in report
    for name in ("model.safetensors", "training/rank-0/rng.safetensors"):
        assert (checkpoints / LAST / name).read_bytes() == (expected / LAST / name).read_bytes(), name
    assert [path.name for path in checkpoints.iterdir()] == [LAST]
