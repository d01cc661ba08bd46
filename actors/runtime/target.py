"""What the actors of a supervisor are to be: the topology file of their host, with the changes in force. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from actors.runtime.lifecycle import actor_environment, drain_seconds
from actors.runtime.reconcile import Plan
from agent_rl.config.load import load_topology
from agent_rl.config.plugins import PluginError
from agent_rl.config.source import TopologyError
from agent_rl.config.standard import learner_of
from agent_rl.config.topology import Topology
from agent_rl.messages import RoleWanted

UNREADABLE = (TopologyError, PluginError, ValidationError)
"""What is raised for a topology whose keys, classes or settings are wrong."""


@dataclass(frozen=True, slots=True)
class Target:
    """The topology in force, and the plan of each actor that is to run, by name, in the order of the file."""

    topology: Topology
    plans: Mapping[str, Plan] = field(default_factory=dict)


def plan_of(role: str, topology: Topology, since: int = 0) -> Plan:
    """The plan of a role. Raises PluginError and ValidationError when class and settings do not fit."""
    entry = topology.actors[role]
    return Plan(entry, drain_seconds(role, entry), actor_environment(entry, topology.run.directory), since)


def in_force(text: str, roles: Mapping[str, RoleWanted]) -> Topology:
    """The topology of a text, with the swaps of roles in the order in which they were made. Raises TopologyError."""
    swaps = sorted(roles.values(), key=lambda role: role.since)
    return load_topology(Path("the topology of the run"), [key for role in swaps for key in role.keys], text)


def target_of(text: str, roles: Mapping[str, RoleWanted], hosts: Collection[str]) -> Target:
    """What is to run on these hosts. A role that ``roles`` lacks is as the text says. Raises as ``UNREADABLE`` says."""
    topology = in_force(text, roles)
    plans: dict[str, Plan] = {}
    for role, entry in topology.actors.items():
        homes, learner = topology.homes(role), learner_of(role, entry.class_path)
        since = roles[learner].since if learner in roles else 0
        wanted = roles[role].replicas if role in roles else topology.wanted(role)
        if here := [number for number in wanted if homes.get(number) in hosts]:
            plan = plan_of(role, topology, since)
            plans |= {f"{role}.{number}": plan for number in here}
    return Target(topology, plans)


def chosen(homes: Mapping[int, str], now: Collection[int], number: int, left: Collection[str]) -> tuple[int, ...]:
    """The replicas of a role that run where it is to have this number of them, on hosts that have not ``left``.

    ``homes``: the host of each. Those that run stay, the lowest numbers first; others join, the lowest first.
    """
    staying = [replica for replica, host in homes.items() if host not in left]
    order = sorted(staying, key=lambda replica: (replica not in now, replica))
    return tuple(sorted(order[:number]))
