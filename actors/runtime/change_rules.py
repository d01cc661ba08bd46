"""When a change of a run under way is refused, what it means for the topology, and who carries it out. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from agent_rl.config import scaling
from agent_rl.config.joining import each_needed, joined_hosts, may_have_more
from agent_rl.config.processes import ActorEntry
from agent_rl.config.topology import Topology
from agent_rl.messages import DrainWanted, ReplicasWanted, ScaleWanted, SwapWanted

Wanted: TypeAlias = SwapWanted | DrainWanted | ScaleWanted | ReplicasWanted
"""What is asked of a supervisor."""
GIB = 1 << 30
RESERVE = GIB // 2
"""Bytes that stay free when a process starts beside another."""
SHARE = "gpu_memory_utilization"
"""vLLM's setting for the share of a device that an engine takes."""
MOST_OF_DEVICE = 0.95
ENDING = "the run is ending; start it again, and then ask again"


def changed_keys(wanted: SwapWanted) -> list[str]:
    """The change as ``KEY=VALUE`` of the topology, as ``--set`` takes it."""
    entry = f"actors.{wanted.role}"
    keys = [f'{entry}.class="{wanted.class_path}"'] if wanted.class_path else []
    keys += [f"{entry}.settings={{}}"] if wanted.fresh else []
    return keys + [f"{entry}.settings.{setting}" for setting in wanted.settings]


def added_keys(topology: Topology, hosts: Collection[str]) -> list[str]:
    """The replicas that were added on these hosts, as ``KEY=VALUE`` of the topology."""
    return [f"hosts.{host}.added={[*topology.hosts[host].added]}" for host in hosts if topology.hosts[host].added]


def added_and_removed(topology: Topology, hosts: Collection[str]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The replicas of each of these hosts that the run added and removed."""
    return [(topology.hosts[host].added, topology.hosts[host].removed) for host in hosts]


def named(wanted: Wanted) -> str:
    """The change in words."""
    match wanted:
        case SwapWanted():
            return f"swap of {wanted.role}"
        case DrainWanted():
            return f"drain of {wanted.host}"
        case ScaleWanted() | ReplicasWanted():
            return f"scaling of {wanted.role}"


def why_not(
    wanted: Wanted,
    topology: Topology,
    starting: Sequence[str],
    *,
    ending: bool,
    busy: str,
    left: Collection[str] = (),
) -> str:
    """Why a change cannot begin now, and the remedy; empty: it can.

    ``starting`` are the actors that are not ready, ``busy`` is the change under way, ``left`` are hosts that left.
    """
    others = [name for name in starting if name not in first_started(wanted)]
    return (ENDING if ending else "") or _about(wanted, topology, left) or not_now(others, busy)


def first_started(wanted: Wanted) -> tuple[str, ...]:
    """The replicas that a change starts: an announcement of the main host may have started them already."""
    return wanted.starts if isinstance(wanted, ReplicasWanted) else ()


def not_now(starting: Sequence[str], busy: str) -> str:
    """Why nothing can be changed now, and the remedy; empty: it can."""
    if starting:
        return f"{', '.join(starting)} has not started yet; ask again when all actors run"
    if busy:
        return f"another change is under way ({busy}); ask again when it is done"
    return ""


def _about(wanted: Wanted, topology: Topology, left: Collection[str]) -> str:
    match wanted:
        case SwapWanted():
            return _about_swap(wanted, topology)
        case DrainWanted():
            return _about_drain(wanted, topology, left)
        case ScaleWanted():
            return scaling.refusal(topology, wanted.role, wanted.number, left)
        case ReplicasWanted():  # the supervisor of the main host has decided
            return ""


def _about_drain(wanted: DrainWanted, topology: Topology, left: Collection[str]) -> str:
    name = wanted.host
    if name not in topology.hosts_in_use:
        return f"the run has no host {name!r}; there are {', '.join(topology.hosts_in_use)}"
    if name in left:
        return f"host {name} has left already"
    if name == topology.main_host:
        return f"host {name} runs the learner and ends the run; stop the run instead (Ctrl-C)"
    for role in topology.actors:
        homes = set(topology.homes(role).values())
        if name in homes and (each_needed(topology, role) or not homes - {name, *left}):
            return f"no other host runs {role}, without which the run stands still; stop the run instead (Ctrl-C)"
    return ""


def _about_swap(wanted: SwapWanted, topology: Topology) -> str:
    if wanted.role not in topology.actors:
        known = ", ".join(topology.actors)
        role = wanted.role.rpartition(".")[0]
        whole = f"; a swap is of all replicas: name {role}" if role in topology.actors else ""
        return f"the run has no actor {wanted.role!r}; there are {known}{whole}"
    if not wanted.class_path and not wanted.settings and not wanted.fresh:
        return "nothing would change; name a class (--class module:Class) or a setting (--set key=value)"
    return ""


def several(topology: Topology, role: str) -> str:
    """Why the class of a role does not fit the replicas that came with hosts or were added; empty: it does.

    The trial of a swap knows the replicas of the file alone.
    """
    if may_have_more(topology, role):
        return ""
    what = f"{topology.actors[role].class_path} keeps state of the whole run, so there is exactly one"
    if hosts := [name for name, host in joined_hosts(topology).items() if role in host.joined]:
        return f"{what}, and {', '.join(hosts)} joined with {role}; drain what joined first"
    number = len(topology.homes(role))
    return f"{what}, and {role} has {number} processes; scale it to 1 first" if number > 1 else ""


def in_place(former: ActorEntry, entry: ActorEntry, needed: int | None, available: int | None) -> str:
    """Why the new process of an actor cannot start beside the former one; empty: it can.

    ``needed``: the resident bytes of the former process and its children, as the new one may need as much.
    ``available``: the bytes that new processes can have. None: not known.
    """
    for each in (former, entry):
        device = str(each.settings.get("device", "cpu"))
        share = (each.settings.get("engine_settings") or {}).get(SHARE, 1.0)
        if device.partition(":")[0] != "cpu" and 2 * share > MOST_OF_DEVICE:
            return f"{device} has no room for two"
    if needed is None or available is None:
        return "memory is not known"
    if needed + RESERVE > available:
        return f"{needed / GIB:.1f} GiB are needed, and {available / GIB:.1f} are free"
    return ""


@dataclass(frozen=True)
class Scaling:
    """Replicas that come or go, and the topology while they do."""

    starts: Mapping[str, str]
    """The host of each replica that starts, by its name."""
    stops: Mapping[str, str]
    """The host of each replica that stops, by its name."""
    during: Topology

    def on(self, hosts: Collection[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The replicas that start and stop on these hosts."""
        starts, stops = (
            tuple(name for name, host in replicas.items() if host in hosts) for replicas in (self.starts, self.stops)
        )
        return starts, stops


def scaled(wanted: ScaleWanted, topology: Topology, *, taken: Mapping[str, int], left: Collection[str]) -> Scaling:
    """What it takes that a role has so many processes. ``taken``: the number after the highest ever given, by role."""
    role = wanted.role
    more = wanted.number - len(scaling.present(topology, role, left))
    if more > 0:
        starts = scaling.new_replicas(topology, role, more, taken=taken, left=left)
        return Scaling(starts, {}, scaling.with_replicas(topology, starts))
    return Scaling({}, scaling.last_replicas(topology, role, -more, left=left), topology)
