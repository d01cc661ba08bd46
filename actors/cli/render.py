"""``agent-rl render``: a topology as a batch script for Slurm, or as manifests for Kubernetes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from actors.cli.output import Mistake, complain, say
from actors.cli.parameters import Overlays, Overrides, Positive, TopologyFile
from actors.cluster.places import own_command
from agent_rl.config.examples import topology_file
from agent_rl.files.disk import whole

if TYPE_CHECKING:
    from actors.cluster.plan import HostNeeds
    from agent_rl.config.source import Fault, Source
    from agent_rl.config.topology import Topology

app = App("render")
Out = Annotated[Path | None, Parameter(metavar="FILE", help="write to this file instead of printing")]


@app.command
def slurm(
    file: TopologyFile,
    /,
    *overlays: Overlays,
    overrides: Overrides = (),
    time: Annotated[str, Parameter(help="of the job, as sbatch takes it")] = "24:00:00",
    stop_seconds: Annotated[
        Positive, Parameter(help="how long before its end the run is stopped and the job is requeued")
    ] = 120,
    gpus: Annotated[int | None, Parameter(help="of each node; left out: what the host needs that needs most")] = None,
    processors: Annotated[Positive | None, Parameter(help="of each node; left out likewise")] = None,
    workdir: Annotated[
        Path | None, Parameter(help="the folder, on a file system that all nodes share; left out: this folder")
    ] = None,
    command: Annotated[str, Parameter(help="the words that start agent-rl on the nodes; left out: as here")] = "",
    sbatch: Annotated[
        tuple[str, ...], Parameter(metavar="NAME=VALUE", help="another option of sbatch, as in partition=gpu")
    ] = (),
    keep: Annotated[
        Path | None,
        Parameter(help="a folder that all nodes share, for the run directory between jobs, where nodes have own disks"),
    ] = None,
    out: Out = None,
) -> None:
    """Write a batch script that runs each host of a topology on a node of its own."""
    from actors.cluster.plan import links_faults
    from actors.cluster.rendering import SLURM, rendered, slurm_faults

    topology, source, hosts = _loaded(file, overlays, overrides)
    _refuse(slurm_faults(hosts, source), source)
    for fault in links_faults(topology, source):
        complain(f"warning: {fault.render(source.files[0])}")
    text = rendered(
        SLURM,
        hosts,
        name=topology.run.name,
        files=source.files,
        overrides=overrides,
        command=command or shlex.join(own_command()),
        folder=(workdir or Path.cwd()).absolute(),
        has_key=topology.security.key_file is not None,
        time=time,
        stop_seconds=stop_seconds,
        gpus=max(host.gpus for host in hosts) if gpus is None else gpus,
        processors=processors or max(host.processors for host in hosts),
        options=sbatch,
        run=topology.run.directory,
        keep=keep,
    )
    _write(text, out)


@app.command
def kubernetes(
    file: TopologyFile,
    /,
    *overlays: Overlays,
    image: Annotated[str, Parameter(help="the container image, with agent_rl and all that the topology names")],
    overrides: Overrides = (),
    name: Annotated[
        str | None, Parameter(help="of the service and of all that belongs to it; left out: the run's")
    ] = None,
    namespace: Annotated[str, Parameter(help="the namespace")] = "default",
    domain: Annotated[str, Parameter(help="the domain of the cluster's services")] = "cluster.local",
    workdir: Annotated[
        str, Parameter(help="the working directory in the containers, with the files of the topology")
    ] = ("/workspace"),
    command: Annotated[str, Parameter(help="the words that start agent-rl in the containers")] = "agent-rl",
    gpu: Annotated[Literal["nvidia", "amd"], Parameter(help="the vendor of the GPUs")] = "nvidia",
    memory: Annotated[str | None, Parameter(help="of each pod, as in 64Gi")] = None,
    storage: Annotated[str, Parameter(help="the size of each volume")] = "100Gi",
    storage_class: Annotated[str | None, Parameter(help="of the volumes; left out: the cluster's default")] = None,
    user: Annotated[int, Parameter(help="the number of the user that the containers run as; 0: root")] = 1000,
    stop_seconds: Annotated[Positive, Parameter(help="how long a pod has to stop in order")] = 180,
    with_key: Annotated[bool, Parameter(help="make a key and write it into the manifests")] = False,
    out: Out = None,
) -> None:
    """Write manifests: a Job for each host, a service for their names, volumes; the key is a secret of its own."""
    from actors.cluster.plan import hosts_overlay, reads_run_directory
    from actors.cluster.rendering import KUBERNETES, kubernetes_faults, rendered, secret_faults
    from agent_rl.config.agreement import secrets
    from agent_rl.environments.load import shown_settings
    from transport import CurveKeys

    topology, source, hosts = _loaded(file, overlays, overrides)
    name = name or topology.run.name.lower()
    told = secrets(topology, shown_settings)
    _refuse([*kubernetes_faults(hosts, name, source), *secret_faults(told, source)], source)
    several = len(hosts) > 1
    addresses = {host.name: f"{host.name}.{name}.{namespace}.svc.{domain}" for host in hosts}
    secret = f"kubectl --namespace {namespace} create secret generic {name}-key --from-file=cluster.key"
    paths = {path: _inside(workdir, path) for path in source.files}
    text = rendered(
        KUBERNETES,
        hosts,
        name=name,
        namespace=namespace,
        image=image,
        workdir=workdir,
        shell=("install -m 600 /etc/agent-rl/secret/cluster.key /run/agent-rl/cluster.key && " if several else "")
        + f'exec {command} run "$@"',
        words=[*paths.values(), "/etc/agent-rl/kubernetes.toml", *(f"--set={override}" for override in overrides)],
        files=[
            (f"{number}-{re.sub('[^A-Za-z0-9._-]', '-', path.name)}", inside, path.read_text(encoding="utf-8-sig"))
            for number, (path, inside) in enumerate(paths.items())
        ],
        overlay=hosts_overlay(addresses, "/run/agent-rl/cluster.key") if several else "",
        run_directory=_inside(workdir, topology.run.directory, keep=True),
        shares_weights=bool(reads_run_directory(topology)),
        storage=storage,
        storage_class=storage_class,
        memory=memory,
        gpu=gpu,
        user=user,
        stop_seconds=stop_seconds,
        several=several,
        key=CurveKeys.generate().text() if with_key and several else None,
        secret_command=secret,
    )
    if several and not with_key:
        complain(f"make the key of the run once: agent-rl keys cluster.key && {secret}")
    _write(text, out, mode=0o600 if with_key else 0o666)


def _inside(workdir: str, path: Path, *, keep: bool = False) -> str:
    """A path in the containers: a file from elsewhere stands in the working directory, unless it is to ``keep``."""
    if path.is_absolute() and keep:
        return str(path)
    outside = path.is_absolute() or ".." in path.parts
    return f"{workdir.rstrip('/')}/{path.name if outside and not keep else path}"


def _loaded(
    file: Path, overlays: tuple[Path, ...], overrides: tuple[str, ...]
) -> tuple[Topology, Source, list[HostNeeds]]:
    """The topology of files, where its keys stand, and what its hosts need. Raises Mistake, which tells every fault.

    Files and devices that the topology names are for the cluster's machines to have: `run` checks them there.
    """
    from actors.cluster.plan import host_needs
    from agent_rl.config.load import load_topology
    from agent_rl.config.plugins import PluginError
    from agent_rl.config.source import Source, TopologyError
    from agent_rl.config.user_modules import look_beside

    files = (topology_file(str(file)), *overlays)
    look_beside(files[0])
    try:
        topology = load_topology(files, overrides)
        return topology, Source(files, overrides), host_needs(topology)
    except TopologyError as error:
        raise Mistake(lines=[fault.render(error.path) for fault in error.faults]) from error
    except PluginError as error:
        raise Mistake(f"{files[0]}: {error.message}; {error.remedy}") from error


def _refuse(faults: list[Fault], source: Source) -> None:
    """Raise Mistake where there are faults."""
    if faults:
        raise Mistake(lines=[fault.render(source.files[0]) for fault in faults])


def _write(text: str, out: Path | None, mode: int = 0o666) -> None:
    """Print what was rendered, or write it to a file with these rights, less the umask."""
    if out is None:
        say(text, end="")
        return
    with whole(out) as partial:
        partial.touch(mode)
        partial.write_text(text, encoding="utf-8")
    say(f"wrote {out}")
