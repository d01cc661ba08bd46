"""When a change of a run under way is refused, what it means for the topology, and who carries it out. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

from agent_rl.config.hidden import redacted
from agent_rl.config.plugins import resolve
from agent_rl.config.processes import ActorEntry
from agent_rl.config.standard import learner_of
from agent_rl.config.topology import Topology
from agent_rl.messages import DrainWanted, ScaleWanted, StopWanted, SwapWanted

Command: TypeAlias = SwapWanted | DrainWanted | ScaleWanted | StopWanted
"""What is asked of a run."""
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


def differences(role: str, before: Topology, now: Topology) -> list[str]:
    """The class and the settings of a role that a swap changes, one line each; a line that says so where none."""
    was, becomes = before.actors[role], now.actors[role]
    lines = (
        [f"{role}.class: {becomes.class_path}, was {was.class_path}"] if was.class_path != becomes.class_path else []
    )
    for key in dict.fromkeys([*was.settings, *becomes.settings]):
        if was.settings.get(key, _LEFT_OUT) != becomes.settings.get(key, _LEFT_OUT):
            old, new = (_shown(entry.settings, key) for entry in (was, becomes))
            lines.append(f"{role}.settings.{key}: {new}, was {old}")
    return lines or [f"{role} has the class and the settings that it had; its processes are new"]


_LEFT_OUT = "left out"


def _shown(settings: Mapping[str, Any], key: str) -> str:
    return json.dumps(redacted(settings)[key], default=str) if key in settings else _LEFT_OUT


def named(command: Command) -> str:
    """The change in words."""
    match command:
        case SwapWanted():
            return f"swap of {command.role}"
        case DrainWanted():
            return f"drain of {command.host}"
        case StopWanted():
            return "stop"
        case ScaleWanted():
            return f"scaling of {command.role}"


def why_not(
    command: Command,
    topology: Topology,
    runs: Mapping[str, Collection[int]],
    *,
    ending: bool,
    busy: str,
    away: Collection[str] = (),
    absent: Collection[str] = (),
) -> str:
    """Why a change cannot begin now, and the remedy; empty: it can.

    ``runs``: the replicas of each role that are to run. ``busy`` is the change under way, ``away`` are hosts that were
    drained, ``absent`` all that are not heard.
    """
    if ending:
        return ENDING
    match command:
        case SwapWanted():
            reason = _about_swap(command, topology)
        case DrainWanted():
            reason = _about_drain(command.host, topology, runs, away, absent)
        case ScaleWanted():
            reason = _about_scaling(command, topology, runs, away)
        case StopWanted():
            return ""
    busy_with = f"another change is under way ({busy}); ask again when it is done" if busy else ""
    return reason or busy_with


def _about_drain(
    name: str, topology: Topology, runs: Mapping[str, Collection[int]], away: Collection[str], absent: Collection[str]
) -> str:
    if name not in topology.hosts_in_use:
        return f"the run has no host {name!r}; there are {', '.join(topology.hosts_in_use)}"
    if name in away:
        return f"host {name} has left already"
    if name == topology.main_host:
        return f"host {name} runs the learner and ends the run; stop the run instead (Ctrl-C)"
    for role in topology.actors if name not in absent else ():  # what a dead host ran is lost already
        homes = {topology.homes(role)[number] for number in runs[role]}
        if name in homes and (_declares(topology, role, "each_needed") or not homes - {name, *absent}):
            return f"no other host runs {role}, without which the run stands still; stop the run instead (Ctrl-C)"
    return ""


def _about_swap(wanted: SwapWanted, topology: Topology) -> str:
    if wanted.role not in topology.actors:
        known = ", ".join(topology.actors)
        role = wanted.role.rpartition(".")[0]
        whole = f"; a swap is of all replicas: name {role}" if role in topology.actors else ""
        return f"the run has no actor {wanted.role!r}; there are {known}{whole}"
    learner = learner_of(wanted.role, topology.actors[wanted.role].class_path)
    if learner != wanted.role:
        return f"{wanted.role} are ranks of {learner}, which have its class and settings; swap {learner}"
    if not wanted.class_path and not wanted.settings and not wanted.fresh:
        return "nothing would change; name a class (--class module:Class) or a setting (--set key=value)"
    return ""


def _about_scaling(
    wanted: ScaleWanted, topology: Topology, runs: Mapping[str, Collection[int]], away: Collection[str]
) -> str:
    role, number = wanted.role, wanted.number
    if role not in topology.actors:
        return f"the run has no role {role!r}; there are {', '.join(topology.actors)}"
    homes = topology.homes(role)
    staying = [replica for replica, host in homes.items() if host not in away]
    most, now = len(homes), len([replica for replica in runs[role] if replica in staying])
    if number < 1:
        return f"{role} needs at least one process, without which the run stands still; ask for 1 or more"
    if _declares(topology, role, "single") and number > 1:
        return f"a run has exactly one {role}, which keeps its state"
    if _declares(topology, role, "each_needed"):
        return f"each process of {role} does a part that no other can do; stop the run, and write it into the file"
    if number > most:
        remedy = f"stop the run, and write actors.{role}.replicas = {number} and start = {now} into the file"
        return f"{role} has at most {processes(most)}, as the file says; {remedy}"
    if number > len(staying):
        gone = ", ".join(dict.fromkeys(host for host in homes.values() if host in away))
        return f"{role} has at most {processes(len(staying))} while {gone} has left; start that host again"
    if number == now:
        return f"nothing would change: {role} has {processes(now)} already"
    return ""


def _declares(topology: Topology, role: str, what: str) -> bool:
    """Whether the class of a role says that there is a ``single`` one, or that ``each_needed`` one does a part."""
    return bool(getattr(resolve("actor", topology.actors[role].class_path), what, False))


def processes(count: int) -> str:
    """A number of processes in words."""
    return f"{count} process" + ("" if count == 1 else "es")


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
