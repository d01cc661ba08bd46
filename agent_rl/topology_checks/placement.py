"""Check which actor has which GPU, and show it as a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from agent_rl.config.addresses import is_loopback
from agent_rl.config.placement import IN_TURNS, KIND, conflicts, engine_gpus, most_gpus, partners, placement
from agent_rl.config.source import Fault, Source
from agent_rl.config.topology import Topology
from agent_rl.models.devices import Gpu, Machine, gpu_count


def is_here(topology: Topology, name: str, started: str | None) -> bool:
    """Whether a host is this machine: the one that is ``started`` here, or all of a run that is on this machine."""
    if started is not None:
        return name == started
    return all(is_loopback(topology.hosts[each].address) for each in topology.hosts_in_use)


def placement_faults(
    topology: Topology, source: Source, host: str | None = None, machine: Machine | None = None
) -> Iterator[Fault]:
    """GPUs that two actors have, hosts with too few, and counts that contradict other settings.

    ``host`` is the one that is started here, if one is named. How many GPUs a host has is known where the file says it,
    and of this ``machine``.
    """
    yield from _counts(topology, source)
    for each in conflicts(placement(topology)):
        message = (
            f"GPU {each.gpu} of host {each.host} is that of {each.first.actor} and of {each.second.actor}: two models "
            "in its memory"
        )
        remedy = 'name another, as in "cuda:1", or write share = "time" in both tables'
        yield source.fault(("actors", each.second.role, "settings", "device"), message, remedy)
        return  # further ones follow from it
    yield from _turn_faults(topology, source, host, machine)
    for name in topology.hosts_in_use:
        count = topology.hosts[name].gpus
        if count is None and is_here(topology, name, host):
            count = gpu_count(machine or Machine.here())
        needed = most_gpus(topology, name)
        if count is not None and needed > count:
            users = [placed for placed in placement(topology) if placed.host == name and max(placed.gpus) >= count]
            what = f"{users[0].actor} has GPU {max(users[0].gpus)} of host {name}, and it has {count}"
            message = f"{what}, counted from 0; its actors need {needed}"
            remedy = 'use fewer replicas, ranks or GPUs, or share = "time" for roles that take turns'
            yield source.fault(("actors", users[0].role, "settings", "device"), message, remedy)


def _turn_faults(topology: Topology, source: Source, host: str | None, machine: Machine | None) -> Iterator[Fault]:
    """Roles that share a device with nobody, and engines that cannot be trusted to wake."""
    for role, entry in topology.actors.items():
        if entry.share != IN_TURNS:
            continue
        place, homes = ("actors", role, "share"), topology.homes(role)
        if not any(partners(topology, f"{role}.{number}") for number in homes):
            message = 'is "time", and no other role that says so has a device of this role'
            yield source.fault(place, message, "write it in the tables of both, give them one device, or leave it out")
        here = any(is_here(topology, name, host) for name in homes.values())
        vllm = "vllm" in str(entry.settings.get("engine", "")).lower()
        if here and vllm and (machine or Machine.here()).built_for == "hip":
            message = "is \"time\", and waking from vLLM's sleep mode fails on AMD's GPUs (vllm #52478)"
            yield source.fault(place, message, 'give engine and learner GPUs of their own, or write engine = "torch"')


def _counts(topology: Topology, source: Source) -> Iterator[Fault]:
    for role, entry in topology.actors.items():
        count, place = entry.gpus_per_replica, ("actors", role, "gpus_per_replica")
        if not count:
            continue
        device = str(entry.settings.get("device", "cpu"))
        if device.partition(":")[0] != KIND and "device" in entry.settings:
            yield source.fault(place, f"is {count}, and the role's device is {device}", f'write device = "{KIND}"')
        spread = engine_gpus(entry)
        if spread > 1 and spread != count:
            message = f"is {count}, and the engine's parallel sizes make {spread}"
            yield source.fault(place, message, f"write {spread}, or leave it out")


def placement_rows(topology: Topology, found: Sequence[Gpu] = ()) -> list[tuple[str, ...]]:
    """The table of all GPUs in use: host, number, actors, and of this machine's the name and the cores near it."""
    users: dict[tuple[str, int], list[str]] = defaultdict(list)
    for placed in placement(topology):
        for gpu in placed.gpus:
            users[placed.host, gpu].append(placed.actor)
    in_turns = {place for place, actors in users.items() if len(actors) > 1}
    if not users:
        return []
    rows: list[tuple[str, ...]] = [("GPUs:", "", "", "")]
    for (host, gpu), actors in sorted(users.items()):
        here = found[gpu] if gpu < len(found) and is_here(topology, host, None) else None
        near = "" if here is None or not here.cores else f", cores {ranges(here.cores)}"
        names = " and ".join(actors) + (", in turns" if (host, gpu) in in_turns else "")
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
