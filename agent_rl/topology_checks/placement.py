"""Check which actor has which GPU and how ranks share a model; show the placement as a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agent_rl.config.parallel import mesh_sizes
from agent_rl.config.placement import (
    ALONE,
    AT_ONCE,
    IN_TURNS,
    KIND,
    Placed,
    conflicts,
    engine_gpus,
    most_gpus,
    partners,
    placement,
)
from agent_rl.config.plugins import PluginError, resolve
from agent_rl.config.processes import ActorEntry
from agent_rl.config.source import Finding
from agent_rl.config.topology import Topology
from agent_rl.models.devices import Gpu, gpu_count
from agent_rl.topology_checks.facts import Facts


def placement_findings(topology: Topology, facts: Facts) -> Iterator[Finding]:
    """GPUs that two actors have, hosts with too few, and counts that contradict other settings.

    How many GPUs a host has is known where the file says it, and of this machine.
    """
    yield from _counts(topology)
    for gpu, first, second in conflicts(placement(topology)):
        both = f"{first.actor} and of {second.actor}"
        message = f"GPU {gpu} of host {first.host} is that of {both}: two models in its memory"
        remedy = 'name another, as in "cuda:1", or write share = "time" in both tables, or "space" where both fit'
        yield Finding(("actors", second.role, "settings", "device"), message, remedy)
        return  # further ones follow from it
    yield from _sharing(topology, facts)
    for name in topology.hosts_in_use:
        count = topology.hosts[name].gpus
        if count is None and facts.is_here(topology, name):
            count = gpu_count(facts.machine)
        needed = most_gpus(topology, name)
        if count is not None and needed > count:
            users = [placed for placed in placement(topology) if placed.host == name and max(placed.gpus) >= count]
            what = f"{users[0].actor} has GPU {max(users[0].gpus)} of host {name}, and it has {count}"
            message = f"{what}, counted from 0; its actors need {needed}"
            remedy = 'use fewer replicas, ranks or GPUs, or share = "time" for roles that take turns'
            yield Finding(("actors", users[0].role, "settings", "device"), message, remedy)


def _sharing(topology: Topology, facts: Facts) -> Iterator[Finding]:
    """Roles that share a device with nobody, and engines that cannot be trusted to wake."""
    for role, entry in topology.actors.items():
        if entry.share == ALONE:
            continue
        place, homes = ("actors", role, "share"), topology.homes(role)
        if not any(partners(topology, f"{role}.{number}", entry.share) for number in homes):
            device = "device" if entry.share == IN_TURNS else "GPU"
            message = f'is "{entry.share}", and no other role that says so has a {device} of this role'
            yield Finding(place, message, f"write it in the tables of both, give them one {device}, or leave it out")
        here = entry.share == IN_TURNS and any(facts.is_here(topology, name) for name in homes.values())
        if here and "vllm" in str(entry.settings.get("engine", "")).lower() and facts.machine.built_for == "hip":
            message = "is \"time\", and waking from vLLM's sleep mode fails on AMD's GPUs (vllm #52478)"
            yield Finding(place, message, 'give engine and learner GPUs of their own, or write engine = "torch"')


def _counts(topology: Topology) -> Iterator[Finding]:
    for role, entry in topology.actors.items():
        count, place = entry.gpus_per_replica, ("actors", role, "gpus_per_replica")
        if not count:
            continue
        device = str(entry.settings.get("device", "cpu"))
        if device.partition(":")[0] != KIND and "device" in entry.settings:
            yield Finding(place, f"is {count}, and the role's device is {device}", f'write device = "{KIND}"')
        spread = engine_gpus(entry)
        if spread > 1 and spread != count:
            message = f"is {count}, and the engine's parallel sizes make {spread}"
            yield Finding(place, message, f"write {spread}, or leave it out")


def rank_findings(topology: Topology, _: Facts) -> Iterator[Finding]:
    """Ranks that no class computes with, that make no mesh, or that name one GPU for all."""
    for role, entry in topology.actors.items():
        place = ("actors", role, "ranks")
        try:
            actor: Any = resolve("actor", entry.class_path)
        except PluginError:
            continue  # told elsewhere
        if not getattr(actor, "ranked", False):
            if entry.ranks > 1:
                yield Finding(place, f"{entry.class_path} is one process", "leave ranks out, or use replicas")
            continue
        try:
            mesh_sizes(entry.ranks, topology.model.parallel)
        except ValueError as error:
            yield Finding(place, str(error))
            continue
        if entry.ranks > 1:
            yield from _shared_by_ranks(entry, ("actors", role))


def _shared_by_ranks(entry: ActorEntry, place: tuple[str, str]) -> Iterator[Finding]:
    """Hosts that cannot have equal parts of the ranks or would write into another's memory; one GPU for all ranks."""
    hosts = len(entry.rank_hosts)
    if entry.ranks % hosts:
        more = entry.ranks + hosts - entry.ranks % hosts
        message = f"{entry.ranks} ranks cannot be shared by {hosts} hosts: each has as many"
        yield Finding((*place, "ranks"), message, f"write a multiple of {hosts}, as {more}")
    if hosts > 1 and entry.share != ALONE:
        message = f"the devices of the other hosts are not shared in {entry.share}"
        yield Finding((*place, "share"), message, "leave it out, or put all ranks on one host")
    if hosts > 1 and entry.settings.get("weights_in") == "shared_memory":
        message = f"the ranks write policies together, and are on {hosts} hosts, which share no memory"
        remedy = 'leave it at "run_directory", which these hosts must share'
        yield Finding((*place, "settings", "weights_in"), message, remedy)
    device = str(entry.settings.get("device", "cpu"))
    kind, _, number = device.partition(":")
    if kind == KIND and number:
        message = f"{device} is one GPU, and each of {entry.ranks} ranks has its own"
        yield Finding((*place, "settings", "device"), message, 'write "cuda": rank 0 has cuda:0')


def placement_rows(topology: Topology, found: Sequence[Gpu] = ()) -> list[tuple[str, ...]]:
    """The table of all GPUs in use: host, number, actors, and of this machine's the name and the cores near it."""
    users: dict[tuple[str, int], list[Placed]] = defaultdict(list)
    for placed in placement(topology):
        for gpu in placed.gpus:
            users[placed.host, gpu].append(placed)
    if not users:
        return []
    facts = Facts(Path())
    rows: list[tuple[str, ...]] = [("GPUs:", "", "", "")]
    for (host, gpu), actors in sorted(users.items()):
        way = (", at once" if actors[0].share == AT_ONCE else ", in turns") if len(actors) > 1 else ""
        here = found[gpu] if gpu < len(found) and facts.is_here(topology, host) else None
        near = "" if here is None or not here.cores else f", cores {ranges(here.cores)}"
        names = " and ".join(each.actor for each in actors) + way
        rows.append((f"  {host}", f"{KIND}:{gpu}", names, "" if here is None else f"{here.name}{near}"))
    return rows


def ranges(numbers: frozenset[int]) -> str:
    """Numbers as ``0-15,32-47``."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)
