"""``agent-rl render``: a topology as a batch script for Slurm, or as manifests for Kubernetes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from actors.cli.output import Mistake, complain
from actors.cli.parameters import Overlays, Overrides, Positive, TopologyFile
from actors.cluster.command import own_command
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
    from actors.cluster.slurm import SlurmJob, batch_script, name_faults

    folder = (workdir or Path.cwd()).absolute()
    topology, source, hosts = _loaded(file, overlays, overrides)
    _refuse(name_faults(hosts, source), source)
    for fault in links_faults(topology, source):
        complain(f"warning: {fault.render(source.files[0])}")
    job = SlurmJob(
        name=topology.run.name,
        files=source.files,
        overrides=overrides,
        command=command or shlex.join(own_command()),
        folder=folder,
        has_key=topology.security.key_file is not None,
        time=time,
        stop_seconds=stop_seconds,
        gpus=gpus,
        processors=processors,
        options=sbatch,
        run=topology.run.directory,
        keep=keep,
    )
    _write(batch_script(hosts, job), out)


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


def _write(text: str, out: Path | None) -> None:
    """Print what was rendered, or write it to a file."""
    if out is None:
        print(text, end="")
        return
    with whole(out) as partial:
        partial.write_text(text, encoding="utf-8")
    print(f"wrote {out}")
