"""The manifests: what Kubernetes is asked for, and what the pods run."""

import stat
import subprocess

import pytest
import yaml

from actors.cli.main import main
from agent_rl.config.load import load_topology
from tests.actors.cluster.topology import TOPOLOGY
from transport import CurveKeys


def render(capsys, *arguments, code=0):
    assert main(["render", "kubernetes", "two.toml", "--image", "image:1", *arguments]) == code
    said = capsys.readouterr()
    return said.out, said.err


def manifests(text):
    """The manifests by kind and name."""
    return {(found["kind"], found["metadata"]["name"]): found for found in yaml.safe_load_all(text)}


def pod(text, host):
    return manifests(text)["Job", f"two-{host}"]["spec"]["template"]["spec"]


def container(text, host):
    [found] = pod(text, host)["containers"]
    return found


def test_each_host_is_a_job_that_the_others_find_by_name(file, capsys):
    text, _ = render(capsys, "--namespace", "team", "--set=run.seed=5")
    found = manifests(text)
    assert set(found) == {
        ("ConfigMap", "two-topology"),
        ("Service", "two"),
        ("PersistentVolumeClaim", "two-run"),
        ("Job", "two-trainer"),
        ("Job", "two-rollout"),
    }
    assert {manifest["metadata"]["namespace"] for manifest in found.values()} == {"team"}
    service = found["Service", "two"]["spec"]
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"] is True
    for host in ("trainer", "rollout"):
        template = found["Job", f"two-{host}"]["spec"]["template"]
        assert service["selector"].items() <= template["metadata"]["labels"].items()
        assert (template["spec"]["hostname"], template["spec"]["subdomain"]) == (host, "two")
        assert container(text, host)["args"] == [
            "/workspace/two.toml",
            "/etc/agent-rl/kubernetes.toml",
            "--set=run.seed=5",
            "--host",
            host,
            "--stopped-exit-code=75",
        ]


def test_the_mounted_files_are_the_topology_with_the_names_of_the_pods(file, capsys, tmp_path):
    text, _ = render(capsys, "--namespace", "team", "--domain", "example.org")
    files = manifests(text)["ConfigMap", "two-topology"]["data"]
    mounted = {}
    for mount in container(text, "rollout")["volumeMounts"]:
        if mount["name"] == "topology":
            path = tmp_path / "mounted" / mount["mountPath"].lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[mount["subPath"]])
            mounted[mount["mountPath"]] = path
    topology = load_topology([mounted[word] for word in container(text, "rollout")["args"][:2]])
    assert {name: (host.address, host.base_port) for name, host in topology.hosts.items()} == {
        "rollout": ("rollout.two.team.svc.example.org", 5700),
        "trainer": ("trainer.two.team.svc.example.org", 6100),
    }
    assert str(topology.security.key_file) == "/run/agent-rl/cluster.key"
    assert text.count(TOPOLOGY.splitlines()[1]) == 1  # readable, not one long line


def test_the_command_takes_a_key_of_its_own_that_others_cannot_read(file, capsys, tmp_path):
    """A secret's file may be readable by others, and `run` refuses such a key."""
    text, _ = render(capsys, "--command", "printf '%s\\n'")
    [shell, flag, script, name] = container(text, "trainer")["command"]
    (tmp_path / "secret").write_text("key")
    script = script.replace("/etc/agent-rl/secret/cluster.key", f"{tmp_path}/secret").replace(
        "/run/agent-rl", str(tmp_path)
    )
    done = subprocess.run([shell, flag, script, name, "a b", "--host"], capture_output=True, text=True, check=True)
    assert done.stdout == "run\na b\n--host\n"
    assert stat.S_IMODE((tmp_path / "cluster.key").stat().st_mode) == 0o600


def test_the_key_is_written_only_when_asked_for(file, capsys, tmp_path):
    text, err = render(capsys)
    command = "kubectl --namespace default create secret generic two-key --from-file=cluster.key"
    assert command in err
    assert command in text
    assert "Secret" not in {kind for kind, _ in manifests(text)}
    assert any(volume.get("secret") == {"secretName": "two-key"} for volume in pod(text, "trainer")["volumes"])
    render(capsys, "--with-key", "--out", "all.yaml")
    assert stat.S_IMODE((tmp_path / "all.yaml").stat().st_mode) == 0o600
    secret = manifests((tmp_path / "all.yaml").read_text())["Secret", "two-key"]["stringData"]["cluster.key"]
    (tmp_path / "read.key").touch(0o600)
    (tmp_path / "read.key").write_text(secret)
    CurveKeys.load(tmp_path / "read.key")


def test_a_pod_has_what_its_host_needs(file, capsys):
    text, _ = render(capsys, "--gpu", "amd", "--memory", "64Gi")
    assert container(text, "trainer")["resources"] == {
        "requests": {"cpu": "4", "memory": "64Gi"},
        "limits": {"memory": "64Gi", "amd.com/gpu": 1},
    }
    assert container(text, "rollout")["resources"]["limits"]["amd.com/gpu"] == 3
    text, _ = render(capsys, "--set=actors.learner.settings.device=cpu")
    assert container(text, "trainer")["resources"] == {"requests": {"cpu": "4"}}
    assert container(text, "rollout")["resources"]["limits"] == {"nvidia.com/gpu": 3}


def test_only_a_pod_that_makes_namespaces_gets_rid_of_the_profiles_that_forbid_them(file, capsys):
    text, _ = render(capsys)
    assert container(text, "rollout")["securityContext"]["seccompProfile"] == {"type": "Unconfined"}
    assert container(text, "rollout")["securityContext"]["appArmorProfile"] == {"type": "Unconfined"}
    assert container(text, "trainer")["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
        "appArmorProfile": {"type": "RuntimeDefault"},
    }
    assert text.count("# Its tool executor makes user, mount and PID namespaces") == 1
    text, _ = render(capsys, "--set=actors.tool_executor.settings.isolation=filtered")
    assert container(text, "rollout")["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def test_a_pod_ends_in_order_and_comes_back_unless_the_run_is_over(file, capsys):
    text, _ = render(capsys, "--stop-seconds", "300")
    for host in ("trainer", "rollout"):
        job = manifests(text)["Job", f"two-{host}"]["spec"]
        assert pod(text, host)["terminationGracePeriodSeconds"] == 300
        assert pod(text, host)["restartPolicy"] == "Never"  # what a policy of failures asks for
        assert job["podReplacementPolicy"] == "Failed"
        rules = job["podFailurePolicy"]["rules"]
        codes = {rule["action"]: rule["onExitCodes"]["values"] for rule in rules if "onExitCodes" in rule}
        assert codes == {"FailJob": [2], "Ignore": [75]}
        assert "exec agent-rl" in container(text, host)["command"][2]  # signals reach the supervisor itself


def test_the_run_directory_of_the_main_host_outlives_its_pod(file, capsys):
    text, _ = render(capsys)
    volumes = {
        host: {volume["name"]: volume for volume in pod(text, host)["volumes"]} for host in ("trainer", "rollout")
    }
    assert volumes["trainer"]["run"]["persistentVolumeClaim"] == {"claimName": "two-run"}
    assert volumes["rollout"]["run"]["emptyDir"] == {}
    mounts = {mount["name"]: mount["mountPath"] for mount in container(text, "trainer")["volumeMounts"]}
    assert mounts["run"] == "/workspace/runs/two"
    assert "weights" not in mounts


def test_weights_that_do_not_travel_over_links_have_a_volume_that_all_share(file, capsys):
    file.write_text(TOPOLOGY.replace('links.weights = "learner"\n', ""))
    text, _ = render(capsys, "--storage-class", "shared", "--storage", "7Gi")
    claim = manifests(text)["PersistentVolumeClaim", "two-weights"]["spec"]
    assert claim == {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "7Gi"}},
        "storageClassName": "shared",
    }
    for host in ("trainer", "rollout"):
        mounts = {mount["name"]: mount["mountPath"] for mount in container(text, host)["volumeMounts"]}
        assert mounts["weights"] == "/workspace/runs/two/weights"


def test_one_host_needs_no_service_and_no_key(file, capsys):
    text, err = render(
        capsys, *(f"--set=actors.{role}.host=trainer" for role in ("tool_executor", "rollout_generator"))
    )
    assert err == ""
    assert {kind for kind, _ in manifests(text)} == {"ConfigMap", "PersistentVolumeClaim", "Job"}
    assert "secret" not in text
    assert container(text, "trainer")["command"][2] == 'exec agent-rl run "$@"'
    assert "hostname" not in pod(text, "trainer")


def test_containers_run_as_an_ordinary_user_unless_root_is_named(file, capsys):
    """An ordinary user makes namespaces without a right; root needs one."""
    text, _ = render(capsys)
    ordinary = {"runAsUser": 1000, "fsGroup": 1000, "runAsNonRoot": True}
    assert pod(text, "rollout")["securityContext"].items() >= ordinary.items()
    assert container(text, "rollout")["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    text, _ = render(capsys, "--user", "0")
    assert pod(text, "rollout")["securityContext"].items() >= {"runAsUser": 0, "runAsNonRoot": False}.items()
    assert container(text, "rollout")["securityContext"]["capabilities"] == {"add": ["SYS_ADMIN"]}
    assert "allowPrivilegeEscalation" not in container(text, "rollout")["securityContext"]
    assert container(text, "trainer")["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_a_secret_is_refused_and_the_name_of_a_variable_is_not(file, capsys):
    lines = TOPOLOGY.replace("[[environments]]", "[[environments]]\nsettings.api_key = {}", 1)
    file.write_text(lines.replace("{}", '"hush"'))
    out, err = render(capsys, code=2)
    number = lines.splitlines().index("settings.api_key = {}") + 1
    assert (out, "hush" in err) == ("", False)
    assert f"two.toml:{number}: environments.0.settings.api_key: this secret would stand in a ConfigMap; write" in err
    file.write_text(lines.replace("{}", '"env:KEY"'))
    assert "env:KEY" in render(capsys)[0]


def test_names_that_dns_cannot_hold_are_refused_with_their_lines(file, capsys):
    file.write_text(
        TOPOLOGY.replace("rollout]\n", "GPU_1]\n", 1).replace('"rollout"', '"GPU_1"').replace('"two"', '"two.b"')
    )
    out, err = render(capsys, code=2)
    assert out == ""
    assert err.splitlines() == [
        "two.toml:12: hosts.GPU_1: this name cannot be the name of a pod; write small letters, digits and -, with a letter or digit at both ends",
        "two.toml:2: run.name: 'two.b' cannot be the name of a service; write small letters, digits and -, with a letter or digit at both ends, as --name",
    ]
    file.write_text(TOPOLOGY)
    _, err = render(capsys, "--name", "x" * 60, code=2)
    assert "with the name of a host it has 68 characters, and a Job's has 63; give a shorter one as --name" in err


@pytest.mark.parametrize("version", ["1.31", "1.34"])
def test_the_schemas_of_kubernetes_accept_the_manifests(file, capsys, version):
    validator = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate (108 MB)")
    shared = "--set=actors.rollout_generator.links.weights=[]"
    for arguments in ([], ["--with-key", "--memory", "64Gi", "--user", "0", "--storage-class", "fast", shared]):
        for manifest in yaml.safe_load_all(render(capsys, *arguments)[0]):
            validator.validate(manifest, version, strict=True)
    manifest["spec"]["template"]["spec"]["hostnames"] = "a"
    with pytest.raises(validator.ValidationError):
        validator.validate(manifest, version, strict=True)


@pytest.mark.parametrize("hostile", ["a: {b}", '"\n- x: &y *z', "é 😀\x85\u2028 {{ x }}", "'%s' # \\ \t"])
def test_no_value_ends_a_quote_or_a_line(file, capsys, hostile):
    lines = hostile.replace("\n", "\n# ")
    file.write_text(f"{TOPOLOGY}# {lines}\n")
    text, _ = render(capsys, "--memory", hostile, "--storage", hostile, "--command", hostile)
    assert container(text, "trainer")["resources"]["limits"]["memory"] == hostile
    assert hostile in container(text, "trainer")["command"][2]
    files = manifests(text)["ConfigMap", "two-topology"]["data"]
    assert files["0-two.toml"] == file.read_text()
