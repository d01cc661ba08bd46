"""The learner's process is killed at random moments and while it writes checkpoints: it ends with the bits of one that
never was.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from actors.weights.files import model_directory
from actors.weights.settings import LearnerSettings
from agent_rl.config.load import load_topology
from agent_rl.learning.trainer import Trainer
from agent_rl.records.checkpoint_files import Position
from tests.end_to_end.faulty import groups_given
from tests.end_to_end.processes import (
    SECONDS,
    Traces,
    alive,
    balanced,
    check_trained_once,
    finish,
    journal_of,
    process_of_actor,
    start,
    steps_trained,
    wait_for,
)
from tests.end_to_end.topologies import write_half_right

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


def partial_checkpoints(directory: Path) -> list[Path]:
    return list((directory / "checkpoints").glob(".*.partial"))


def kill_after_a_step(path: Path, directory: Path, process: subprocess.Popen[str], seconds: float | None) -> bool:
    """Kill the learner so long after its next step, or (None) while it writes a checkpoint; whether one was half
    written.
    """
    seen = steps_trained(directory)
    wait_for(lambda: steps_trained(directory) > seen or process.poll() is not None, "a step")
    learner = process_of_actor(path, "learner.0")
    if seconds is None:
        deadline = time.monotonic() + SECONDS
        while not partial_checkpoints(directory) and time.monotonic() < deadline:
            time.sleep(0.0002)
    else:
        time.sleep(seconds)
    os.kill(learner, signal.SIGKILL)
    wait_for(lambda: not alive({learner}), "the learner's end")
    return bool(partial_checkpoints(directory))


def never_killed(path: Path, directory: Path, saved: Path) -> None:
    """Train what the run's learner was given, from its first weights, in one go; save it as a checkpoint."""
    topology = load_topology(path)
    settings = LearnerSettings()
    (stage,) = topology.stages
    trainer = Trainer(
        model_directory(topology, directory),
        dtype=topology.model.dtype,
        device=settings.device,
        algorithm=topology.algorithm,
        threads=1,
        seed=topology.run.seed,
    )
    for version, groups in groups_given(directory).items():
        trainer.rl_step(groups, stage, version)
    trainer.save(saved, Position(1, STEPS, STEPS), {})


@pytest.mark.slow
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("seed", range(2))
def test_killed_anywhere_the_learner_ends_with_the_bits_of_one_that_never_was(
    tmp_path: Path, temporary: Path, seed: int
) -> None:
    draw = random.Random(seed)
    recording = "tests.end_to_end.faulty:RecordingLearner"
    path, directory = write_half_right(tmp_path, steps=STEPS, learner=recording)
    traces = Traces(path, temporary)
    process = start(path, "actors.learner.restarts=99", TMPDIR=str(temporary))
    moments = [draw.uniform(0, LONGEST_WAIT) for _ in range(RANDOM_KILLS)] + [None] * CHECKPOINT_KILLS
    draw.shuffle(moments)
    half_written = [kill_after_a_step(path, directory, process, seconds) for seconds in moments]
    traces.look(process)
    said = finish(process)
    assert (said.all).count("learner.0 was killed by SIGKILL; starting it again") == len(moments)
    assert any(half_written), "no kill found a checkpoint half written"
    assert partial_checkpoints(directory) == []
    assert balanced(directory, steps=STEPS).skipped_steps == 0
    traces.assert_none()

    given = groups_given(directory)
    with journal_of(directory) as journal:
        trained = [tuple(step.groups) for step in journal.steps()]
    assert trained == [tuple(group.group for group in groups) for groups in given.values()]
    assert len(check_trained_once(directory)) == 2 * STEPS

    never_killed(path, directory, tmp_path / "whole")
    last = max((directory / "checkpoints").glob("version-*"))
    for name in ("model.safetensors", "training/rank-0/optimizer.safetensors"):
        assert (last / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
