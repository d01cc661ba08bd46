"""The batch script to copy: what it asks Slurm for, and what it does, with stand-ins for Slurm's commands."""

import os
import shutil
import subprocess
import tomllib

import pytest

from agent_rl.config.load import load_topology
from agent_rl.config.placement import most_gpus
from tests.examples.cluster_files import SLURM, slurm_script, topology_texts


@pytest.fixture
def file(tmp_path):
    """The topology as ``run.toml`` of the folder of the job."""
    path = tmp_path / "run.toml"
    path.write_text(topology_texts()["run.toml"])
    return path


def test_the_job_asks_for_a_node_for_each_host_with_what_the_neediest_needs(file):
    lines = [line.removeprefix("#SBATCH --") for line in SLURM.splitlines() if line.startswith("#SBATCH")]
    options = dict(line.partition("=")[::2] for line in lines)
    assert options == {
        "job-name": "mine",
        "nodes": "2",
        "ntasks-per-node": "1",
        "cpus-per-task": "4",  # a supervisor and three actors
        "gpus-per-node": "2",
        "time": "24:00:00",
        "signal": "B:USR1@120",
        "requeue": "",
        "open-mode": "append",
        "chdir": "/shared/mine",
        "partition": "gpu",
    }
    topology = load_topology(file)
    assert topology.main_host == "trainer"
    assert f"\nhosts=({topology.main_host} rollout)\n" in SLURM
    assert set(topology.hosts_in_use) == {"trainer", "rollout"}
    assert max(most_gpus(topology, host) for host in topology.hosts_in_use) == 2
    assert subprocess.run(["bash", "-n"], input=SLURM, text=True, check=False).returncode == 0


def stand_ins(folder, **scripts):
    """A PATH of commands in place of Slurm's."""
    folder.mkdir(exist_ok=True)
    for name, text in scripts.items():
        (folder / name.replace("_", "-")).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name.replace("_", "-")).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_ID": "7"}


SCONTROL = '[ "$2" = hostnames ] && printf "n1\\nn2\\n"; [ "$1" != requeue ] || echo "requeue $2" >> calls'
GETENT = '[ "$2" = n1 ] && echo "127.0.1.1 STREAM n1" || echo "10.0.0.9 STREAM n2"'
IP = '[ "$3" = 10.0.0.9 ] && echo "10.0.0.9 dev eth0 src 10.0.0.4 uid 0"'
AGENT_RL = """
if [ "$1" = keys ]; then umask 077; echo key > "$2"; exit; fi
for word in "$@"; do printf '[%s]' "$word"; done >> "calls.$SLURMD_NODENAME"
cp "$3" "seen.$SLURMD_NODENAME.toml"; stat -c %a "$(dirname "$3")/cluster.key" > mode
mkdir -p run
"""


def run_job(tmp_path, srun, agent_rl="", **scripts):
    """Run the script; ``srun`` stands in for srun."""
    environment = stand_ins(
        tmp_path / "bin",
        **{"srun": srun, "agent_rl": AGENT_RL + agent_rl, "scontrol": SCONTROL, "getent": GETENT, "ip": IP} | scripts,
    )
    script = slurm_script(tmp_path, "agent-rl")
    return subprocess.run(
        ["bash", script], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False
    )


BOTH = """
while [ "$1" != bash ]; do shift; done
SLURMD_NODENAME=n1 "$@" & first=$!
SLURMD_NODENAME=n2 "$@"; second=$?
wait $first; first=$?
exit $((first > second ? first : second))
"""


def test_each_node_runs_its_host_with_addresses_that_the_others_reach(file, tmp_path):
    done = run_job(tmp_path, BOTH)
    assert (done.returncode, done.stderr) == (0, "")
    calls = [(tmp_path / f"calls.n{number}").read_text() for number in (1, 2)]
    job = f"{tmp_path}/.agent-rl-job-7/hosts.toml"
    common = f"[run][run.toml][{job}][--set=run.directory={tmp_path}/run][--stopped-exit-code=75]"
    assert calls == [f"{common}[--host][trainer]", f"{common}[--host][rollout]"]
    seen = tmp_path / "seen.n2.toml"
    assert tomllib.loads(seen.read_text())["security"] == {"key_file": f"{tmp_path}/.agent-rl-job-7/cluster.key"}
    hosts = load_topology([file, seen]).hosts
    # The batch shell's node knows itself as 127.0.1.1: its address is where it reaches the other node from.
    assert {name: host.address for name, host in hosts.items()} == {"rollout": "10.0.0.9", "trainer": "10.0.0.4"}
    assert (tmp_path / "mode").read_text() == "600\n"
    assert not (tmp_path / ".agent-rl-job-7").exists()
    assert not (tmp_path / "calls").exists()


WAITS = """
if [ "$SLURMD_NODENAME" = n1 ]; then
    trap 'exit CODE' TERM
    touch ready
    kill -SIGNAL "$PPID_OF_JOB"
    sleep 20 > /dev/null 2>&1 & wait
fi
"""


@pytest.mark.parametrize(
    ("signal", "code", "exit_code", "requeued"),
    [("USR1", 75, 0, True), ("TERM", 75, 75, False), ("USR1", 0, 0, False), ("USR1", 2, 2, False)],
)
def test_a_run_that_was_stopped_at_the_end_of_the_time_is_requeued_and_no_other(
    tmp_path, signal, code, exit_code, requeued
):
    """``USR1`` comes from Slurm before the end of the time, ``TERM`` with scancel."""
    waits = WAITS.replace("CODE", str(code)).replace("SIGNAL", signal)
    srun = "export PPID_OF_JOB=$PPID; " + BOTH.replace("second=$?", "second=$?; [ $second -ne 0 ] || second=0")
    done = run_job(tmp_path, srun, waits, scancel="exit 0")
    assert done.returncode == exit_code, done.stderr
    assert (tmp_path / "calls").exists() == requeued


def test_a_run_directory_of_a_node_travels_by_a_shared_folder(tmp_path):
    """The next job finds what the last one left, also when its node has an older state of the run."""
    run, kept = tmp_path / "run", tmp_path / "kept"
    journals = 'if [ "$SLURMD_NODENAME" = n1 ]; then echo "$SLURM_JOB_ID" >> run/journal.sqlite; fi'
    assert run_job(tmp_path, BOTH, journals).returncode == 0
    assert (kept / "journal.sqlite").read_text() == "7\n"
    shutil.rmtree(run)  # the next job has another node
    assert run_job(tmp_path, BOTH, journals).returncode == 0
    assert (kept / "journal.sqlite").read_text() == "7\n7\n"
    (run / "journal.sqlite").write_text("older\n")
    os.utime(run / "journal.sqlite", (1000, 1000))
    assert run_job(tmp_path, BOTH, journals).returncode == 0
    assert (kept / "journal.sqlite").read_text() == "7\n7\n7\n"
    with (run / "journal.sqlite").open("a") as journal:  # a job that was killed copied nothing
        journal.write("newer\n")
    os.utime(run / "journal.sqlite", (4e9, 4e9))
    assert run_job(tmp_path, BOTH, journals).returncode == 0
    assert (kept / "journal.sqlite").read_text() == "7\n7\n7\nnewer\n7\n"
    assert [path.name for path in tmp_path.glob("kept*")] == ["kept"]


def test_a_host_that_fails_stops_the_job(tmp_path):
    fails = '[ "$SLURMD_NODENAME" = n2 ] && { until [ -e ready ]; do sleep 0.05; done; exit 2; }\n' + WAITS.replace(
        "CODE", "75"
    ).replace('kill -SIGNAL "$PPID_OF_JOB"', "")
    scancel = 'echo "$@" > scancelled; kill -TERM "$PPID_OF_JOB"'
    done = run_job(tmp_path, "export PPID_OF_JOB=$PPID; " + BOTH, fails, scancel=scancel)
    assert done.returncode == 75
    assert (tmp_path / "scancelled").read_text() == "--batch --signal=TERM 7\n"


def test_a_main_host_that_is_killed_ends_the_other_hosts(tmp_path):
    dies = '[ "$SLURMD_NODENAME" = n2 ] || kill -KILL $$\n'
    done = run_job(tmp_path, "export SLURM_STEP_ID=0; " + BOTH, dies, scancel='echo "$@" > scancelled')
    assert done.returncode == 137
    assert (tmp_path / "scancelled").read_text() == "--signal=TERM 7.0\n"


def test_a_node_without_an_address_is_named(tmp_path):
    done = run_job(tmp_path, BOTH, getent="exit 2", ip="exit 1")
    assert done.returncode == 2
    assert "no address is known for the node n2" in done.stderr


def test_another_number_of_nodes_is_refused(tmp_path):
    done = run_job(tmp_path, BOTH, scontrol='printf "n1\\nn2\\nn3\\n"')
    assert done.returncode == 2
    assert "the job has 3 nodes, and the topology has 2 hosts; write --nodes=2" in done.stderr
