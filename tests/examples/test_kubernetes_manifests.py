"""The manifests to copy: what Kubernetes is asked for, and what the pods run."""

import stat
import subprocess

import pytest

from agent_rl.config.load import load_topology
from agent_rl.config.placement import most_gpus
from tests.examples.cluster_files import manifests, topology_texts

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
