"""``agent-rl up`` over a real sshd, on machines of their own (namespaces)."""

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.processes import SECONDS, balanced, steps_trained, wait_for
from tests.end_to_end.topologies import MICRO
from tests.machines import Machine, machines, skip_without
from transport import CurveKeys

SSHD = """\
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
PidFile none
"""
SSH = """\
IdentityFile {folder}/key
IdentitiesOnly yes
UserKnownHostsFile {folder}/known_hosts
LogLevel ERROR
"""


class Cluster:
    """Two machines: ``trainer``, on which ``up`` is called, and ``rollout``, with a working directory of its own."""

    def __init__(self, folder: Path, trainer: Machine, rollout: Machine) -> None:
        self.trainer, self.rollout = trainer, rollout
        self.here, self.there = folder / "here", folder / "there"
        self._ssh = folder / "ssh"
        for path in (self.here, self._ssh):
            path.mkdir()
        for name in ("key", "host_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self._ssh / name], check=True)
        host_key = (self._ssh / "host_key.pub").read_text()
        (self._ssh / "known_hosts").write_text(f"{rollout.address} {host_key}")
        (self._ssh / "config").write_text(SSH.format(folder=self._ssh))
        (self._ssh / "sshd").write_text(SSHD.format(folder=self._ssh))

    def serve(self) -> None:
        """Start sshd on the other machine."""
        Path("/run/sshd").mkdir(exist_ok=True)
        log = self._ssh / "log"
        with log.open("wb") as file:
            self.rollout.start("/usr/sbin/sshd", "-D", "-e", "-f", str(self._ssh / "sshd"), stderr=file)
        wait_for(lambda: "Server listening" in log.read_text(), "sshd")

    def write(self, steps: int) -> Path:
        """Write the topology; the run directory."""
        CurveKeys.generate().save(self.here / "cluster.key")
        hosts = f'[hosts.a]\naddress = "{self.trainer.address}"\n[hosts.b]\naddress = "{self.rollout.address}"\n'
        hosts += '[security]\nkey_file = "cluster.key"\n'
        text = MICRO.format(directory="run", steps=steps, hosts=hosts, a="a", b="b")
        text = text.replace('turns = "tool_executor", load', 'turns = "tool_executor", weights = "learner", load')
        (self.here / "two.toml").write_text(text)
        return self.here / "run"

    def up(self) -> subprocess.Popen[str]:
        """Call ``up``."""
        return self.call("up", "two.toml", "--workdir", str(self.there))

    def call(self, *words: str) -> subprocess.Popen[str]:
        """Call ``agent-rl`` with these words, and how to reach the other machine."""
        ssh = f"ssh -F {self._ssh}/config"
        command = self.trainer.command(sys.executable, "-m", "actors.cli", *words, "--ssh", ssh)
        pipe = subprocess.PIPE
        # The working directory is taken up after the namespaces are entered.
        command = [word.replace(f"--wdns={Path.cwd()}", f"--wdns={self.here}") for word in command]
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)

    def assert_nothing_left(self) -> None:
        """Both machines run what they ran before."""
        for machine in (self.trainer, self.rollout):
            wait_for(lambda machine=machine: not ours(machine), f"nothing to be left: {ours(machine)}")


def ours(machine: Machine) -> list[str]:
    return [command for command in machine.processes().values() if "sshd" not in command]


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=SECONDS)
    return process.returncode, out, err


@pytest.fixture
def cluster(tmp_path):
    skip_without("sshd", "ssh", "ssh-keygen")
    with contextlib.ExitStack() as stack:
        yield Cluster(tmp_path, *stack.enter_context(machines(["trainer", "rollout"], tmp_path)))


@pytest.mark.slow
def test_all_hosts_start_stop_and_finish_together(cluster):
    cluster.serve()
    directory = cluster.write(steps=12)
    process = cluster.up()
    wait_for(lambda: steps_trained(directory) >= 2 or process.poll() is not None, "two steps")
    assert len(ours(cluster.trainer)) >= 5
    assert len(ours(cluster.rollout)) >= 4
    os.kill(process.pid, signal.SIGINT)
    code, out, err = finish(process)
    assert code == 0, out + err
    assert "stopped; continue with: agent-rl up two.toml" in out
    assert "b: the learner's host ends the run" in out + err
    cluster.assert_nothing_left()
    balanced(directory)
    key = cluster.there / "cluster.key"
    assert key.read_text() == (cluster.here / "cluster.key").read_text()
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert (cluster.there / "two.toml").read_text() == (cluster.here / "two.toml").read_text()

    stopped_at = steps_trained(directory)
    code, out, err = finish(cluster.up())
    assert code == 0, out + err
    assert steps_trained(directory) == 12 > stopped_at
    balanced(directory)
    assert "summary" in out
    assert out.count("summary") == 1
    cluster.assert_nothing_left()


@pytest.mark.slow
def test_no_host_outlives_the_process_that_started_it(cluster):
    cluster.serve()
    cluster.write(steps=400)
    process = cluster.up()
    for machine, actor in ((cluster.trainer, "learner.0"), (cluster.rollout, "tool_executor.0")):
        wait_for(
            lambda m=machine, a=actor: any(a in command for command in ours(m)) or process.poll() is not None, actor
        )
    os.kill(process.pid, signal.SIGKILL)
    finish(process)
    cluster.assert_nothing_left()


@pytest.mark.slow
def test_throughput_is_measured_over_ssh(cluster):
    cluster.serve()
    cluster.write(steps=400)
    process = cluster.call("bench", "throughput", "two.toml", "--seconds", "5", "--set", "stages.1.problems=1")
    code, out, err = finish(process)
    assert code == 0, out + err
    figures = json.loads(out.strip().splitlines()[-1])
    assert figures["limited_by"] in out
    assert figures["rollouts_per_s"] > 0
    assert figures["busy_rollout_generator.0"] > 0  # on the other machine
    cluster.assert_nothing_left()
