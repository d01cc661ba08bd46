"""The hosts of a run: this machine alone, or several machines with networks and disks of their own (namespaces)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from agent_rl.config.addresses import run_digest, supervisor_node
from agent_rl.config.load import load_topology
from agent_rl.observe.logs import log_directory
from benchmarks.chaos.host import Host, run_command, small_disk
from benchmarks.chaos.plan import Kind
from benchmarks.machines import NETWORK, Machine, machines
from transport import CurveKeys

DISK_SIZE = "256M"
SWITCH = "switch"
MAIN, OTHERS = "a", ("b", "c")
RATE = ("rate", "20mbit", "burst", "64kb", "latency", "400ms")
ROLES = dict.fromkeys(("kv_scheduler", "roc_filter", "learner"), f'host="{MAIN}"')
ROLES |= {role: f"hosts={list(OTHERS)}".replace("'", '"') for role in ("rollout_generator", "tool_executor")}


@dataclass(frozen=True)
class Cluster:
    """Hosts by name, the main host first. ``directory`` is the run directory of the main host, as seen from here."""

    hosts: Mapping[str, Host]
    directory: Path
    logs: Mapping[str, Path]
    """The log of each host's supervisor."""
    disk: Path | None
    machines: Mapping[str, Machine] = field(default_factory=dict)


def cluster_overrides(folder: Path) -> list[str]:
    """Settings that put the roles on three machines: generators and executors on two, the rest on the first."""
    table = ", ".join(f'{name} = {{address = "{NETWORK}.{n}"}}' for n, name in enumerate((MAIN, *OTHERS), 2))
    placed = [f"actors.{role}.{where}" for role, where in ROLES.items()]
    weights = "actors.rollout_generator.links.weights=learner"
    return [f"hosts={{{table}}}", f"security.key_file={folder / 'cluster.key'}", *placed, weights]


@contextmanager
def one_host(file: Path, name: str, folder: Path, overrides: Sequence[str], *, small: bool) -> Iterator[Cluster]:
    """The machine as it is. ``small``: the run directory has a small disk of its own."""
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(folder / "disk", DISK_SIZE)) if small else None
        directory = (disk or folder) / "run"
        settings = [f"run.directory={directory}", *overrides]
        host = Host(run_command(file, settings), folder, run_digest(load_topology(file, settings)))
        yield Cluster({name: host}, directory, {name: _log(directory, name)}, disk)


@contextmanager
def three_hosts(file: Path, folder: Path, overrides: Sequence[str], *, small: bool) -> Iterator[Cluster]:
    """Three machines and a switch. All see the run directory at one path, and each has its own there."""
    CurveKeys.generate().save(folder / "cluster.key")
    place = folder / "here"
    place.mkdir()
    with ExitStack() as stack:
        names = (MAIN, *OTHERS)
        disk = stack.enter_context(small_disk(folder / MAIN, DISK_SIZE)) if small else None
        for name in names:
            (folder / name).mkdir(exist_ok=True)
            (folder / f"{name}.files").mkdir()
        _, *made = stack.enter_context(machines((SWITCH, *names), folder))
        by_name = dict(zip(names, made, strict=True))
        hosts = {}
        settings = [f"run.directory={place / 'run'}", *cluster_overrides(folder), *overrides]
        digest = run_digest(load_topology(file, settings))
        for name, machine in by_name.items():
            machine.run("mount", "--bind", str(folder / name), str(place))
            command = [*run_command(file, settings), "--host", name]
            hosts[name] = Host(machine.command(*command), folder / f"{name}.files", digest)
        logs = {name: _log(folder / name / "run", name) for name in names}
        yield Cluster(hosts, folder / MAIN / "run", logs, disk, by_name)


def _log(directory: Path, host: str) -> Path:
    return log_directory(directory) / f"{supervisor_node(host)}.jsonl"


def network_fault(kind: Kind, hit: Sequence[Machine]) -> list[tuple[Machine, tuple[str, ...], tuple[str, ...]]]:
    """The commands that begin and end a fault of the network, and where they run."""
    first = hit[0]
    match kind:
        case Kind.LINK:
            link = ("ip", "link", "set", "eth0")
            return [(first, (*link, "down"), (*link, "up"))]
        case Kind.SLOW:
            return [(first, ("tc", "qdisc", "add", *_ROOT, "tbf", *RATE), ("tc", "qdisc", "del", *_ROOT))]
        case Kind.PARTITION:
            ways = ((first, hit[1]), (hit[1], first))
            return [
                (here, ("ip", "route", "add", *to), ("ip", "route", "del", *to))
                for here, there in ways
                for to in [("blackhole", f"{there.address}/32")]
            ]
    raise ValueError(f"{kind} is no fault of the network")


_ROOT = ("dev", "eth0", "root")
