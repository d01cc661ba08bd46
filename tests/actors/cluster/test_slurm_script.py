"""The batch script: what it asks Slurm for, and what it does, with stand-ins for Slurm's commands."""

import os
import shutil
import subprocess
import tomllib

import pytest

from actors.cli.main import main
from agent_rl.config.load import load_topology
from tests.actors.cluster.topology import TOPOLOGY


def render(capsys, *arguments):
    code = main(["render", "slurm", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def options(script):
    lines = [line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH")]
    return dict(line.partition("=")[::2] for line in lines)


def test_the_job_asks_for_a_node_for_each_host_with_what_the_neediest_needs(file, capsys, tmp_path):
    code, script, err = render(capsys, "two.toml", "--time", "2:00:00", "--sbatch", "partition=gpu")
    assert (code, err) == (0, "")
    assert options(script) == {
        "job-name": "two",
        "nodes": "2",
        "ntasks-per-node": "1",
        "cpus-per-task": "5",  # a supervisor, an executor, and a generator of three threads
        "gpus-per-node": "3",  # cuda:1 of two GPUs: the second and the third
        "time": "2:00:00",
        "signal": "B:USR1@120",
        "requeue": "",
        "open-mode": "append",
        "chdir": str(tmp_path),
        "partition": "gpu",
    }
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    _, script, _ = render(capsys, "two.toml", "--gpus", "0", "--processors", "7", "--stop-seconds", "300")
    assert options(script).items() >= {"cpus-per-task": "7", "signal": "B:USR1@300"}.items()
    assert "gpus-per-node" not in options(script)


def test_one_host_needs_no_address_and_no_key(file, capsys):
    hosts = [f"--set=actors.{role}.host=trainer" for role in ("tool_executor", "rollout_generator")]
    _, script, _ = render(capsys, "two.toml", *hosts)
    assert options(script)["nodes"] == "1"
    assert "getent" not in script
    assert "cluster.key" not in script


def test_a_key_of_the_topology_is_used(file, capsys):
    _, script, _ = render(capsys, "two.toml", "--set=security.key_file=mine.key")
    assert "keys" not in script


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
"""


def run_job(tmp_path, capsys, srun, agent_rl="", arguments=(), **scripts):
    """Run the script; ``srun`` stands in for srun."""
    environment = stand_ins(
        tmp_path / "bin",
        **{"srun": srun, "agent_rl": AGENT_RL + agent_rl, "scontrol": SCONTROL, "getent": GETENT, "ip": IP} | scripts,
    )
    _, script, _ = render(capsys, "two.toml", "--command", "agent-rl", "--set=run.seed=5", *arguments)
    (tmp_path / "job.sh").write_text(script)
    return subprocess.run(
        ["bash", "job.sh"], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False
    )


BOTH = """
while [ "$1" != bash ]; do shift; done
SLURMD_NODENAME=n1 "$@" & first=$!
SLURMD_NODENAME=n2 "$@"; second=$?
wait $first; first=$?
exit $((first > second ? first : second))
"""


def test_each_node_runs_its_host_with_addresses_that_the_others_reach(file, capsys, tmp_path):
    done = run_job(tmp_path, capsys, BOTH)
    assert (done.returncode, done.stderr) == (0, "")
    calls = [(tmp_path / f"calls.n{number}").read_text() for number in (1, 2)]
    job = f"{tmp_path}/.agent-rl-job-7/hosts.toml"
    common = f"[run][two.toml][{job}][--set=run.seed=5][--stopped-exit-code=75]"
    assert calls == [f"{common}[--host][trainer]", f"{common}[--host][rollout]"]
    seen = tmp_path / "seen.n2.toml"
    assert tomllib.loads(seen.read_text())["security"] == {"key_file": f"{tmp_path}/.agent-rl-job-7/cluster.key"}
    hosts = load_topology([file, seen]).hosts
    # The batch shell's node knows itself as 127.0.1.1: its address is where it reaches the other node from.
    assert {name: (host.address, host.base_port) for name, host in hosts.items()} == {
        "rollout": ("10.0.0.9", 5700),
        "trainer": ("10.0.0.4", 6100),
    }
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
    file, capsys, tmp_path, signal, code, exit_code, requeued
):
    """``USR1`` comes from Slurm before the end of the time, ``TERM`` with scancel."""
    waits = WAITS.replace("CODE", str(code)).replace("SIGNAL", signal)
    srun = "export PPID_OF_JOB=$PPID; " + BOTH.replace("second=$?", "second=$?; [ $second -ne 0 ] || second=0")
    done = run_job(tmp_path, capsys, srun, waits, scancel="exit 0")
    assert done.returncode == exit_code, done.stderr
    assert (tmp_path / "calls").exists() == requeued


def test_a_run_directory_of_a_node_travels_by_a_shared_folder(file, capsys, tmp_path):
    """The next job finds what the last one left, also when its node has an older state of the run."""
    run, kept = tmp_path / "runs" / "two", tmp_path / "shared" / "two"
    journals = (
        'if [ "$SLURMD_NODENAME" = n1 ]; then mkdir -p runs/two; echo "$SLURM_JOB_ID" >> runs/two/journal.sqlite; fi'
    )
    keep = ["--keep", str(kept)]
    assert run_job(tmp_path, capsys, BOTH, journals, keep).returncode == 0
    assert (kept / "journal.sqlite").read_text() == "7\n"
    shutil.rmtree(run)  # the next job has another node
    assert run_job(tmp_path, capsys, BOTH, journals, keep).returncode == 0
    assert (kept / "journal.sqlite").read_text() == "7\n7\n"
    (run / "journal.sqlite").write_text("older\n")
    os.utime(run / "journal.sqlite", (1000, 1000))
    assert run_job(tmp_path, capsys, BOTH, journals, keep).returncode == 0
    assert (kept / "journal.sqlite").read_text() == "7\n7\n7\n"
    with (run / "journal.sqlite").open("a") as journal:  # a job that was killed copied nothing
        journal.write("newer\n")
    os.utime(run / "journal.sqlite", (4e9, 4e9))
    assert run_job(tmp_path, capsys, BOTH, journals, keep).returncode == 0
    assert (kept / "journal.sqlite").read_text() == "7\n7\n7\nnewer\n7\n"
    assert [path.name for path in kept.parent.iterdir()] == ["two"]


def test_a_host_that_fails_stops_the_job(file, capsys, tmp_path):
    fails = '[ "$SLURMD_NODENAME" = n2 ] && { until [ -e ready ]; do sleep 0.05; done; exit 2; }\n' + WAITS.replace(
        "CODE", "75"
    ).replace('kill -SIGNAL "$PPID_OF_JOB"', "")
    scancel = 'echo "$@" > scancelled; kill -TERM "$PPID_OF_JOB"'
    done = run_job(tmp_path, capsys, "export PPID_OF_JOB=$PPID; " + BOTH, fails, scancel=scancel)
    assert done.returncode == 75
    assert (tmp_path / "scancelled").read_text() == "--batch --signal=TERM 7\n"


def test_a_main_host_that_is_killed_ends_the_other_hosts(file, capsys, tmp_path):
    dies = '[ "$SLURMD_NODENAME" = n2 ] || kill -KILL $$\n'
    done = run_job(tmp_path, capsys, "export SLURM_STEP_ID=0; " + BOTH, dies, scancel='echo "$@" > scancelled')
    assert done.returncode == 137
    assert (tmp_path / "scancelled").read_text() == "--signal=TERM 7.0\n"


def test_a_node_without_an_address_is_named(file, capsys, tmp_path):
    done = run_job(tmp_path, capsys, BOTH, getent="exit 2", ip="exit 1")
    assert done.returncode == 2
    assert "no address is known for the node n2" in done.stderr


def test_another_number_of_nodes_is_refused(file, capsys, tmp_path):
    done = run_job(tmp_path, capsys, BOTH, scontrol='printf "n1\\nn2\\nn3\\n"')
    assert done.returncode == 2
    assert "the job has 3 nodes, and the topology has 2 hosts" in done.stderr


def test_a_name_that_a_script_cannot_hold_is_refused_with_its_line(file, capsys):
    file.write_text(TOPOLOGY.replace("[hosts.rollout]", '[hosts."a b"]').replace('"rollout"', '"a b"'))
    code, out, err = render(capsys, "two.toml")
    assert (code, out) == (2, "")
    assert err == "two.toml:12: hosts.a b: this name cannot stand in a batch script; write letters, digits, _ . -\n"


def test_a_generator_that_reads_weights_from_another_hosts_disk_is_warned_of(file, capsys):
    file.write_text(TOPOLOGY.replace('links.weights = "learner"\n', ""))
    code, _, err = render(capsys, "two.toml")
    assert code == 0
    assert err.startswith("warning: two.toml:24: actors.rollout_generator.links: runs on another host than the learner")
    assert 'give it the link weights = "learner"' in err


def test_an_unknown_class_is_refused(file, capsys):
    code, _, err = render(capsys, "two.toml", "--set=actors.learner.class=nothing:Here")
    assert code == 2
    assert err.startswith("agent-rl: two.toml: ")


def test_the_script_can_be_written_to_a_file(file, capsys, tmp_path):
    code, out, _ = render(capsys, "two.toml", "--out", "job.sh")
    assert (code, out) == (0, "wrote job.sh\n")
    assert (tmp_path / "job.sh").read_text().startswith("#!/bin/bash\n")


def test_no_value_ends_a_quote_or_a_line(file, capsys, tmp_path):
    hostile = "fetch.x=$(touch broken) 'a\n`touch broken`"
    arguments = ["--set", hostile, "--sbatch", "comment=a\ntouch broken", "--time", "1\ntouch broken"]
    done = run_job(tmp_path, capsys, BOTH, arguments=arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"[--set={hostile}]" in (tmp_path / "calls.n1").read_text()
    assert not (tmp_path / "broken").exists()
