"""The files to copy for a cluster: the batch script, what it asks Slurm for and what it does, with stand-ins for Slurm's
commands; the manifests, what Kubernetes is asked for, and what the pods run.
"""

import os
import shutil
import stat
import subprocess
import tomllib

import pytest

from agent_rl.config.load import load_topology
from agent_rl.config.placement import most_gpus
from tests.examples.cluster_files import SLURM, manifests, slurm_script, topology_texts


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


# Kubernetes -----------------------------------------------------------------------------------------------------------

HOSTS = ("trainer", "rollout")


def pod(host):
    return manifests()["Job", f"mine-{host}"]["spec"]["template"]["spec"]


def container(host):
    [found] = pod(host)["containers"]
    return found


def test_each_host_is_a_job_that_the_others_find_by_name():
    found = manifests()
    assert set(found) == {
        ("ConfigMap", "mine-topology"),
        ("Service", "mine"),
        ("PersistentVolumeClaim", "mine-run"),
        ("Job", "mine-trainer"),
        ("Job", "mine-rollout"),
    }
    assert {manifest["metadata"]["namespace"] for manifest in found.values()} == {"default"}
    service = found["Service", "mine"]["spec"]
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"] is True
    for host in HOSTS:
        template = found["Job", f"mine-{host}"]["spec"]["template"]
        assert service["selector"].items() <= template["metadata"]["labels"].items()
        assert (template["spec"]["hostname"], template["spec"]["subdomain"]) == (host, "mine")
        assert container(host)["args"] == [
            "/workspace/run.toml",
            "/etc/agent-rl/kubernetes.toml",
            "--host",
            host,
            "--stopped-exit-code=75",
        ]


@pytest.fixture
def topology(tmp_path):
    """What a pod reads, from where it is mounted."""
    mounted = {}
    for mount in container("rollout")["volumeMounts"]:
        if mount["name"] == "topology":
            path = tmp_path / "mounted" / mount["mountPath"].lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(topology_texts()[mount["subPath"]])
            mounted[mount["mountPath"]] = path
    return load_topology([mounted[word] for word in container("rollout")["args"][:2]])


def test_the_mounted_files_are_the_topology_with_the_names_of_the_pods(topology):
    assert {name: host.address for name, host in topology.hosts.items()} == {
        "rollout": "rollout.mine.default.svc.cluster.local",
        "trainer": "trainer.mine.default.svc.cluster.local",
    }
    assert str(topology.security.key_file) == "/run/agent-rl/cluster.key"
    assert topology.actors["rollout_generator"].targets("weights")  # the pods share no volume


def test_the_command_takes_a_key_of_its_own_that_others_cannot_read(tmp_path):
    """A secret's file may be readable by others, and `run` refuses such a key."""
    [shell, flag, script, name] = container("trainer")["command"]
    (tmp_path / "secret").write_text("key")
    script = script.replace("/etc/agent-rl/secret/cluster.key", f"{tmp_path}/secret").replace(
        "/run/agent-rl", str(tmp_path)
    )
    script = script.replace("exec agent-rl", "printf '%s\\n'")
    done = subprocess.run([shell, flag, script, name, "a b", "--host"], capture_output=True, text=True, check=True)
    assert done.stdout == "run\na b\n--host\n"
    assert stat.S_IMODE((tmp_path / "cluster.key").stat().st_mode) == 0o600


def test_a_pod_has_what_its_host_needs(topology):
    for host, gpus in zip(HOSTS, (1, 2), strict=True):
        assert container(host)["resources"] == {
            "requests": {"cpu": "4", "memory": "64Gi"},
            "limits": {"memory": "64Gi", "nvidia.com/gpu": gpus},
        }
        assert most_gpus(topology, host) == gpus


def test_only_a_pod_that_makes_namespaces_gets_rid_of_the_profiles_that_forbid_them():
    """An ordinary user makes namespaces without a right."""
    for host, profile in zip(HOSTS, ("RuntimeDefault", "Unconfined"), strict=True):
        assert container(host)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": profile},
            "appArmorProfile": {"type": profile},
        }
        ordinary = {"runAsUser": 1000, "fsGroup": 1000, "runAsNonRoot": True}
        assert pod(host)["securityContext"].items() >= ordinary.items()


def test_a_pod_ends_in_order_and_comes_back_unless_the_run_is_over():
    for host in HOSTS:
        job = manifests()["Job", f"mine-{host}"]["spec"]
        assert pod(host)["terminationGracePeriodSeconds"] == 180
        assert pod(host)["restartPolicy"] == "Never"  # what a policy of failures asks for
        assert job["podReplacementPolicy"] == "Failed"
        rules = job["podFailurePolicy"]["rules"]
        codes = {rule["action"]: rule["onExitCodes"]["values"] for rule in rules if "onExitCodes" in rule}
        assert codes == {"FailJob": [2], "Ignore": [75]}
        assert "exec agent-rl" in container(host)["command"][2]  # signals reach the supervisor itself


def test_the_run_directory_of_the_main_host_outlives_its_pod(topology):
    assert topology.main_host == "trainer"
    volumes = {host: {volume["name"]: volume for volume in pod(host)["volumes"]} for host in HOSTS}
    assert volumes["trainer"]["run"]["persistentVolumeClaim"] == {"claimName": "mine-run"}
    assert volumes["rollout"]["run"]["emptyDir"] == {}
    assert volumes["trainer"]["secret"]["secret"] == {"secretName": "mine-key"}
    for host in HOSTS:
        mounts = {mount["name"]: mount["mountPath"] for mount in container(host)["volumeMounts"]}
        assert mounts["run"] == f"{container(host)['workingDir']}/{topology.run.directory}"


@pytest.mark.parametrize("version", ["1.31", "1.34"])
def test_the_schemas_of_kubernetes_accept_the_manifests(version):
    validator = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate (108 MB)")
    for manifest in manifests().values():
        validator.validate(manifest, version, strict=True)
    manifest["spec"]["template"]["spec"]["hostnames"] = "a"
    with pytest.raises(validator.ValidationError):
        validator.validate(manifest, version, strict=True)
