"""A learner whose ranks are on two machines: it trains as on one, and whatever happens to one of them, it goes on."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from agent_rl.records.audit import audit
from tests.end_to_end.processes import SECONDS, balanced
from tests.end_to_end.test_ranks import restarts
from tests.end_to_end.topologies import write_micro
from tests.machines import Machine, machines, skip_without
from transport import CurveKeys

STEPS = 3
LIMIT = 3 * SECONDS
"""Two runs start within one test, and one learner twice."""


def write(folder: Path, *, apart: bool) -> tuple[Path, Path]:
    """Supervised steps, then RL, by two ranks: on one host, or on the machines a and b. The file, and what it writes.

    All else is on a. Half of each group counts as right, so that every RL step trains.
    """
    folder.mkdir()
    path, directory = write_micro(folder, steps=STEPS)
    text = path.read_text().replace("steps = 3\nbatch = 4", "steps = 100\nbatch = 4")
    text = text.replace("actors.roc_filter:RoCFilter", "tests.end_to_end.faulty:HalfRight")
    text = text.replace("checkpoint_every = 2", "checkpoint_every = 2\nkeep_checkpoints = 9")
    before, learner = text.split("[actors.learner]")
    if apart:
        hosts = "".join(f'[hosts.{name}]\naddress = "10.77.0.{number}"\n' for number, name in enumerate(("a", "b"), 1))
        CurveKeys.generate().save(folder / "cluster.key")
        before = before.replace('host = "local"', 'host = "a"')
        before += f'{hosts}[security]\nkey_file = "cluster.key"\n\n'
        learner = learner.replace('host = "local"', 'hosts = ["a", "b"]', 1)
    path.write_text(f"{before}[actors.learner]\nranks = 2{learner}")
    return path, directory


@pytest.fixture
def two(tmp_path):
    skip_without()
    with machines(["a", "b"], tmp_path) as found:
        yield found


class Host(NamedTuple):
    """A host of a run."""

    process: subprocess.Popen[bytes]
    output: Path

    def end(self) -> tuple[int, str]:
        """Its exit code, and what it said until its end."""
        return self.process.wait(LIMIT), self.output.read_text()

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition while the host runs."""
        deadline = time.monotonic() + LIMIT
        while not condition():
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() < deadline, f"waited {LIMIT} s for {what}\n{self.output.read_text()}"
            time.sleep(0.1)


def run(machine: Machine, path: Path, *settings: str) -> Host:
    """Start a host of a run; of a run on one host that one, which the file calls local."""
    given = (*settings, "actors.learner.settings.rank_meeting_seconds=300")  # on a busy machine imports take minutes
    words = [word for setting in given for word in ("--set", setting)]
    host = ["--host", machine.name] if f"[hosts.{machine.name}]" in path.read_text() else []
    command = [sys.executable, "-m", "actors.cli", "run", str(path), *host, *words]
    output = path.with_name(f"{machine.name}.txt")
    with output.open("wb") as file:
        return Host(machine.start(*command, stdout=file, stderr=subprocess.STDOUT), output)


def ranks_of(machine: Machine) -> list[int]:
    """The processes of ranks, but for rank 0, that run on a machine."""
    return [pid for pid, command in machine.processes().items() if "learner_ranks." in command]


def trained(directory: Path) -> bytes:
    """The weights at the end of the supervised stage."""
    (saved,) = (directory / "checkpoints").glob("version-000001-stage-01")
    return (saved / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_ranks_on_two_machines_train_as_on_one_also_when_one_is_killed(tmp_path, two):
    alone, its_run = write(tmp_path / "one", apart=False)
    a, b = two
    code, said = run(a, alone).end()
    assert code == 0, said
    path, directory = write(tmp_path / "two", apart=True)
    directory.mkdir()
    b.run("mount", "-t", "tmpfs", "tmpfs", str(directory))  # run directories of their own, and two shared folders
    for folder in ("checkpoints", "weights"):
        (tmp_path / "shared" / folder).mkdir(parents=True)
        for machine in two:
            machine.run("ln", "-s", str(tmp_path / "shared" / folder), str(directory / folder))
    main, other = run(a, path), run(b, path)
    steps = lambda: any((directory / "checkpoints").glob("version-*-step-*"))  # noqa: E731
    main.until(steps, "a checkpoint within the supervised stage")
    (rank,) = ranks_of(b)
    assert not ranks_of(a)
    os.kill(rank, signal.SIGKILL)
    code, said = main.end()
    assert code == 0, said
    (line,) = restarts(said)
    assert f"rank 1 of the learner (learner_ranks.0, process {rank} of host b) has ended" in line
    code, said = other.end()
    assert code == 0, said
    assert "learner_ranks.0 was killed by SIGKILL; starting it again" in said
    assert trained(directory) == trained(its_run)
    balance = balanced(directory)
    assert (balance.steps, balance.skipped_steps, balance.open) == (STEPS, 0, 0)
    assert not ranks_of(b)
    assert not list((tmp_path / "shared").rglob(".ranks-*"))


@pytest.mark.slow
def test_the_learner_waits_for_a_machine_that_is_lost_and_goes_on(tmp_path, two):
    path, directory = write(tmp_path / "two", apart=True)
    a, b = two
    sent = ('actors.learner.settings.weights_in="gloo"', 'actors.rollout_generator.links.transfer="learner"')
    quick = ("actors.learner.settings.rank_silent_seconds=10", *sent)  # and all ranks send policies to the engine
    main, other = run(a, path, *quick), run(b, path, *quick)
    main.until(lambda: any((directory / "checkpoints").glob("version-*")), "a checkpoint")
    (rank,) = ranks_of(b)
    log = directory / "logs" / "supervisor.a.jsonl"
    b.run("ip", "link", "set", "eth0", "down")
    main.until(lambda: "is not heard; start host b" in log.read_text(), "word of the lost host")
    main.until(lambda: rank not in ranks_of(b), "the end of the rank there")
    b.run("ip", "link", "set", "eth0", "up")
    (code, said), (its_code, there) = main.end(), other.end()
    assert code == 0, said
    assert its_code == 0, there
    (line,) = restarts(said)
    assert "of host b) has given no sign of life for rank_silent_seconds (10 s)" in line
    assert "learner.0 waits: rank 1 of the learner (learner_ranks.0 of host b) is not heard; start host b" in said
    assert audit(directory).steps == STEPS


@pytest.mark.slow
def test_a_machine_that_does_not_see_a_shared_folder_stops_the_run(tmp_path, two):
    path, directory = write(tmp_path / "two", apart=True)
    a, b = two
    directory.mkdir()
    b.run("mount", "-t", "tmpfs", "tmpfs", str(directory))
    main, other = run(a, path), run(b, path)
    (code, said), (its_code, there) = main.end(), other.end()
    assert (code, its_code) == (2, 2), said + there
    (line,) = [line for line in said.splitlines() if "stopping the run: " in line]
    assert f"learner.0: host b does not see {directory}/checkpoints of host a: .ranks-" in line
    assert "put it on a file system that their hosts share" in line
    assert "starting it again" not in said
