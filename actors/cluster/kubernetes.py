"""Manifests for Kubernetes: one Job for each host, found by its name under a headless service.

::

    ConfigMap: the topology files, and an overlay with the addresses     Secret: the key, made by a command
    Service (headless): HOST.NAME.NAMESPACE.svc.DOMAIN is the address of a host's pod, also before the pod is ready
    Job NAME-HOST --(exit 0)--> complete: the run is finished    --(exit 2)--> failed: a mistake
        `-(any other end, eviction, deletion of the pod)--> a new pod, which continues the run

A Job and not a StatefulSet: a StatefulSet would start the pods of a finished run again, for ever.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.cluster.plan import STOPPED, HostNeeds, hosts_overlay
from agent_rl.config.source import Fault, Source

LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
LONGEST_LABEL = 63
"""Characters of a name in DNS."""
GPU_RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
OVERLAY = "/etc/agent-rl/kubernetes.toml"
SECRET = "/etc/agent-rl/secret"  # noqa: S105 - a folder
KEY = "/run/agent-rl/cluster.key"
MISTAKE = 2
"""The exit code of what starting again would not mend."""
RETRIES = 20
"""Pods of a host that may die, besides those that Kubernetes ended, before its Job has failed."""

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class KubernetesRun:
    """What the manifests are made of, besides the hosts."""

    name: str
    namespace: str
    domain: str
    """The domain of the cluster, as ``cluster.local``."""
    image: str
    workdir: str
    """The working directory in the containers."""
    command: str
    """The shell words that start ``agent-rl`` in the containers."""
    files: Mapping[str, str]
    """The text of each topology file, by its path in the working directory."""
    overrides: Sequence[str]
    run_directory: str
    """Relative to the working directory, or absolute."""
    shares_weights: bool
    """Whether hosts read weights from files of the run directory."""
    storage: str
    storage_class: str | None
    memory: str | None
    gpu: str
    """A key of ``GPU_RESOURCES``."""
    user: int
    """The user that the containers run as. The sandbox makes its namespaces as any user but root without a right."""
    stop_seconds: int
    key: str | None = None
    """The key to write into the manifest; None: the user makes the secret."""

    def address(self, host: str) -> str:
        """The name under which a host's pod is reached. The pod itself knows this name before DNS does."""
        return f"{host}.{self.name}.{self.namespace}.svc.{self.domain}"

    def path(self, file: str) -> str:
        """A path in the containers."""
        return file if file.startswith("/") else f"{self.workdir.rstrip('/')}/{file}"

    @property
    def labels(self) -> dict[str, str]:
        """The labels of all that belongs to the run."""
        return {"app.kubernetes.io/name": "agent-rl", "app.kubernetes.io/instance": self.name}


def name_faults(hosts: Sequence[HostNeeds], run_name: str, source: Source) -> list[Fault]:
    """A fault for each name that DNS cannot hold. ``run_name`` is the name that the manifests are to have."""
    remedy = "write small letters, digits and -, with a letter or digit at both ends"
    faults = [
        source.fault(("hosts", host.name), "this name cannot be the name of a pod", remedy)
        for host in hosts
        if not LABEL.fullmatch(host.name)
    ]
    if not LABEL.fullmatch(run_name):
        faults.append(
            source.fault(("run", "name"), f"{run_name!r} cannot be the name of a service", f"{remedy}, as --name")
        )
    elif longest := max((f"{run_name}-{host.name}" for host in hosts), key=len)[LONGEST_LABEL:]:
        message = (
            f"with the name of a host it has {LONGEST_LABEL + len(longest)} characters, and a Job's has {LONGEST_LABEL}"
        )
        faults.append(source.fault(("run", "name"), message, "give a shorter one as --name"))
    return faults


def manifests(hosts: Sequence[HostNeeds], run: KubernetesRun) -> list[tuple[str, Manifest]]:
    """The manifests, each with a comment. ``hosts`` are the hosts in use, the main host first."""
    several = len(hosts) > 1
    found = [("The topology files; the last one has the addresses of the hosts.", _topology(hosts, run))]
    if several:
        found.append(("The names of the hosts.", _service(run)))
        if run.key is not None:
            found.append(("The key of the links. Who reads it can join the run: keep this file secret.", _secret(run)))
    found.append(
        (f"The run directory of {hosts[0].name}: journal and checkpoints.", _claim(run, "run", "ReadWriteOnce"))
    )
    if run.shares_weights:
        found.append(("The published weights, which several hosts read.", _claim(run, "weights", "ReadWriteMany")))
    return found + [(_about(host), _job(host, run, main=host is hosts[0], several=several)) for host in hosts]


def _about(host: HostNeeds) -> str:
    text = f"The host {host.name}: {', '.join(host.actors)}."
    if host.namespaces:
        text += (
            "\nIts tool executor makes user, mount and PID namespaces for model code (docs/sandbox.md). The profiles of"
            "\nseccomp and AppArmor that container runtimes load by default forbid that, so this pod has none."
            "\nThe sandbox installs a seccomp filter of its own around model code. The namespace must admit such pods"
            "\n(Pod Security level `privileged`). Otherwise remove both profiles: the sandbox takes a weaker level."
        )
    return text


def _head(kind: str, run: KubernetesRun, name: str, version: str = "v1") -> Manifest:
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "namespace": run.namespace, "labels": run.labels},
    }


def _topology(hosts: Sequence[HostNeeds], run: KubernetesRun) -> Manifest:
    overlay = ""
    if len(hosts) > 1:
        overlay = hosts_overlay({host.name: run.address(host.name) for host in hosts}, KEY)
    texts = {_entry(number, file): text for number, (file, text) in enumerate(run.files.items())}
    return {**_head("ConfigMap", run, f"{run.name}-topology"), "data": texts | {"kubernetes.toml": overlay}}


def _entry(number: int, file: str) -> str:
    """The key of a file in the ConfigMap."""
    return f"{number}-{re.sub('[^A-Za-z0-9._-]', '-', Path(file).name)}"


def _service(run: KubernetesRun) -> Manifest:
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": run.labels}
    return {**_head("Service", run, run.name), "spec": spec}


def _secret(run: KubernetesRun) -> Manifest:
    return {**_head("Secret", run, f"{run.name}-key"), "type": "Opaque", "stringData": {"cluster.key": run.key}}


def _claim(run: KubernetesRun, what: str, mode: str) -> Manifest:
    spec: Manifest = {"accessModes": [mode], "resources": {"requests": {"storage": run.storage}}}
    if run.storage_class is not None:
        spec["storageClassName"] = run.storage_class
    return {**_head("PersistentVolumeClaim", run, f"{run.name}-{what}"), "spec": spec}


def _job(host: HostNeeds, run: KubernetesRun, *, main: bool, several: bool) -> Manifest:
    failures = [
        {"action": "FailJob", "onExitCodes": {"containerName": "agent-rl", "operator": "In", "values": [MISTAKE]}},
        {"action": "Ignore", "onExitCodes": {"containerName": "agent-rl", "operator": "In", "values": [STOPPED]}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
    spec = {
        "backoffLimit": RETRIES,
        "podReplacementPolicy": "Failed",  # two pods of one host would have one name and one journal
        "podFailurePolicy": {"rules": failures},
        "template": {
            "metadata": {"labels": run.labels | {"agent-rl/host": host.name}},
            "spec": _pod(host, run, main, several),
        },
    }
    return {**_head("Job", run, f"{run.name}-{host.name}", "batch/v1"), "spec": spec}


def _pod(host: HostNeeds, run: KubernetesRun, main: bool, several: bool) -> Manifest:  # noqa: FBT001
    volumes = _volumes(run, main=main, several=several)
    pod: Manifest = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": run.stop_seconds,
        "enableServiceLinks": False,
        "shareProcessNamespace": True,  # a process that reaps orphans has number 1
        "containers": [_container(host, run, [mount for _, mounts in volumes for mount in mounts], several=several)],
        "volumes": [volume for volume, _ in volumes],
    }
    if several:
        pod |= {"hostname": host.name, "subdomain": run.name}
    pod["securityContext"] = {
        "runAsNonRoot": run.user != 0,
        "runAsUser": run.user,
        "runAsGroup": run.user,
        "fsGroup": run.user,
        "fsGroupChangePolicy": "OnRootMismatch",
    }
    return pod


def _container(host: HostNeeds, run: KubernetesRun, mounts: Sequence[Manifest], *, several: bool) -> Manifest:
    words = [*map(run.path, run.files), OVERLAY, *(f"--set={override}" for override in run.overrides)]
    words += ["--host", host.name, f"--stopped-exit-code={STOPPED}"]
    copy = f"install -m 600 {SECRET}/cluster.key {KEY} && " if several else ""
    resources: Manifest = {"requests": {"cpu": str(host.processors)}}
    if run.memory is not None:
        resources["requests"]["memory"] = run.memory
        resources["limits"] = {"memory": run.memory}
    if host.gpus:
        resources["limits"] = resources.get("limits", {}) | {GPU_RESOURCES[run.gpu]: host.gpus}
    security: Manifest = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    profile = "Unconfined" if host.namespaces else "RuntimeDefault"
    security |= {"seccompProfile": {"type": profile}, "appArmorProfile": {"type": profile}}
    if host.namespaces and run.user == 0:  # root makes namespaces by right; Kubernetes then lets nobody refuse rights
        del security["allowPrivilegeEscalation"]
        security["capabilities"] = {"add": ["SYS_ADMIN"]}
    return {
        "name": "agent-rl",
        "image": run.image,
        "workingDir": run.workdir,
        "command": ["sh", "-c", f'{copy}exec {run.command} run "$@"', "agent-rl"],
        "args": words,
        # The user's number may have no name and no home in the image.
        "env": [{"name": "HOME", "value": "/tmp"}, {"name": "USER", "value": "agent-rl"}],  # noqa: S108
        "resources": resources,
        "securityContext": security,
        "volumeMounts": list(mounts),
    }


def _volumes(run: KubernetesRun, *, main: bool, several: bool) -> list[tuple[Manifest, list[Manifest]]]:
    """The volumes of a pod, and where each of them is mounted."""
    directory = run.path(run.run_directory)
    claim = {"persistentVolumeClaim": {"claimName": f"{run.name}-run"}} if main else {"emptyDir": {}}
    inside = {"subPath": "run"} if main else {}  # beside what the file system keeps in its root
    files: list[Manifest] = [
        {"name": "topology", "mountPath": run.path(file), "subPath": _entry(number, file)}
        for number, file in enumerate(run.files)
    ]
    files.append({"name": "topology", "mountPath": OVERLAY, "subPath": "kubernetes.toml"})
    found: list[tuple[Manifest, list[Manifest]]] = [
        ({"name": "topology", "configMap": {"name": f"{run.name}-topology"}}, files),
        ({"name": "run", **claim}, [{"name": "run", "mountPath": directory, **inside}]),
        # Fetched weights are kept in shared memory, of which a container has 64 MiB by default.
        ({"name": "memory", "emptyDir": {"medium": "Memory"}}, [{"name": "memory", "mountPath": "/dev/shm"}]),  # noqa: S108
    ]
    if run.shares_weights:
        weights = {"name": "weights", "persistentVolumeClaim": {"claimName": f"{run.name}-weights"}}
        found.append((weights, [{"name": "weights", "mountPath": f"{directory}/weights", "subPath": "weights"}]))
    if several:
        secret = {"name": "secret", "secret": {"secretName": f"{run.name}-key"}}
        found.append((secret, [{"name": "secret", "mountPath": SECRET, "readOnly": True}]))
        key = {"name": "key", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}
        found.append((key, [{"name": "key", "mountPath": str(Path(KEY).parent)}]))
    return found


def yaml_text(head: str, found: Sequence[tuple[str, Manifest]]) -> str:
    """The manifests as one YAML file, each below its comment."""
    documents = [f"{_comment(comment)}{_yaml(manifest)}" for comment, manifest in found]
    return _comment(head) + "---\n" + "---\n".join(documents)


def _comment(text: str) -> str:
    return "".join(f"# {line}".rstrip() + "\n" for line in text.splitlines())


def _yaml(manifest: Manifest) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]
        """Writes texts of several lines as they are, and nothing by reference."""

        def ignore_aliases(self, data: object) -> bool:
            del data
            return True

    def text(dumper: Dumper, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    return str(yaml.dump(manifest, Dumper=Dumper, sort_keys=False, width=120, allow_unicode=True))
