"""What each host of a topology needs from its machine, and what no cluster can start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from actors.weights import fetch, transfer
from agent_rl.config.addresses import actor_nodes
from agent_rl.config.full import toml_text
from agent_rl.config.placement import most_gpus
from agent_rl.config.plugins import resolve
from agent_rl.config.processes import ActorEntry
from agent_rl.config.source import Fault, Source
from agent_rl.config.standard import learner_of
from agent_rl.config.topology import Topology

STOPPED = 75
"""The exit code of ``agent-rl run`` that rendered files give a run that was stopped before it was finished."""


@dataclass(frozen=True, slots=True)
class HostNeeds:
    """One host: its name, its actors, and what they need."""

    name: str
    actors: tuple[str, ...]
    gpus: int
    processors: int
    """One for each process; torch's threads count."""
    namespaces: bool
    """Whether an executor of the host makes namespaces, for which a container needs rights."""
    base_port: int


def host_needs(topology: Topology) -> list[HostNeeds]:
    """The hosts in use, the main host first. Raises PluginError when a class cannot be loaded."""
    hosts = sorted(topology.hosts_in_use, key=lambda name: name != topology.main_host)
    return [_needs(topology, name) for name in hosts]


def _needs(topology: Topology, host: str) -> HostNeeds:
    nodes = list(actor_nodes(topology, host))
    entries = [topology.actors[learner_of(role, topology.actors[role].class_path)] for _, role in nodes]
    return HostNeeds(
        name=host,
        actors=tuple(node for node, _ in nodes),
        gpus=most_gpus(topology, host),
        processors=1 + sum(map(_processors, entries)),
        namespaces=any(_setting(entry, "isolation") in {"host", "strong"} for entry in entries),
        base_port=topology.hosts[host].base_port,
    )


def _setting(entry: ActorEntry, name: str) -> Any:
    """A setting of an actor, or its default; None where the class has no such setting."""
    field = resolve("actor", entry.class_path).Settings.model_fields.get(name)
    return None if field is None else entry.settings.get(name, field.default)


def _processors(entry: ActorEntry) -> int:
    """The processors that an actor keeps busy: torch's threads, or one where they are "auto"."""
    threads = _setting(entry, "threads")
    return 1 if _setting(entry, "device") is None else threads if type(threads) is int else 1


def reads_run_directory(topology: Topology) -> list[str]:
    """The roles on other hosts than the learner's that read weights from files of the run directory."""
    return [
        role
        for role, entry in topology.actors.items()
        if fetch.LINK in getattr(resolve("actor", entry.class_path), "links", {})
        and set(topology.homes(role).values()) - {topology.main_host}
        and not entry.targets(fetch.LINK)
        and not entry.targets(transfer.LINK)
    ]


def links_faults(topology: Topology, source: Source) -> list[Fault]:
    """A fault for each role that reads weights from the run directory, for clusters where no hosts share it."""
    message = (
        "runs on another host than the learner, and reads weights from the run directory, which is on a local disk"
    )
    remedy = f'give it the link {fetch.LINK} = "learner"'
    faults = [source.fault(("actors", role, "links"), message, remedy) for role in reads_run_directory(topology)]
    apart = "has ranks on several hosts, which write the run directory together, and it is on a local disk"
    several = [role for role, entry in topology.actors.items() if len(entry.rank_hosts) > 1]
    return faults + [source.fault(("actors", role, "hosts"), apart, "put them on one host") for role in several]


def hosts_overlay(addresses: Mapping[str, str], key_file: str) -> str:
    """A topology file to lay over another, with the addresses of hosts and the key."""
    hosts = {name: {"address": address} for name, address in addresses.items()}
    return toml_text({"hosts": hosts, "security": {"key_file": key_file}})
