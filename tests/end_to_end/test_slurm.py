"""The batch script to copy on a real Slurm: slurmctld and two slurmd, each on a machine of its own (namespaces)."""

import contextlib
import os
import shlex
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from actors.cluster.places import own_command
from tests.end_to_end.processes import balanced, steps_trained, wait_for
from tests.end_to_end.topologies import MICRO
from tests.examples.cluster_files import slurm_script
from tests.machines import Machine, machines, skip_without

CONFIGURATION = """\
ClusterName=test
SlurmctldHost=ctl
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
SlurmdParameters=config_overrides
MpiDefault=none
SchedulerParameters=batch_sched_delay=1,sched_interval=1
KillWait=10
MessageTimeout=60
ReturnToService=2
NodeName=n1 CPUs=8 RealMemory=100 Gres=gpu:4 State=UNKNOWN
NodeName=n2 CPUs=8 RealMemory=100 Gres=gpu:4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """A cluster of two nodes."""

    def __init__(self, folder: Path, control: Machine, nodes: list[Machine]) -> None:
        self.nodes = nodes
        self._control = control
        self._folder = folder
        self._environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}

    def start(self) -> None:
        configuration = CONFIGURATION.format(folder=self._folder)
        (self._folder / "slurm.conf").write_text(configuration)
        (self._folder / "gres.conf").write_text(f"Name=gpu File={self._folder}/gpu[0-3]\n")
        for number in range(4):
            (self._folder / f"gpu{number}").touch()
        (self._folder / "state").mkdir()
        key = self._folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        places = [
            f"--{name}={self._folder}/munge.{name.removesuffix('-file')}"
            for name in ("key-file", "pid-file", "seed-file", "log-file", "socket")
        ]
        self._serve(self._control, "/usr/sbin/munged", "--foreground", "--force", *places)
        wait_for((self._folder / "munge.socket").exists, "munged")
        self._serve(self._control, "/usr/sbin/slurmctld", "-D")
        for node in self.nodes:
            self._serve(node, "/usr/sbin/slurmd", "-D")
        wait_for(lambda: self.ask("sinfo", "-h", "-t", "idle", "-o", "%D") == "2", "two idle nodes")

    def _serve(self, machine: Machine, *words: str) -> None:
        log = (self._folder / "daemons.log").open("ab")
        with log:
            machine.start(*words, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def ask(self, *words: str) -> str:
        """The output of a command of Slurm's."""
        return self._control.run(*words, env=self._environment, check=False).stdout.strip()

    def submit(self, script: Path, *options: str) -> str:
        done = self._control.run("sbatch", "--parsable", *options, str(script), env=self._environment)
        return done.stdout.strip()

    def job(self, number: str) -> dict[str, str]:
        """What Slurm knows of a job."""
        return dict(part.partition("=")[::2] for part in self.ask("scontrol", "-o", "show", "job", number).split(" "))


@pytest.fixture
def slurm():
    skip_without("munged", "slurmctld", "slurmd", "sbatch")
    with tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o755)
        control, *nodes = stack.enter_context(machines(["ctl", "n1", "n2"], folder))
        cluster = Slurm(folder, control, nodes)
        cluster.start()
        yield cluster


def write_topology(folder: Path, steps: int) -> Path:
    """Two hosts without addresses or a key; its run directory."""
    directory = folder / "run"
    hosts = "[hosts.a]\n[hosts.b]\n"
    (folder / "run.toml").write_text(MICRO.format(directory=directory, steps=steps, hosts=hosts, a="a", b="b"))
    return directory


@pytest.mark.slow
def test_a_job_that_is_stopped_or_killed_goes_on_when_it_is_requeued(slurm, tmp_path):
    directory = write_topology(tmp_path, steps=14)
    script = slurm_script(tmp_path, shlex.join(own_command()), "a b")
    number = slurm.submit(script, "--partition=all", "--output=job.log")
    log = tmp_path / "job.log"
    try:
        wait_for(lambda: steps_trained(directory) >= 2, "two steps")
        assert slurm.job(number)["NumNodes"] == "2"
        key = next(tmp_path.glob(".agent-rl-job-*/cluster.key"))
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
        assert all(any("agent-rl" in command for command in node.processes().values()) for node in slurm.nodes)
        slurm.ask("scancel", "--batch", "--signal=USR1", number)  # as Slurm does before the end of the time
        wait_for(lambda: slurm.job(number)["Restarts"] == "1", "the job to be requeued")
        stopped_at = steps_trained(directory)
        assert 2 <= stopped_at < 14
        balanced(directory)
        wait_for(lambda: steps_trained(directory) >= stopped_at + 2, "two more steps")
        slurm.ask("scontrol", "requeue", number)  # as a preemption without a grace time
        wait_for(lambda: slurm.job(number)["Restarts"] == "2", "the job to be requeued again")
        wait_for(lambda: slurm.job(number)["JobState"] == "COMPLETED", "the job to complete")
    except BaseException:
        sys.stdout.write(log.read_text() if log.exists() else "the job has no log\n")
        raise
    assert slurm.job(number)["ExitCode"] == "0:0", log.read_text()
    assert steps_trained(directory) >= 14
    balanced(directory)
    assert list(tmp_path.glob(".agent-rl-job-*")) == []
    for node in slurm.nodes:
        wait_for(
            lambda node=node: not [c for c in node.processes().values() if "slurmd" not in c], "nothing to be left"
        )
